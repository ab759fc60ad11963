"""Fine-tuning on pairs: the loss is on the answer only, every pair has its turn, and it learns."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from async_rl.config.schema import SftConfig
from async_rl.data.prompt_set import PromptSet
from async_rl.data.row import Row
from async_rl.data.tokenizer import Tokenizer, save_character_tokenizer
from async_rl.errors import NonFiniteError
from learner.backend import StepResult
from learner.packing import PackedSequences
from learner.sft import MAX_SKIPPED, Pair, SftTrainer, epochs, make_pairs
from tests.learner.bigram_backend import BigramBackend

PAIRS = [
    Pair(token_ids=[3, 4, 5, 1], num_prompt_tokens=2),
    Pair(token_ids=[6, 7, 1], num_prompt_tokens=1),
    Pair(token_ids=[2, 8, 9, 10, 1], num_prompt_tokens=3),
]


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[StepResult] = []
        self.validations: list[tuple[int, float]] = []

    def said(self, message: str) -> None: ...

    def stepped(self, step: int, result: StepResult, num_tokens: int) -> None:
        assert step == len(self.steps) + 1
        self.steps.append(result)

    def validated(self, step: int, loss: float) -> None:
        self.validations.append((step, loss))


def config(**options: int) -> SftConfig:
    return SftConfig(**{"steps": 40, "batch_size": 3, "validate_every": 15, "micro_batch_tokens": 8} | options)  # type: ignore[arg-type]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    save_character_tokenizer("0123456789+=", tmp_path)
    return Tokenizer(tmp_path)


def test_a_pair_is_prompt_answer_and_end(tokenizer: Tokenizer) -> None:
    prompts = PromptSet.build([Row(prompt="1+2=", answer="3")], tokenizer, max_tokens=4).prompts
    (pair,) = make_pairs(prompts, tokenizer)
    assert tokenizer.decode(pair.token_ids) == "1+2=3"
    assert pair.token_ids[-1] == tokenizer.end_token_id
    assert list(pair.mask) == [False] * 4 + [True] * 2


def test_the_validation_loss_is_the_mean_over_answer_tokens() -> None:
    backend = BigramBackend()
    log_p = torch.log_softmax(backend.table.detach(), 1)
    answers = [(4, 5), (5, 1), (6, 7), (7, 1), (9, 10), (10, 1)]
    expected = -sum(float(log_p[last, token]) for last, token in answers) / len(answers)
    trainer = SftTrainer(config(), backend, Notes())
    assert trainer.validation_loss(PAIRS) == pytest.approx(expected, rel=1e-5)


def test_no_gradient_comes_from_the_prompt() -> None:
    backend = BigramBackend()
    SftTrainer(config(steps=1), backend, Notes()).train(PAIRS, [])
    assert (backend.gradient.abs().sum(1) > 0).tolist() == [n in {4, 5, 6, 7, 9, 10} for n in range(12)]


@pytest.mark.parametrize("max_tokens", [5, 7, 100])
def test_no_split_into_micro_batches_changes_the_step(max_tokens: int) -> None:
    backend, expected = BigramBackend(), BigramBackend()
    notes, expected_notes = Notes(), Notes()
    SftTrainer(config(steps=1, micro_batch_tokens=max_tokens), backend, notes).train(PAIRS, [])
    SftTrainer(config(steps=1, micro_batch_tokens=12), expected, expected_notes).train(PAIRS, [])
    assert notes.steps[0].loss == pytest.approx(expected_notes.steps[0].loss, abs=1e-7)
    torch.testing.assert_close(backend.gradient, expected.gradient, rtol=0, atol=1e-7)


def test_it_learns_and_is_validated_now_and_then_and_at_the_end() -> None:
    notes = Notes()
    SftTrainer(config(), BigramBackend(lr=2.0), notes).train(PAIRS, PAIRS)
    assert [step for step, _ in notes.validations] == [15, 30, 40]
    assert notes.validations[-1][1] < 0.3 < notes.steps[0].loss


def test_every_pair_has_its_turn_once_an_epoch_in_an_order_of_its_own() -> None:
    order = list(itertools.islice(epochs(50, seed=3, shuffle=True), 150))
    thirds = [order[0:50], order[50:100], order[100:150]]
    assert all(sorted(part) == list(range(50)) for part in thirds)
    assert len({tuple(part) for part in thirds}) == 3
    assert order == list(itertools.islice(epochs(50, seed=3, shuffle=True), 150))
    assert order[:50] != list(itertools.islice(epochs(50, seed=4, shuffle=True), 50))


def test_unshuffled_pairs_come_in_their_order() -> None:
    assert list(itertools.islice(epochs(3, seed=3, shuffle=False), 7)) == [0, 1, 2, 0, 1, 2, 0]


def test_a_loss_that_stays_not_finite_ends_it() -> None:
    backend, notes = BigramBackend(), Notes()
    with torch.no_grad():
        backend.table[:] = math.nan
    with pytest.raises(NonFiniteError):
        SftTrainer(config(), backend, notes).train(PAIRS, [])
    assert len(notes.steps) == MAX_SKIPPED
    assert all(step.skipped for step in notes.steps)


def test_a_first_token_is_never_an_answer() -> None:
    backend = BigramBackend()
    scores = backend.forward(PackedSequences.pack([p.token_ids for p in PAIRS]), 1.0)
    assert scores.logprobs[[0, 4, 7]].tolist() == [0.0, 0.0, 0.0]
