"""What stands above the last norm of a model: an output layer, or a critic's one number a token.

Owns the way from hidden states to the rows that scores are made of, and the weights of both heads. Knows nothing of
what stands below.

Legend: T tokens of a micro-batch, with what fills them up; M that are scored; V vocabulary, H hidden size.
"""

from enum import Enum, auto

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from learner.output_layer import OutputLayer
from learner.packing import PackedSequences
from learner.vocabulary import VocabularyShard


class Head(Enum):
    """Of a policy, or of a critic."""

    VOCABULARY = auto()
    """A logit for each word."""
    VALUE = auto()
    """One number."""


class ValueHead(torch.nn.Module):
    """In the place of Megatron's output layer: one number a token, float32 over a body of any format, 0 at first.

    Tensor parallel ranks have the same one.
    """

    def __init__(self, hidden_size: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        # In the body's format: Megatron's checkpoints mix up the optimizer states of a group with two formats.
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden_size, dtype=dtype, device=device))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[M, H] → [M] float32."""
        return torch.nn.functional.linear(rows.float(), self.weight.float())[:, 0]

    def sharded_state_dict(
        self, *, prefix: str, sharded_offsets: tuple[()], metadata: dict[str, object]
    ) -> ShardedStateDict:
        """Its own name in checkpoints: an output layer's rows would load as if they were a head."""
        state = make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix)
        replace_prefix_for_sharding(state, prefix, "value_head.")
        return state


def scored_rows(hidden: torch.Tensor, sequences: PackedSequences, head: Head, *, is_split: bool) -> torch.Tensor:
    """The state that each scored token is drawn from, [M, H], on every tensor parallel rank.

    Their gradient is that of all these ranks, and comes back to each rank's own states.

    Args:
        hidden: [T, 1, H], or this rank's part of the T; behind the last norm.
        sequences: what the model was given, without what fills it up behind its end.
        head: each rank computes the gradient of its words alone, but of a value all of it.
        is_split: whether tensor parallel ranks have parts, that is sequence parallelism.
    """
    is_partial = head is Head.VOCABULARY
    if is_split:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=is_partial)
    rows = hidden[:, 0].index_select(0, sequences.sources.to(hidden.device))
    if is_partial and not is_split:
        rows = copy_to_tensor_model_parallel_region(rows)
    return rows


def output_layer(model: GPTModel, *, vocab_size: int, trains: bool) -> OutputLayer:
    """This rank's part of a policy's output layer.

    Args:
        model: the last piece of the pipeline.
        vocab_size: V; rows of the weight behind it are padding.
        trains: whether gradients are to be added to Megatron's buffers.
    """
    is_embedding = model.share_embeddings_and_output_weights and model.pre_process
    weight = model.embedding.word_embeddings.weight if is_embedding else model.output_layer.weight
    group = parallel_state.get_tensor_model_parallel_group()

    def gather(mine: torch.Tensor) -> torch.Tensor:
        if group.size() == 1:
            return mine[None]
        everyone = mine.new_empty(group.size() * mine.shape[0], *mine.shape[1:])
        dist.all_gather_into_tensor(everyone, mine, group=group)
        return everyone.view(group.size(), *mine.shape)

    shard = VocabularyShard.of_rank(group.rank(), num_rows=weight.shape[0], vocab_size=vocab_size, gather=gather)
    gradient = weight.main_grad if trains and weight.requires_grad else None
    return OutputLayer(weight=weight, vocabulary=shard, gradient=gradient)


def value_head(model: GPTModel) -> ValueHead:
    """A critic's, of the last piece of the pipeline."""
    head = model.output_layer
    assert isinstance(head, ValueHead)
    return head
