"""The version of the wire, and how the wire changes.

Within one version every program talks with every other one, older or newer. Fields, methods and values of enums are
only added, never given another meaning, type or number; a number that is no longer used stays reserved. Who does not
know a field passes over it. Who does not get one sees its default, which means what was so before there was the field.
A change that does not fit this makes a new package, `hourglass.mq.v2`, beside the old one.

The version is the package's in the .proto files. It is not negotiated: who speaks another one finds no such method.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1
