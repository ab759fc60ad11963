"""The backend against plain transformers and torch on the same batch."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from async_rl.config.learner import OptimizerConfig, Schedule
from async_rl.config.model import Dtype, ModelConfig
from async_rl.errors import ModelError
from learner.backend import LossFunction, TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from tests.learner.conftest import MakeReference
from tests.learner.megatron.conftest import OpenBackend

pytestmark = pytest.mark.integration

LENGTHS = (9, 33, 1, 20, 27, 12, 40, 5)
NUM_SCORED = sum(n - 1 for n in LENGTHS)
TEMPERATURE = 0.8

# Adam divides gradients near zero by eps, which would blow rounding up; clipping is made to bite.
PARITY = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.05)
UNCLIPPED = OptimizerConfig(clip_grad_norm=0.0)


class Batch:
    """Sequences with what a PPO-like loss needs of scored tokens: advantages of both signs, old log-probabilities."""

    def __init__(self, reference: PreTrainedModel) -> None:
        rng = np.random.default_rng(1)
        self.sequences = [rng.integers(0, 67, n) for n in LENGTHS]
        self.advantages = [torch.full((n - 1,), rng.normal()) for n in LENGTHS]
        with torch.no_grad():
            scores = [score_plainly(reference, torch.from_numpy(tokens)) for tokens in self.sequences]
        self.old = [s.logprobs + torch.from_numpy(rng.normal(scale=0.3, size=len(s.logprobs))).float() for s in scores]

    def split(self, *plan: tuple[int, ...]) -> tuple[list[PackedSequences], LossFunction]:
        """Micro-batches by a plan of indices, and their loss."""
        micro_batches = [PackedSequences.pack([self.sequences[i] for i in part]) for part in plan]
        advantages = [torch.cat([self.advantages[i] for i in part]) for part in plan]
        old = [torch.cat([self.old[i] for i in part]) for part in plan]
        return micro_batches, lambda scores, index: ppo_loss(scores, advantages[index], old[index])


def ppo_loss(scores: TokenScores, advantages: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Clipped surrogate with an entropy bonus, divided by the scored tokens of the whole batch."""
    ratio = (scores.logprobs - old).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    return -(surrogate + 0.01 * scores.entropy).sum() / NUM_SCORED


def score_plainly(model: PreTrainedModel, tokens: torch.Tensor) -> TokenScores:
    """[t − 1]: all tokens of a sequence but the first, by transformers and log_softmax."""
    logp = torch.log_softmax(model(tokens[None]).logits[0, :-1] / TEMPERATURE, dim=-1)
    return TokenScores(
        logprobs=logp.gather(1, tokens[1:, None])[:, 0],
        entropy=-(logp.exp() * logp).sum(-1),
    )


def plain_gradient(model: PreTrainedModel, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    total = torch.zeros(())
    for tokens, advantages, old in zip(batch.sequences, batch.advantages, batch.old, strict=True):
        scores = score_plainly(model, torch.from_numpy(tokens))
        total = total + ppo_loss(scores, advantages, old)
    total.backward()
    return float(total.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def weights_of(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in backend.named_weights()}


def furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(float((tensor - expected[name]).detach().abs().max()) for name, tensor in found.items())


ALL = tuple(range(len(LENGTHS)))


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("tie", [True, False])
def test_a_step_is_that_of_plain_torch(
    make_reference: MakeReference, open_backend: OpenBackend, architecture: str, tie: bool
) -> None:
    reference = make_reference(architecture, tie_word_embeddings=tie)
    batch = Batch(reference)
    micro_batches, loss = batch.split(ALL[:3], ALL[3:4], ALL[4:])
    expected_loss, expected_gradient = plain_gradient(reference, batch)

    raw = open_backend(UNCLIPPED)
    result = raw.step(micro_batches, loss, temperature=TEMPERATURE)
    assert result.loss == pytest.approx(expected_loss, abs=1e-5)
    assert furthest(dict(raw.named_gradients()), expected_gradient) < 1e-5
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in expected_gradient.values()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)

    backend = open_backend(PARITY)
    result = backend.step(micro_batches, loss, temperature=TEMPERATURE)
    assert result.grad_norm == pytest.approx(norm, rel=1e-5) and norm > 2 * PARITY.clip_grad_norm
    torch.nn.utils.clip_grad_norm_(reference.parameters(), PARITY.clip_grad_norm)
    matrices = [p for p in reference.parameters() if p.ndim > 1]
    vectors = [p for p in reference.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(
        groups,
        lr=PARITY.lr,
        betas=(PARITY.beta1, PARITY.beta2),
        eps=PARITY.eps,
        weight_decay=PARITY.weight_decay,
    ).step()
    assert furthest(dict(backend.named_weights()), dict(reference.named_parameters())) < 1e-6


def test_micro_batches_change_neither_loss_nor_gradient(
    make_reference: MakeReference, open_backend: OpenBackend
) -> None:
    batch = Batch(make_reference())
    splits = [(ALL,), tuple((i,) for i in reversed(ALL)), (ALL[::2], ALL[1::2])]
    losses, gradients = [], []
    for split in splits:
        backend = open_backend(UNCLIPPED)
        losses.append(backend.step(*batch.split(*split), temperature=TEMPERATURE).loss)
        gradients.append({name: g.clone() for name, g in backend.named_gradients()})
    for loss, gradient in zip(losses[1:], gradients[1:], strict=True):
        assert abs(loss - losses[0]) < 1e-6
        assert furthest(gradient, gradients[0]) < 1e-6


def test_scores_are_those_of_transformers(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    reference = make_reference()
    batch = Batch(reference)
    packed = [PackedSequences.pack(batch.sequences[:3]), PackedSequences.pack(batch.sequences[3:])]
    scores = open_backend(None).score(packed, temperature=TEMPERATURE)
    with torch.no_grad():
        expected = [score_plainly(reference, torch.from_numpy(tokens)) for tokens in batch.sequences]
    for name in ("logprobs", "entropy"):
        found = torch.cat([getattr(s, name) for s in scores])
        assert (found - torch.cat([getattr(s, name) for s in expected])).abs().max() < 1e-5


def test_a_step_sees_the_scores_that_score_gives(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    make_reference()
    packed = PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]])
    backend = open_backend(OptimizerConfig())
    seen: list[torch.Tensor] = []

    def loss(scores: TokenScores, index: int) -> torch.Tensor:
        seen.append(scores.logprobs.detach().clone())
        return scores.logprobs.sum()

    before = backend.score([packed], temperature=1.0)[0]
    backend.step([packed], loss, temperature=1.0)
    assert torch.equal(seen[0], before.logprobs)


def scaled(factor: float) -> LossFunction:
    return lambda scores, index: factor * scores.logprobs.mean()


def root_of_nothing(scores: TokenScores, index: int) -> torch.Tensor:
    """A finite loss whose gradient is not."""
    return (0.0 * scores.logprobs.sum()).sqrt()


@pytest.mark.parametrize("broken", [scaled(math.nan), scaled(math.inf), root_of_nothing])
def test_a_step_that_is_not_finite_changes_nothing(
    make_reference: MakeReference, open_backend: OpenBackend, broken: LossFunction
) -> None:
    make_reference()
    packed = PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]])
    config = OptimizerConfig(schedule=Schedule.linear, warmup_steps=2)
    straight, stumbling = open_backend(config), open_backend(config)
    for backend in (straight, stumbling):
        backend.step([packed], scaled(1.0), temperature=1.0)
    before = weights_of(stumbling)
    result = stumbling.step([packed, packed], broken, temperature=1.0)
    assert result.skipped
    assert furthest(weights_of(stumbling), before) == 0.0
    assert stumbling.step([packed], scaled(1.0), temperature=1.0) == straight.step(
        [packed], scaled(1.0), temperature=1.0
    )
    assert furthest(weights_of(stumbling), weights_of(straight)) == 0.0


def test_one_broken_micro_batch_skips_the_whole_step(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    make_reference()
    packed = PackedSequences.pack([[1, 2, 3]])
    backend = open_backend(OptimizerConfig())
    result = backend.step(
        [packed, packed], lambda scores, index: scores.logprobs.sum() * (math.nan if index else 1.0), temperature=1.0
    )
    assert result.skipped and math.isnan(result.loss)


def test_a_loss_of_nothing_is_a_step_with_gradient_zero(
    make_reference: MakeReference, open_backend: OpenBackend
) -> None:
    make_reference()
    backend = open_backend(OptimizerConfig())
    result = backend.step([PackedSequences.pack([[1]])], lambda scores, index: torch.zeros(()), temperature=1.0)
    assert (result.loss, result.grad_norm, result.skipped) == (0.0, 0.0, False)


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "expected"),
    [
        (Schedule.constant, 0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.constant, 4, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]),
        (Schedule.constant, 20, [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
        (Schedule.linear, 0, [1.0, 0.85, 0.7, 0.55, 0.4, 0.25]),
        (Schedule.linear, 2, [0.5, 1.0, 0.82, 0.64, 0.46, 0.28]),
        (Schedule.cosine, 0, [1.0, 0.93971, 0.775, 0.55, 0.325, 0.16029]),
    ],
)
def test_the_learning_rate_follows_the_schedule(
    make_reference: MakeReference,
    open_backend: OpenBackend,
    schedule: Schedule,
    warmup_steps: int,
    expected: list[float],
) -> None:
    make_reference()
    config = OptimizerConfig(lr=1.0, min_lr=0.1, schedule=schedule, warmup_steps=warmup_steps)
    backend = open_backend(config, num_steps=6)
    packed = PackedSequences.pack([[1, 2]])
    rates = [backend.step([packed], scaled(1.0), temperature=1.0).lr for _ in range(6)]
    assert rates == pytest.approx(expected, abs=1e-5)


def test_a_rate_that_is_stable_for_long_falls_in_the_last_steps(
    make_reference: MakeReference, open_backend: OpenBackend
) -> None:
    make_reference()
    config = OptimizerConfig(lr=1.0, min_lr=0.1, schedule=Schedule.wsd, warmup_share=0.3, decay_share=0.5)
    backend = open_backend(config, num_steps=6)
    packed = PackedSequences.pack([[1, 2]])
    rates = [backend.step([packed], scaled(1.0), temperature=1.0).lr for _ in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.7, 0.4], abs=1e-5)


def test_policy_and_reference_live_in_one_process(make_reference: MakeReference, open_backend: OpenBackend) -> None:
    make_reference()
    packed = PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]])
    policy, frozen = open_backend(OptimizerConfig(lr=1e-2)), open_backend(None)
    before = frozen.score([packed], temperature=1.0)[0]
    assert torch.equal(policy.score([packed], temperature=1.0)[0].logprobs, before.logprobs)
    policy.step([packed], scaled(1.0), temperature=1.0)
    assert torch.equal(frozen.score([packed], temperature=1.0)[0].logprobs, before.logprobs)
    assert not torch.equal(policy.score([packed], temperature=1.0)[0].logprobs, before.logprobs)


def test_an_exported_folder_loads_in_transformers(
    make_reference: MakeReference, open_backend: OpenBackend, tmp_path: Path
) -> None:
    reference = make_reference()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    backend = open_backend(OptimizerConfig(lr=1e-2))
    backend.export(tmp_path / "before")
    packed = PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]])
    backend.step([packed], scaled(1.0), temperature=1.0)
    backend.export(tmp_path / "after")
    untouched = AutoModelForCausalLM.from_pretrained(tmp_path / "before").state_dict()
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in reference.state_dict().items())
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "after")
    with torch.no_grad():
        logits = trained(torch.tensor([[4, 5, 6, 7]])).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor([[5], [6], [7]]))[:, 0]
    found = backend.score([packed], temperature=1.0)[0].logprobs[2:]
    assert (found - expected).abs().max() < 1e-5
    assert (tmp_path / "after" / "tokenizer.json").is_file()


def test_bfloat16_trains_on_float32_main_weights(
    make_reference: MakeReference, open_backend: OpenBackend, tmp_path: Path
) -> None:
    make_reference()
    backend = open_backend(OptimizerConfig(lr=1e-2), dtype=Dtype.bfloat16)
    packed = PackedSequences.pack([[1, 2, 3], [4, 5, 6, 7]])
    losses = [backend.step([packed], scaled(-1.0), temperature=1.0).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    assert {tensor.dtype for _, tensor in backend.named_weights()} == {torch.bfloat16}


def test_a_process_may_make_another_ground_after_the_last_is_closed(
    make_reference: MakeReference, tmp_path: Path
) -> None:
    make_reference()
    packed = PackedSequences.pack([[1, 2, 3]])
    results = []
    for _ in range(2):
        with Ground(seed=0, num_threads=1) as ground:
            backend = MegatronBackend(ground, ModelConfig(path=str(tmp_path / "model")), OptimizerConfig(), num_steps=3)
            results.append(backend.step([packed], scaled(1.0), temperature=1.0))
    assert results[0] == results[1]


def test_a_folder_that_cannot_be_loaded_leaves_the_process_usable(
    make_reference: MakeReference, open_backend: OpenBackend, tmp_path: Path
) -> None:
    make_reference()
    make_reference(folder="mixed", hidden_size=128)
    shutil.copyfile(tmp_path / "model" / "model.safetensors", tmp_path / "mixed" / "model.safetensors")
    with pytest.raises(ModelError, match="asks for shape"):
        open_backend(None, folder="mixed")
    open_backend(None).score([PackedSequences.pack([[1, 2, 3]])], temperature=1.0)
