"""The HTTP face of the gateway: the wire that is written down in the package's docstring."""
