"""What a rank keeps of a forward pass for its backward pass.

Owns the count for Llama-like layers, after Reducing Activation Recomputation in Large Transformer Models
(arXiv:2205.05198): the same accounting, of RMSNorm, grouped queries, SwiGLU and an attention that keeps no scores.
Experts are taken to be used evenly. Pure.

Legend: T tokens of a micro-batch, H hidden size.
"""

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig, Recompute


def layer_elements(sizes: ModelSizes, parallel: ParallelConfig) -> int:
    """Numbers that a layer keeps of each token, if nothing is computed again."""
    # Both norms: what goes in, and what comes out and into the next matrix.
    norms = 4 * sizes.hidden_size // _sequence_parts(parallel)
    queries, keys = sizes.query_size, sizes.kv_size
    # Queries and keys before their norm and after their rotation, values, and what the attention says.
    attention = (3 * queries + 3 * keys) // parallel.tp
    return norms + attention + _feed_forward_elements(sizes, parallel)


def kept_elements(sizes: ModelSizes, parallel: ParallelConfig, recompute: Recompute) -> int:
    """Numbers that a layer keeps of each token until its backward pass."""
    if recompute is Recompute.full:
        return sizes.hidden_size // _sequence_parts(parallel)
    # `selective` computes scores again, of which an attention in pieces keeps none anyway.
    return layer_elements(sizes, parallel)


def working_elements(sizes: ModelSizes, parallel: ParallelConfig, recompute: Recompute) -> int:
    """Numbers of each token that one layer's backward pass needs besides: gradients, and what is computed again."""
    gradients = 2 * sizes.hidden_size + 3 * _columns(sizes, parallel)
    return gradients + (layer_elements(sizes, parallel) if recompute is Recompute.full else 0)


def layers_in_flight(sizes: ModelSizes, parallel: ParallelConfig, stage: int, micro_batches: int) -> int:
    """Layers times micro-batches whose activations a stage holds at once, at most.

    One forward, one backward: stage s of p begins p − s micro-batches before it ends the first. Interleaved with v
    pieces of a stage (arXiv:2104.04473): 2(p − s − 1) + (v − 1)p + 1 pieces.
    """
    pp, vpp = parallel.pp, parallel.vpp
    pieces = pp - stage if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
    return min(pieces, micro_batches * vpp) * (sizes.num_layers // (pp * vpp))


def _feed_forward_elements(sizes: ModelSizes, parallel: ParallelConfig) -> int:
    # Gate, up, silu(gate), their product.
    columns = 4 * _columns(sizes, parallel)
    if not sizes.num_experts:
        return columns
    # Each token once for each of its experts, as sent and as received, and the probabilities of all experts.
    sent = 2 * sizes.top_k * sizes.hidden_size // _sequence_parts(parallel)
    return columns + sent + 2 * sizes.num_experts // _sequence_parts(parallel)


def _columns(sizes: ModelSizes, parallel: ParallelConfig) -> int:
    """Columns of the feed-forward layers that a rank computes for each token."""
    if not sizes.num_experts:
        return sizes.intermediate_size // parallel.tp
    return sizes.top_k * sizes.intermediate_size // _sequence_parts(parallel)


def _sequence_parts(parallel: ParallelConfig) -> int:
    """Into how many parts the tokens between the matrices are cut."""
    return parallel.tp if parallel.sequence_parallel else 1
