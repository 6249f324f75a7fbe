"""Folders of the store; what makes them survive a power cut stands in osenv."""

from osenv.folders import make_durable_dirs

__all__ = ["make_durable_dirs"]
