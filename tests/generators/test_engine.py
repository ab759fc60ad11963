"""The words of the seam hold what they promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_rl.protocol import FinishReason, VersionSpan, spans_cover
from generators.engine import Sample, merge_spans


def test_spans_name_each_run_of_a_version() -> None:
    assert merge_spans([]) == []
    assert merge_spans([2, 2, 3]) == [VersionSpan(version=2, start=0, end=2), VersionSpan(version=3, start=2, end=3)]


@given(st.lists(st.integers(-1, 3)).map(sorted))
def test_spans_of_rising_versions_cover_every_token(versions: list[int]) -> None:
    spans = merge_spans(versions)
    assert spans_cover(spans, len(versions))
    assert [span.version for span in spans for _ in range(span.start, span.end)] == versions


@pytest.mark.parametrize(("start", "end"), [(0, 1), (1, 2), (0, 3)])
def test_a_sample_whose_spans_miss_a_token_is_refused(start: int, end: int) -> None:
    with pytest.raises(AssertionError):
        Sample(
            token_ids=[5, 6],
            logprobs=[-1.0, -1.0],
            spans=[VersionSpan(version=0, start=start, end=end)],
            finish_reason=FinishReason.STOP,
        )
