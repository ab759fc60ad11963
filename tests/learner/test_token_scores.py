"""Scores and their gradients, against log_softmax and autograd in float64, in one piece and shared among ranks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner import output_layer
from learner.backend import TokenScores
from learner.output_layer import HiddenLogits, OutputLayer
from learner.token_scores import score_tokens
from learner.vocabulary import Gather, VocabularyShard

HIDDEN = 6


class Case(NamedTuple):
    """A policy and a reference on M tokens, and the weight that a loss gives each score."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    their_hidden: Tensor
    their_weight: Tensor
    loss_weights: Tensor
    temperature: float

    @classmethod
    def random(
        cls, num_tokens: int, vocab_size: int, *, temperature: float = 0.7, scale: float = 1.0, seed: int = 0
    ) -> "Case":
        """In float64."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        return cls(
            hidden=scale * normal(num_tokens, HIDDEN),
            weight=normal(vocab_size, HIDDEN),
            labels=torch.randint(0, vocab_size, (num_tokens,), generator=generator),
            their_hidden=scale * normal(num_tokens, HIDDEN // 2),
            their_weight=normal(vocab_size, HIDDEN // 2),
            loss_weights=normal(3, num_tokens),
            temperature=temperature,
        )

    def to(self, dtype: torch.dtype) -> "Case":
        """With numbers of another format."""
        return self._replace(
            hidden=self.hidden.to(dtype),
            weight=self.weight.to(dtype),
            their_hidden=self.their_hidden.to(dtype),
            their_weight=self.their_weight.to(dtype),
            loss_weights=self.loss_weights.to(dtype),
        )

    def loss(self, scores: TokenScores) -> Tensor:
        """Of every score that has a gradient."""
        assert scores.exact_kl is not None
        return (self.loss_weights * torch.stack([scores.logprobs, scores.entropy, scores.exact_kl])).sum()


@dataclass(frozen=True, kw_only=True)
class Result:
    scores: TokenScores
    of_hidden: Tensor
    of_weight: Tensor

    def furthest(self, other: "Result") -> float:
        """The largest difference, relative where numbers are large."""
        pairs = zip(self.numbers(), other.numbers(), strict=True)
        return max(float(((a - b).abs() / (1 + b.abs())).max()) for a, b in pairs if a.numel())

    def numbers(self) -> list[Tensor]:
        """Scores and gradients."""
        return [column.detach() for column in [*columns(self.scores), self.of_hidden, self.of_weight]]


def columns(scores: TokenScores) -> list[Tensor]:
    assert scores.sum_pi_squared is not None and scores.exact_kl is not None
    return [scores.logprobs, scores.entropy, scores.sum_pi_squared, scores.exact_kl]


def naive(case: Case) -> Result:
    """By their definitions, from all logits at once, in the case's own format."""
    hidden, weight = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
    logp = torch.log_softmax(hidden @ weight.t() / case.temperature, dim=-1)
    log_q = torch.log_softmax(case.their_hidden @ case.their_weight.t() / case.temperature, dim=-1)
    scores = TokenScores(
        logprobs=logp.gather(-1, case.labels[:, None])[:, 0],
        entropy=-(logp.exp() * logp).sum(-1),
        sum_pi_squared=logp.exp().square().sum(-1),
        exact_kl=(logp.exp() * (logp - log_q)).sum(-1),
    )
    of_hidden, of_weight = torch.autograd.grad(case.loss(scores), (hidden, weight))
    return Result(scores=scores, of_hidden=of_hidden, of_weight=of_weight)


def scored(case: Case, shard: VocabularyShard, num_rows: int) -> Result:
    """What `score_tokens` says on one rank with so many rows of the weight, padding included; its gradients' parts."""

    def part(weight: Tensor) -> Tensor:
        mine = weight.new_full((num_rows, weight.shape[1]), torch.nan)
        mine[: shard.size] = weight[shard.first : shard.first + shard.size]
        return mine

    hidden, weight = case.hidden.clone().requires_grad_(), part(case.weight).requires_grad_()
    theirs = OutputLayer(weight=part(case.their_weight), vocabulary=shard)
    scores = score_tokens(
        hidden,
        OutputLayer(weight=weight, vocabulary=shard),
        case.labels,
        temperature=case.temperature,
        with_sum_pi_squared=True,
        reference=HiddenLogits(hidden=case.their_hidden, layer=theirs),
    )
    of_hidden, of_weight = torch.autograd.grad(case.loss(scores), (hidden, weight))
    return Result(scores=scores, of_hidden=of_hidden, of_weight=of_weight)


def whole(case: Case) -> Result:
    size = case.weight.shape[0]
    return scored(case, VocabularyShard.whole(size), size)


def shared(case: Case, num_ranks: int, num_rows: int) -> Result:
    """The same by several ranks, each a thread, whose gradients' parts are put together."""
    barrier, said = Barrier(num_ranks, timeout=30), [torch.empty(0)] * num_ranks

    def gather_of(rank: int) -> Gather:
        def gather(mine: Tensor) -> Tensor:
            said[rank] = mine
            barrier.wait()
            everyone = torch.stack(said)
            barrier.wait()
            return everyone

        return gather

    def on_rank(rank: int) -> tuple[Result, int]:
        shard = VocabularyShard.of_rank(
            rank, num_rows=num_rows, vocab_size=case.weight.shape[0], gather=gather_of(rank)
        )
        return scored(case, shard, num_rows), shard.size

    with ThreadPoolExecutor(num_ranks) as pool:
        results = list(pool.map(on_rank, range(num_ranks)))
    for result, size in results:
        pairs = zip(columns(result.scores), columns(results[0][0].scores), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), "ranks disagree"
        assert result.of_weight[size:].eq(0).all(), "padding has a gradient"
    return Result(
        scores=results[0][0].scores,
        of_hidden=torch.stack([result.of_hidden for result, _ in results]).sum(0),
        of_weight=torch.cat([result.of_weight[:size] for result, size in results]),
    )


def assert_as_good_as_float32(found: Result, case: Case) -> None:
    """Only so far from the exact numbers as float32 comes by their definitions, give or take a rounding or two."""
    rounded = case.to(torch.float32)
    exact = naive(rounded.to(torch.float64))
    assert found.furthest(exact) < 3 * naive(rounded).furthest(exact) + 1e-6


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """(rows, words) → tiles of that size."""
    return lambda rows, words: monkeypatch.setattr(output_layer, "CPU_TILE", (rows, words))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("tile", [(1, 1), (4, 7), (512, 1024)])
def test_scores_and_gradients_are_exact(
    small_tiles: Callable[[int, int], None], temperature: float, tile: tuple[int, int]
) -> None:
    case = Case.random(11, 29, temperature=temperature, scale=2.0)
    small_tiles(*tile)
    assert whole(case).furthest(naive(case)) < 1e-12
    assert_as_good_as_float32(whole(case.to(torch.float32)), case)


@given(
    num_tokens=st.integers(0, 9),
    vocab_size=st.integers(2, 23),
    num_ranks=st.integers(1, 4),
    spare_rows=st.integers(0, 5),
    temperature=st.floats(0.2, 3.0),
    scale=st.floats(0.0, 30.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_any_share_of_the_vocabulary_gives_the_same(
    num_tokens: int, vocab_size: int, num_ranks: int, spare_rows: int, temperature: float, scale: float, seed: int
) -> None:
    case = Case.random(num_tokens, vocab_size, temperature=temperature, scale=scale, seed=seed)
    # With spare rows the last ranks may have no true word at all.
    num_rows = -(-vocab_size // num_ranks) + spare_rows
    assert shared(case, num_ranks, num_rows).furthest(naive(case)) < 1e-9


def test_two_ranks_agree_with_one_in_float32() -> None:
    case = Case.random(300, 5000, scale=2.0)
    assert_as_good_as_float32(shared(case.to(torch.float32), 2, 2560), case)


@pytest.mark.parametrize("used", ["logprobs", "entropy", "exact_kl"])
def test_each_score_has_its_own_gradient(used: str) -> None:
    case = Case.random(5, 7)
    weights = torch.zeros(3, 5, dtype=torch.float64)
    weights[["logprobs", "entropy", "exact_kl"].index(used)] = case.loss_weights[0]
    case = case._replace(loss_weights=weights)
    hidden = case.hidden.clone().requires_grad_()
    layer = OutputLayer(weight=case.weight, vocabulary=VocabularyShard.whole(7))
    reference = HiddenLogits(
        hidden=case.their_hidden, layer=OutputLayer(weight=case.their_weight, vocabulary=layer.vocabulary)
    )
    scores = score_tokens(hidden, layer, case.labels, temperature=case.temperature, reference=reference)
    (gradient,) = torch.autograd.grad(weights.sum(0) @ getattr(scores, used), hidden)
    assert (gradient - naive(case).of_hidden).abs().max() < 1e-12


def test_no_tokens_have_no_loss_and_a_gradient_of_nothing() -> None:
    case = Case.random(0, 7)
    for result in (whole(case), shared(case, 2, 4)):
        assert all(column.shape == (0,) for column in columns(result.scores))
        assert result.of_hidden.shape == (0, HIDDEN) and result.of_weight.eq(0).all()


def test_what_was_not_asked_for_is_not_there() -> None:
    case = Case.random(9, 7)
    layer = OutputLayer(weight=case.weight, vocabulary=VocabularyShard.whole(7))
    found = score_tokens(case.hidden, layer, case.labels, temperature=1.0)
    assert found.sum_pi_squared is None and found.exact_kl is None


def test_sum_pi_squared_has_no_gradient() -> None:
    case = Case.random(9, 7)
    layer = OutputLayer(weight=case.weight.requires_grad_(), vocabulary=VocabularyShard.whole(7))
    found = score_tokens(case.hidden, layer, case.labels, temperature=1.0, with_sum_pi_squared=True)
    assert found.sum_pi_squared is not None and not found.sum_pi_squared.requires_grad
    assert found.logprobs.requires_grad


def test_logits_are_made_a_tile_at_a_time(small_tiles: Callable[[int, int], None]) -> None:
    largest = 0

    class Watched(HiddenLogits):
        def tile(self, rows: slice, words: slice) -> Tensor:
            nonlocal largest
            logits = super().tile(rows, words)
            largest = max(largest, logits.numel())
            return logits

    case = Case.random(40, 30)
    small_tiles(4, 8)
    hidden = case.hidden.clone().requires_grad_()
    layer = OutputLayer(weight=case.weight, vocabulary=VocabularyShard.whole(30))
    reference = Watched(
        hidden=case.their_hidden, layer=OutputLayer(weight=case.their_weight, vocabulary=layer.vocabulary)
    )
    found = score_tokens(hidden, layer, case.labels, temperature=1.0, reference=reference)
    assert found.exact_kl is not None
    found.exact_kl.sum().backward()
    assert largest == 32


def test_a_policy_has_no_kl_to_itself() -> None:
    case = Case.random(9, 50, scale=5.0).to(torch.float32)
    hidden = case.hidden.clone().requires_grad_()
    layer = OutputLayer(weight=case.weight, vocabulary=VocabularyShard.whole(50))
    found = score_tokens(
        hidden, layer, case.labels, temperature=0.5, reference=HiddenLogits(hidden=hidden.detach(), layer=layer)
    ).exact_kl
    assert found is not None
    found.sum().backward()
    assert found.detach().abs().max() < 1e-6
    assert hidden.grad is not None and hidden.grad.abs().max() < 1e-5


def test_certain_and_impossible_words_stay_finite() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e4, 3e4, 3e4]])
    theirs = torch.tensor([[-1e4, 1e4, 0.0], [0.0, 0.0, 1e4]])
    # A weight of ones on the diagonal leaves hidden states as they are.
    leaf, layer = logits.requires_grad_(), OutputLayer(weight=torch.eye(3), vocabulary=VocabularyShard.whole(3))
    found = score_tokens(
        leaf,
        layer,
        torch.tensor([1, 1]),
        temperature=1.0,
        with_sum_pi_squared=True,
        reference=HiddenLogits(hidden=theirs, layer=layer),
    )
    assert found.logprobs.tolist() == pytest.approx([-2e4, -0.6931472])
    assert found.entropy.tolist() == pytest.approx([0.0, 0.6931472])
    assert found.exact_kl is not None and found.sum_pi_squared is not None
    assert found.exact_kl.tolist() == pytest.approx([2e4, 5e3 - 0.6931472])
    assert found.sum_pi_squared.tolist() == pytest.approx([1.0, 0.5])
    (found.logprobs + found.entropy + found.exact_kl).sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_show(broken: float) -> None:
    hidden = torch.ones(2, 3)
    hidden[1, 1] = broken
    layer = OutputLayer(weight=torch.eye(3), vocabulary=VocabularyShard.whole(3))
    found = score_tokens(hidden, layer, torch.tensor([0, 0]), temperature=1.0)
    assert found.logprobs.isfinite().tolist() == [True, False]


def test_bfloat16_states_are_scored_in_float32() -> None:
    case = Case.random(40, 50).to(torch.bfloat16)
    layer = OutputLayer(weight=case.weight, vocabulary=VocabularyShard.whole(50))
    found = score_tokens(case.hidden, layer, case.labels, temperature=1.0)
    # The product is made in bfloat16: what follows is not.
    logits = (case.hidden @ case.weight.t()).double()
    expected = torch.log_softmax(logits, -1).gather(1, case.labels[:, None])[:, 0]
    assert found.logprobs.dtype == torch.float32
    assert (found.logprobs - expected).abs().max() < 2e-6


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    case = Case.random(40, 50).to(torch.bfloat16)
    total = torch.zeros(50, HIDDEN)
    weight = case.weight.requires_grad_()
    layer = OutputLayer(weight=weight, vocabulary=VocabularyShard.whole(50), gradient=total)
    exact = torch.zeros(50, HIDDEN, dtype=torch.float64)
    for start in range(0, 40, 2):
        rows = slice(start, start + 2)
        found = score_tokens(case.hidden[rows], layer, case.labels[rows], temperature=1.0)
        found.logprobs.sum().backward()
        assert weight.grad is not None and weight.grad.eq(0).all()
        p = torch.softmax((case.hidden[rows] @ weight.detach().t()).double(), -1)
        of_logits = torch.nn.functional.one_hot(case.labels[rows], 50) - p
        exact += of_logits.t() @ case.hidden[rows].double()
    # Each product is rounded to bfloat16, their sum is not.
    assert (total - exact).abs().max() < 0.02 * exact.abs().max()
