"""What every struct on the wire is made of.

Owns the bases of messages and of structs that travel inside one, and the words that several of them share.
"""

import msgspec

Scalar = str | int | float | bool | None
"""A value of a row's other columns."""


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every struct that travels inside a message; what has its default's value is not written."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="kind"):
    """Base of everything that is a frame of its own."""
