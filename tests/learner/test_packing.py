"""Packing lays sequences end to end, a prompt once for its responses; the plan puts each into one micro-batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.packing import PackedSequences, Segment, plan_micro_batches

_LENGTHS = st.lists(st.integers(1, 40), max_size=30)
_TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=9)
_SOME_TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9)
_GROUPS = st.lists(st.tuples(_SOME_TOKENS, st.lists(_TOKENS, min_size=1, max_size=4)), min_size=1, max_size=4)


def test_positions_start_anew_at_each_sequence() -> None:
    packed = PackedSequences.pack([[7, 8, 9], [4], [5, 6]], [2, 0, 1])
    assert packed.token_ids.tolist() == [7, 8, 9, 4, 5, 6]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert packed.segments == (Segment(0, 3), Segment(3, 1), Segment(4, 2))
    assert packed.num_tokens == 6
    assert packed.token_ids.dtype == packed.position_ids.dtype == torch.int64


def test_scored_are_the_last_tokens_and_sources_those_before() -> None:
    packed = PackedSequences.pack([[7, 8, 9], [4], [5, 6]], [1, 0, 1])
    assert packed.scored.tolist() == [2, 5]
    assert packed.sources.tolist() == [1, 4]
    assert packed.labels.tolist() == [9, 6]
    assert packed.num_scored == (1, 0, 1)
    assert packed.slices == (slice(0, 1), slice(1, 1), slice(1, 2))
    assert packed.scored.dtype == packed.sources.dtype == torch.int64


def test_without_counts_all_but_the_first_token_are_scored() -> None:
    assert PackedSequences.pack([[7, 8, 9], [4], [5, 6]]).scored.tolist() == [1, 2, 5]


def test_a_prompt_stands_once_before_its_responses() -> None:
    packed = PackedSequences.pack_groups([([1, 2, 3], [[4, 5], [6]]), ([7], [[8, 9]])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 0, 1, 2]
    # The only response of a prompt needs no segment of its own.
    assert packed.segments == (Segment(0, 3), Segment(3, 2, prefix=0), Segment(5, 1, prefix=0), Segment(6, 3))
    assert packed.scored.tolist() == [3, 4, 5, 7, 8]
    # The first token of every response follows the prompt's last.
    assert packed.sources.tolist() == [2, 3, 2, 6, 7]
    assert packed.num_scored == (2, 1, 2)


def test_empty_responses_have_no_segment_and_no_scores() -> None:
    packed = PackedSequences.pack_groups([([1, 2], [[], [3]]), ([4], [[], []])])
    assert packed.token_ids.tolist() == [1, 2, 3, 4]
    assert packed.segments == (Segment(0, 2), Segment(2, 1, prefix=0), Segment(3, 1))
    assert packed.num_scored == (0, 1, 0, 0)
    assert [part.tolist() for part in packed.unpack(packed.labels)] == [[], [3], [], []]


def test_a_row_without_scored_tokens_has_empty_scores() -> None:
    packed = PackedSequences.pack([[7]])
    assert packed.num_scored_tokens == 0
    assert packed.labels.shape == packed.sources.shape == (0,)
    assert [part.shape for part in packed.unpack(torch.zeros(0))] == [(0,)]


@given(_GROUPS)
def test_labels_and_their_predecessors_are_those_of_the_sequences(
    groups: list[tuple[list[int], list[list[int]]]],
) -> None:
    packed = PackedSequences.pack_groups(groups)
    sequences = [(prompt, response) for prompt, responses in groups for response in responses]
    before = [(prompt[-1:] + response)[: len(response)] for prompt, response in sequences]
    assert [part.tolist() for part in packed.unpack(packed.labels)] == [response for _, response in sequences]
    assert [part.tolist() for part in packed.unpack(packed.token_ids[packed.sources])] == before
    positions = [list(range(len(prompt), len(prompt) + len(response))) for prompt, response in sequences]
    assert [part.tolist() for part in packed.unpack(packed.position_ids[packed.scored])] == positions


@given(_GROUPS)
def test_segments_cover_the_row_and_follow_prefixes_that_have_none(
    groups: list[tuple[list[int], list[list[int]]]],
) -> None:
    packed = PackedSequences.pack_groups(groups)
    assert [segment.start for segment in packed.segments] == [0, *(segment.end for segment in packed.segments)][:-1]
    assert packed.segments[-1].end == packed.num_tokens
    for index, segment in enumerate(packed.segments):
        first = packed.position_ids[segment.start]
        if segment.prefix is None:
            assert first == 0
        else:
            prefix = packed.segments[segment.prefix]
            assert segment.prefix < index and prefix.prefix is None and first == prefix.length


@given(_GROUPS)
def test_a_row_of_groups_scores_what_the_plain_one_does(groups: list[tuple[list[int], list[list[int]]]]) -> None:
    shared = PackedSequences.pack_groups(groups)
    sequences = [(prompt + response, len(response)) for prompt, responses in groups for response in responses]
    plain = PackedSequences.pack([tokens for tokens, _ in sequences], [count for _, count in sequences])
    assert shared.num_scored == plain.num_scored
    assert shared.labels.equal(plain.labels)
    assert shared.position_ids[shared.scored].equal(plain.position_ids[plain.scored])
    assert shared.num_tokens <= plain.num_tokens


@given(st.lists(_SOME_TOKENS, min_size=1, max_size=9))
def test_unpack_undoes_pack(sequences: list[list[int]]) -> None:
    packed = PackedSequences.pack([np.asarray(sequence, np.int32) for sequence in sequences])
    assert [part.tolist() for part in packed.unpack(packed.labels)] == [sequence[1:] for sequence in sequences]


@pytest.mark.parametrize(
    ("sequences", "counts"), [([], []), ([[1], []], [0, 0]), ([[1, 2]], [2]), ([[1, 2]], [-1]), ([[1, 2]], [1, 1])]
)
def test_what_cannot_be_packed_is_refused(sequences: list[list[int]], counts: list[int]) -> None:
    with pytest.raises(AssertionError):
        PackedSequences.pack(sequences, counts)


@pytest.mark.parametrize("groups", [[], [([], [[1]])], [([1], [])]])
def test_groups_without_prompt_or_response_are_refused(groups: list[tuple[list[int], list[list[int]]]]) -> None:
    with pytest.raises(AssertionError):
        PackedSequences.pack_groups(groups)


def test_scores_of_another_number_are_refused() -> None:
    with pytest.raises(AssertionError):
        PackedSequences.pack([[1, 2], [3]]).unpack(torch.zeros(3))


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
