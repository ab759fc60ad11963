"""Versions: what a learner publishes and how a generator took it.

Owns the manifest's words. How the bytes travel is the transport's business.
"""

from async_rl.protocol.wire import Wire

NO_VERSION = -1
"""The version of weights that no learner has published: those of the model's folder."""


class TensorEntry(Wire, frozen=True, kw_only=True):
    """Where one tensor lies in a published version."""

    name: str
    """Hugging Face name."""
    dtype: str
    """torch's name without its prefix: float32, bfloat16."""
    shape: list[int]
    offset: int
    num_bytes: int
    checksum: int
    """xxh3_64 of the bytes."""


class WeightManifest(Wire, frozen=True, kw_only=True):
    """A published version: which tensors, where, and how to know that they are whole."""

    version: int
    transport: str
    """Which transport can read `location`."""
    location: str
    generation: int
    """Rises with each publish; the slot at `location` carries it too, so that a reader who comes
    late sees that the slot has been written again."""
    tensors: list[TensorEntry]
    num_bytes: int
    gather_s: float
    """How long the learner took to bring its parameters into Hugging Face form."""
    transfer_s: float
    """How long the learner took to write them."""


class Activation(Wire, frozen=True, kw_only=True):
    """How one generator took a version."""

    version: int
    transfer_s: float
    """Reading and verifying, while generation went on."""
    pause_s: float
    """The engine stood still."""
