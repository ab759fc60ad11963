"""Packing lays sequences end to end; the plan puts each into one micro-batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.packing import PackedSequences, plan_micro_batches

_LENGTHS = st.lists(st.integers(1, 40), max_size=30)


def test_positions_and_bounds_start_anew_at_each_sequence() -> None:
    packed = PackedSequences.pack([[7, 8, 9], [4], [5, 6]])
    assert packed.token_ids.tolist() == [7, 8, 9, 4, 5, 6]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert packed.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (packed.num_tokens, packed.max_seqlen) == (6, 3)
    assert packed.token_ids.dtype == packed.position_ids.dtype == torch.int64
    assert packed.cu_seqlens.dtype == torch.int32


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=9))
def test_unpack_undoes_pack(sequences: list[list[int]]) -> None:
    packed = PackedSequences.pack([np.asarray(sequence, np.int32) for sequence in sequences])
    assert [part.tolist() for part in packed.unpack(packed.token_ids)] == sequences
    assert packed.pack_values(sequences, torch.int64).equal(packed.token_ids)


@pytest.mark.parametrize("sequences", [[], [[1], []]])
def test_nothing_to_pack_is_refused(sequences: list[list[int]]) -> None:
    with pytest.raises(AssertionError):
        PackedSequences.pack(sequences)


def test_values_of_another_length_are_refused() -> None:
    with pytest.raises(AssertionError):
        PackedSequences.pack([[1, 2], [3]]).pack_values([[0.0], [0.0, 0.0]])


@given(_LENGTHS, st.integers(1, 60))
def test_each_sequence_goes_into_one_micro_batch_within_the_budget(lengths: list[int], max_tokens: int) -> None:
    plan = plan_micro_batches(lengths, max_tokens)
    assert sorted(index for part in plan for index in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or sum(lengths[index] for index in part) <= max_tokens for part in plan)


@given(_LENGTHS, st.integers(1, 60))
def test_no_two_micro_batches_would_fit_into_one(lengths: list[int], max_tokens: int) -> None:
    totals = sorted(sum(lengths[index] for index in part) for part in plan_micro_batches(lengths, max_tokens))
    assert len(totals) < 2 or totals[0] + totals[1] > max_tokens


def test_a_sequence_over_the_budget_stands_alone() -> None:
    assert plan_micro_batches([3, 50, 4], 10) == [[1], [0, 2]]
