"""What the tables come to, for people: one document of figures, and a page, pictures and summary.json made from it.

figures.py    tables -> document; whatever may be large is brought to a bounded size by Spark first
compare.py    messages against databases, and lateness against the broker's own
pictures.py   document -> PNG files
page.py       document and pictures -> one HTML file
"""
