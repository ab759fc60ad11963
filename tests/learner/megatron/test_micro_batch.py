"""Rows that are filled up for ranks that share them."""

import pytest
import torch

from learner.megatron.micro_batch import fill_up
from learner.packing import PackedSequences, Segment


def test_a_row_that_fits_stays() -> None:
    packed = PackedSequences.pack([[1, 2], [3, 4]])
    assert fill_up(packed, 4) is packed


@pytest.mark.parametrize(("multiple", "num_tokens"), [(2, 6), (4, 8), (7, 7)])
def test_what_fills_up_is_a_segment_behind_all_others_that_is_not_scored(multiple: int, num_tokens: int) -> None:
    packed = PackedSequences.pack([[1, 2], [3, 4, 5]])
    filled = fill_up(packed, multiple)
    assert filled.num_tokens == len(filled.position_ids) == num_tokens
    assert torch.equal(filled.token_ids[:5], packed.token_ids)
    assert filled.segments == (Segment(0, 2), Segment(2, 3), Segment(5, num_tokens - 5))
    assert filled.position_ids[5:].tolist() == list(range(num_tokens - 5))
    assert torch.equal(filled.labels, packed.labels) and filled.num_scored == packed.num_scored
