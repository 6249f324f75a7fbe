"""Files and databases: what the checks are read from and run on."""
