"""What every struct on the wire is made of.

Owns the base of structs that travel inside a message, and the words that several of them share.
"""

import msgspec

Scalar = str | int | float | bool | None
"""A value of a row's other columns."""


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every struct that travels inside a message; what has its default's value is not written."""
