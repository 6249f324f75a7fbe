"""The command `hourglass`: a queue for application developers, and the programs of the Hourglass queue."""
