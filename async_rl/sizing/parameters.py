"""How many weights a decoder has, and how many of them a rank holds.

Owns the count from a model's sizes: Llama-like layers (grouped queries, SwiGLU, RMSNorm) and experts of the same make.
Biases of queries and keys are left out: less than 0.01 % of any model that is large. Pure.
"""

from dataclasses import dataclass
from typing import Self

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Numbers of weights. Experts are spread over other ranks than all else."""

    dense: int
    experts: int = 0

    @property
    def total(self) -> int:
        """Of both kinds."""
        return self.dense + self.experts

    def __add__(self, other: Self) -> "Parameters":
        return Parameters(dense=self.dense + other.dense, experts=self.experts + other.experts)

    def times(self, count: int) -> "Parameters":
        """So many alike."""
        return Parameters(dense=self.dense * count, experts=self.experts * count)


def model_parameters(sizes: ModelSizes) -> int:
    """All weights of the whole model."""
    num_ends = 1 if sizes.tie_embeddings else 2
    body = layer_parameters(sizes, ParallelConfig()).times(sizes.num_layers).total
    return body + sizes.hidden_size + num_ends * sizes.vocab_size * sizes.hidden_size


def active_parameters(sizes: ModelSizes) -> int:
    """Weights that one token goes through: all but the experts that it is not sent to."""
    idle = sizes.num_experts - sizes.top_k
    return model_parameters(sizes) - sizes.num_layers * idle * 3 * sizes.hidden_size * sizes.intermediate_size


def layer_parameters(sizes: ModelSizes, parallel: ParallelConfig) -> Parameters:
    """A layer's on each rank that shares it."""
    hidden, tp = sizes.hidden_size, parallel.tp
    attention = hidden * (2 * sizes.query_size + 2 * sizes.kv_size) // tp
    feed_forward = 3 * hidden * sizes.intermediate_size
    norms = 2 * hidden + (2 * sizes.head_dim if sizes.qk_norm else 0)
    if not sizes.num_experts:
        return Parameters(dense=attention + norms + feed_forward // tp)
    return Parameters(
        dense=attention + norms + hidden * sizes.num_experts,
        experts=sizes.num_experts // parallel.ep * feed_forward // parallel.etp,
    )


def stage_parameters(sizes: ModelSizes, parallel: ParallelConfig, stage: int, *, has_vocabulary: bool) -> Parameters:
    """What each rank of a pipeline stage holds of a model.

    Args:
        stage: from 0; the first one has the embedding, the last one the last norm and the head.
        has_vocabulary: the head says a logit for each token, else one number (a critic's).
    """
    layers = layer_parameters(sizes, parallel).times(sizes.num_layers // parallel.pp)
    rows = -(-sizes.vocab_size // parallel.tp)
    is_first, is_last = stage == 0, stage == parallel.pp - 1
    ends = rows * sizes.hidden_size if is_first else 0
    if is_last:
        ends += sizes.hidden_size
        # Tied ends on two stages are two copies of the same matrix.
        shares = is_first and sizes.tie_embeddings and has_vocabulary
        ends += 0 if shares else (rows if has_vocabulary else 1) * sizes.hidden_size
    return layers + Parameters(dense=ends)


def adapter_parameters(sizes: ModelSizes, parallel: ParallelConfig, rank: int) -> Parameters:
    """LoRA's (arXiv:2106.09685) on a rank of any pipeline stage: two factors beside each matrix of attention and MLP.

    Of either factor, ranks share the side that they share of the matrix. Experts have none.
    """
    hidden, tp = sizes.hidden_size, parallel.tp
    sides = 2 * hidden + (2 * sizes.query_size + 2 * sizes.kv_size) // tp
    if not sizes.num_experts:
        sides += 2 * hidden + 3 * sizes.intermediate_size // tp
    return Parameters(dense=sizes.num_layers // parallel.pp * rank * sides)
