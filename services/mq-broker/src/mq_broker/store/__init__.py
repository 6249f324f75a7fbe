"""Files: what the broker keeps, byte for byte as FORMAT.md says, and how it comes back after a crash."""
