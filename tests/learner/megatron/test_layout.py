"""Which token lies in which cell."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.megatron.layout import Layout
from learner.packing import PackedSequences
from tests.learner.megatron.lengths import Groups, groups, pack

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_a_rectangle_is_three_quarters_full_at_least(lengths: list[int]) -> None:
    sequences = PackedSequences.pack([[0] * n for n in lengths])
    layout = Layout.of(sequences, CPU)
    assert sequences.num_tokens >= 0.75 * len(layout.own.sources)
    assert layout.prefixed is None


@given(groups())
def test_each_token_has_one_cell_and_the_others_are_padding(drawn: Groups) -> None:
    sequences = pack(drawn)
    own, places = Layout.of(sequences, CPU).own, Layout.of(sequences, CPU).places
    assert own.sources[places].equal(torch.arange(sequences.num_tokens))
    assert sorted(places.tolist() + own.padding.tolist()) == list(range(len(own.sources)))
    assert sum(n * width for n, width in own.shapes) == len(own.sources)


@given(groups())
def test_what_follows_a_prefix_stands_beside_the_whole_of_it(drawn: Groups) -> None:
    sequences = pack(drawn)
    layout = Layout.of(sequences, CPU)
    found: dict[tuple[int, ...], list[int]] = {}
    if layout.prefixed is not None:
        queries, keys = layout.prefixed.queries, layout.prefixed.keys
        tokens = layout.own.sources[queries.sources].clone()
        tokens[queries.padding] = -1
        sides = (queries.split(tokens[:, None]), keys.split(layout.own.sources[keys.sources, None]))
        for rows, prefixes in zip(*sides, strict=True):
            for row, prefix in zip(rows[:, 0], prefixes[:, 0], strict=True):
                found[tuple(prefix.tolist())] = row[row >= 0].tolist()
        assert tokens[layout.prefixed.places].ge(0).all()
    expected: dict[tuple[int, ...], list[int]] = {}
    for segment in sequences.segments:
        if segment.prefix is not None:
            prefix = sequences.segments[segment.prefix]
            row = expected.setdefault(tuple(range(prefix.start, prefix.end)), [])
            row.extend(range(segment.start, segment.end))
    assert found == expected


def test_rectangles_are_split_and_joined() -> None:
    own = Layout.of(PackedSequences.pack([[0] * n for n in (9, 2, 2, 9)]), CPU).own
    flat = torch.arange(22 * 3 * 2).view(22, 3, 2)
    assert own.shapes == ((2, 9), (2, 2))
    assert [tuple(part.shape) for part in own.split(flat)] == [(2, 3, 9, 2), (2, 3, 2, 2)]
    assert own.join(own.split(flat)).equal(flat)
