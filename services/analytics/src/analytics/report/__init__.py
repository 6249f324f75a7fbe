"""What the tables come to, for people: one document of figures, and a page, pictures and summary.json made from it.

figures.py    tables -> document; messages against databases, lateness against the broker's own
pictures.py   document -> PNG files
write.py      document and pictures -> one HTML file, and the program's last words
"""
