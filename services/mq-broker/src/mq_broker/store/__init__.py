"""The broker's files, byte for byte as FORMAT.md says, and their recovery after a crash."""
