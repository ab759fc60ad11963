"""What a rank keeps of a forward pass for its backward pass, in bytes for each token.

Owns the count for Llama-like layers, after Reducing Activation Recomputation in Large Transformer Models
(arXiv:2205.05198): the same accounting, of RMSNorm, grouped queries, SwiGLU and an attention that keeps no scores.
Experts are taken to be used evenly. Norms keep what goes in and what comes out; on CPUs attention and SwiGLU are ours,
which keep less than Megatron's. Pure.

Legend: T tokens of a micro-batch, H hidden size.
"""

from dataclasses import dataclass

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.parallel import ParallelConfig, Recompute


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Of the layers on a rank."""

    sizes: ModelSizes
    parallel: ParallelConfig
    recompute: Recompute
    width: int
    """Bytes of a number."""
    on_gpus: bool

    @property
    def kept(self) -> int:
        """Bytes that a layer keeps of each token until its backward pass."""
        if self.recompute is Recompute.full:
            return self.width * self.sizes.hidden_size // self._sequence_parts
        return self.whole

    @property
    def whole(self) -> int:
        """Bytes that a layer keeps of each token if nothing is computed again."""
        return 2 * self.norm + self._attention_bytes // self.parallel.tp + self._feed_forward_bytes

    @property
    def norm(self) -> int:
        """Bytes that a norm over the width, and the matrix behind it, keep of each token."""
        return self.last_norm + self.width * self.sizes.hidden_size // self._sequence_parts

    @property
    def last_norm(self) -> int:
        """Bytes that the norm behind all layers keeps of each token."""
        return self.width * self.sizes.hidden_size // self._sequence_parts

    @property
    def working(self) -> int:
        """Bytes of each token that one layer's backward pass needs besides: gradients, and what is computed again."""
        gradients = self.width * (2 * self.sizes.hidden_size + 3 * self._columns)
        return gradients + (self.whole if self.recompute is Recompute.full else 0)

    @property
    def _attention_bytes(self) -> int:
        """On all tensor parallel ranks together."""
        queries, keys = self.sizes.query_size, self.sizes.kv_size
        if self.on_gpus:
            # What the matrix says as a whole (of which values are a part), rotated queries and keys, and the result.
            kept = self.width * (3 * queries + 3 * keys)
        else:
            # Queries, keys and values, and the result twice, or, to attend again, once and queries twice.
            kept = self.width * (3 * queries + 2 * keys)
            # The log-sum-exp of each query, in float32.
            kept += 0 if self._attends_again else 4 * self.sizes.num_heads
        return kept + (self._head_norm_bytes if self.sizes.qk_norm else 0)

    @property
    def _head_norm_bytes(self) -> int:
        """What norms over a head keep besides, of all heads."""
        queries, keys = self.sizes.query_size, self.sizes.kv_size
        if self.on_gpus:
            return self.width * queries
        # Queries apart; and what the matrix says as a whole, which is there already where its values are kept.
        return self.width * (queries + keys) * (1 if self._attends_again else 2)

    @property
    def _attends_again(self) -> bool:
        return self.recompute is Recompute.selective

    @property
    def _feed_forward_bytes(self) -> int:
        # Gate, up and the product; Megatron's own SwiGLU keeps silu(gate), and up once more (it adds 0 to it).
        columns = (5 if self.on_gpus else 3) * self._columns * self.width
        if not self.sizes.num_experts:
            return columns
        # The product weighted, each token once for each of its experts, and the probabilities of all experts.
        weighted = self._columns * self.width
        sent = self.sizes.top_k * self.sizes.hidden_size * self.width
        return columns + weighted + (sent + 8 * self.sizes.num_experts) // self._sequence_parts

    @property
    def _columns(self) -> int:
        """Columns of the feed-forward layers that a rank computes for each token."""
        if not self.sizes.num_experts:
            return self.sizes.intermediate_size // self.parallel.tp
        return self.sizes.top_k * self.sizes.intermediate_size // self._sequence_parts

    @property
    def _sequence_parts(self) -> int:
        """Into how many parts the tokens between the matrices are cut."""
        return self.parallel.tp if self.parallel.sequence_parallel else 1


def layers_in_flight(sizes: ModelSizes, parallel: ParallelConfig, stage: int, micro_batches: int) -> int:
    """Layers times micro-batches whose activations a stage holds at once, at most.

    One forward, one backward: stage s of p begins p − s micro-batches before it ends the first. Interleaved with v
    pieces of a stage (arXiv:2104.04473): 2(p − s − 1) + (v − 1)p + 1 pieces.
    """
    pp, vpp = parallel.pp, parallel.vpp
    pieces = pp - stage if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
    return min(pieces, micro_batches * vpp) * (sizes.num_layers // (pp * vpp))
