"""Losses, KL and value loss against golden vectors: values, gradients and metrics, in float32."""

import pytest

from tests.golden import Golden, golden_cases, golden_differences
from tests.golden.adapters import ADAPTERS
from tests.golden.checker import check

KINDS = ("policy_loss", "aggregation", "kl", "kl_in_reward", "value_loss", "from_logits")
CASES = [case for kind in KINDS for case in (*golden_cases(kind), *golden_differences(kind))]


def test_there_are_golden_cases() -> None:
    assert [len(golden_cases(kind)) for kind in KINDS] == [69, 15, 8, 4, 6, 4]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_is_golden(case: Golden) -> None:
    assert check(case, ADAPTERS).complaints == ()
