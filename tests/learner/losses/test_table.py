"""The table of surrogates, and the example by which the docs add one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from async_rl.config.objective import KLConfig, LossConfig, Surrogate
from learner.losses.aggregation import AGGREGATIONS
from learner.losses.policy_loss import PolicyTokens, policy_loss
from learner.losses.table import SURROGATES

DOCS = Path(__file__).resolve().parents[3] / "docs" / "objectives.md"


def test_every_word_of_the_config_is_in_the_table() -> None:
    assert set(SURROGATES) == {word.value for word in Surrogate}


def test_auto_stands_for_an_aggregation_that_exists() -> None:
    assert {kind.aggregation for kind in SURROGATES.values()} <= set(AGGREGATIONS)


def test_every_surrogate_is_in_the_docs() -> None:
    losses = DOCS.read_text().partition("## Losses")[2]
    assert [name for name in SURROGATES if f"| `{name}` |" not in losses] == []


@pytest.fixture
def restored_table() -> Iterator[None]:
    before = dict(SURROGATES)
    yield
    SURROGATES.clear()
    SURROGATES.update(before)


@pytest.mark.usefixtures("restored_table")
def test_the_example_of_the_docs_adds_a_surrogate() -> None:
    example = DOCS.read_text().partition("### Add a surrogate")[2].partition("```python\n")[2].partition("```")[0]
    words: dict[str, LossConfig] = {}
    exec(compile(example, DOCS.name, "exec"), words)
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    tokens = PolicyTokens(
        mask=torch.tensor([[True, False]]),
        row_scales=torch.ones(1, dtype=torch.float64),
        advantages=torch.tensor([[2.0, 2.0]]),
        weights=None,
        proximal_logprobs=torch.tensor([[-1.5, -1.5]]),
    )
    got = policy_loss(logprobs, None, tokens, words["config"], KLConfig())
    got.loss.backward()
    assert float(got.loss.detach()) == pytest.approx(-2 * torch.tensor(0.5).tanh().item())
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[pytest.approx(-2 * (1 - torch.tensor(0.5).tanh().item() ** 2)), 0.0]]
