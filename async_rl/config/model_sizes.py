"""A model's sizes as options: what its memory and its floating-point operations are worked out from.

Owns the options of `model.sizes`. A dry run needs them where the model's folder lies on another machine; where it lies
on this one, its `config.json` says the same.
"""

from dataclasses import dataclass

from async_rl.config.option import option


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a decoder. All 0: not given, and read from the model's folder."""

    num_layers: int = option(0, "Depth.", minimum=0)
    hidden_size: int = option(0, "Width.", minimum=0)
    num_heads: int = option(0, "Query heads.", minimum=0)
    num_kv_heads: int = option(0, "Key and value heads.", minimum=0)
    head_dim: int = option(0, "Head size.", minimum=0)
    intermediate_size: int = option(0, "Width of a feed-forward layer; with experts, of each of them.", minimum=0)
    vocab_size: int = option(0, "Tokens of the vocabulary.", minimum=0)
    num_experts: int = option(0, "Experts of a layer; 0: a dense model.", minimum=0)
    top_k: int = option(0, "Experts that each token is sent to.", minimum=0)
    tie_embeddings: bool = option(False, "Input and output embeddings share their weights.")
    qk_norm: bool = option(False, "Queries and keys have norms over a head, as in Qwen3.")

    @property
    def is_given(self) -> bool:
        """Whether anything is known of the model."""
        return self.num_layers > 0

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; as of the values'."""
        return self.num_kv_heads * self.head_dim
