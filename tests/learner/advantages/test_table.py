"""All estimators: the table is complete, nothing outside of a mask matters, and any batch gives finite numbers."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.objective import AdvantageConfig, Estimator
from correction.row_chunks import row_chunks
from learner.advantages.inputs import AdvantageInputs, Need
from learner.advantages.table import ADVANTAGES
from tests.learner.advantages.batches import drawn_inputs, masks, tensors_of

DOCS = Path(__file__).resolve().parents[3] / "docs" / "objectives.md"
CONFIG = AdvantageConfig(gamma=0.9, trace_lambda=0.8)
NAMES = sorted(ADVANTAGES)
FIELDS = {
    Need.VALUES: "values",
    Need.GREEDY_BASELINE: "baseline_rewards",
    Need.COMPONENTS: "component_rewards",
    Need.SCORES: "proximal_logprobs",
    Need.SUM_PI_SQUARED: "sum_pi_squared",
    Need.LOG_RHOS: "log_rhos",
}


def estimate(name: str, inputs: AdvantageInputs) -> list[Tensor]:
    result = ADVANTAGES[name].function(inputs, CONFIG)
    return [result.advantages] if result.returns is None else [result.advantages, result.returns]


def without(inputs: AdvantageInputs, *fields: str) -> AdvantageInputs:
    return AdvantageInputs(**{field: values for field, values in tensors_of(inputs).items() if field not in fields})


def test_every_word_of_the_config_is_an_estimator() -> None:
    assert set(NAMES) == {str(word) for word in Estimator}


def test_every_estimator_is_in_the_docs() -> None:
    advantages = DOCS.read_text().partition("## Advantages")[2].partition("## Losses")[0]
    assert [name for name in NAMES if f"| `{name}` |" not in advantages] == []


@pytest.fixture
def restored_table() -> Iterator[None]:
    before = dict(ADVANTAGES)
    yield
    ADVANTAGES.clear()
    ADVANTAGES.update(before)


@pytest.mark.usefixtures("restored_table")
def test_the_example_of_the_docs_adds_an_estimator() -> None:
    example = DOCS.read_text().partition("### Add an estimator")[2].partition("```python\n")[2].partition("```")[0]
    exec(compile(example, DOCS.name, "exec"), {})
    inputs = AdvantageInputs(
        mask=torch.tensor([[True, True], [True, False], [False, False]]),
        token_rewards=torch.tensor([[1.0, 2.0], [1.0, math.nan], [-9.0, -9.0]]),
        groups=torch.tensor([4, 4, 4]),
    )
    assert estimate("above_the_worst", inputs)[0].tolist() == [[2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(mask=masks(), seed=st.integers(0, 1000))
def test_nothing_outside_of_the_mask_matters(name: str, mask: Tensor, seed: int) -> None:
    poisoned = drawn_inputs(mask, seed)
    clean = {
        field: torch.where(values.isfinite(), values, 0.0)
        for field, values in tensors_of(poisoned).items()
        if values.is_floating_point()
    }
    for got, want in zip(estimate(name, poisoned), estimate(name, replace(poisoned, **clean)), strict=True):
        assert torch.equal(got, want)
        assert got.isfinite().all()
        assert not got[~mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_what_an_estimator_needs_is_all_that_it_reads(name: str) -> None:
    inputs = drawn_inputs(torch.ones(4, 5, dtype=torch.bool), 0)
    needs = ADVANTAGES[name].needs
    idle = without(inputs, "weights", *(field for need, field in FIELDS.items() if need not in needs))
    assert estimate(name, idle)[0].isfinite().all()
    for need in needs:
        with pytest.raises(AssertionError):
            estimate(name, without(idle, FIELDS[need]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 1), (3, 0), (0, 3)])
def test_small_batches(name: str, shape: tuple[int, int]) -> None:
    for is_kept in (True, False):
        inputs = drawn_inputs(torch.full(shape, is_kept), 0)
        for result in estimate(name, inputs):
            assert result.shape == shape and result.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(mask=masks(), seed=st.integers(0, 1000), size=st.sampled_from([1e6, 1e15, 1e30]))
def test_huge_rewards_stay_finite(name: str, mask: Tensor, seed: int, size: float) -> None:
    inputs = drawn_inputs(mask, seed)
    assert inputs.component_rewards is not None
    inputs = replace(
        inputs,
        token_rewards=(inputs.token_rewards * size).float(),
        component_rewards=inputs.component_rewards * size,
        **{field: getattr(inputs, field).float() for field in ("values", "proximal_logprobs", "sum_pi_squared")},
        **{field: getattr(inputs, field).float() for field in ("weights", "log_rhos", "baseline_rewards")},
    )
    for result in estimate(name, inputs):
        assert result.dtype == torch.float32
        assert result.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(mask=masks(), seed=st.integers(0, 1000))
def test_half_precision_is_computed_in_float32(name: str, mask: Tensor, seed: int) -> None:
    inputs = drawn_inputs(mask, seed)
    halves = {field: values.bfloat16() for field, values in tensors_of(inputs).items() if values.is_floating_point()}
    raised = {field: values.float() for field, values in halves.items()}
    for got, want in zip(
        estimate(name, replace(inputs, **halves)), estimate(name, replace(inputs, **raised)), strict=True
    ):
        assert got.dtype == torch.float32
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_a_rejected_trajectory_changes_nothing(name: str) -> None:
    mask = torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    inputs = replace(drawn_inputs(mask, 3), groups=torch.tensor([1, 1, 1, 2, 2, 2]))
    kept = [0, 1, 3, 4, 5]
    fewer = {field: values[kept] for field, values in tensors_of(inputs).items()}
    mask = mask.clone()
    mask[2] = False
    with_rejected = replace(inputs, mask=mask, token_rewards=torch.where(mask, inputs.token_rewards, math.nan))
    for got, want in zip(estimate(name, with_rejected), estimate(name, AdvantageInputs(**fewer)), strict=True):
        assert torch.allclose(got[kept], want, rtol=1e-12, atol=1e-12)
        assert not got[2].any()


@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn_inputs(torch.rand(23, 17, generator=torch.Generator().manual_seed(0)) < 0.8, 0)
    whole = estimate(name, inputs)
    monkeypatch.setattr(row_chunks, "__defaults__", (40,))
    for got, want in zip(estimate(name, replace(inputs)), whole, strict=True):
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)
