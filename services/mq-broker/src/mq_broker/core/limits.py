"""How much one request, one client and all clients together may ask of a broker.

Every number that bounds what a peer can make the broker do, hold or remember stands here, with its unit last in its
name and the reason for its value behind it. What makes a record valid is not here but in `mqproto`, because clients,
brokers and tools share it.
"""
