"""Database, queue and sockets: what the ports of a service stand on."""
