"""The critic against plain transformers and torch on the same batch, and across a restart."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from async_rl.config.learner import OptimizerConfig, Schedule
from async_rl.config.model import Dtype, ModelConfig
from async_rl.errors import ModelError
from learner.backend import ValueLoss
from learner.megatron.critic import MegatronCritic
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from tests.learner.conftest import MakeReference
from tests.learner.megatron.conftest import OpenBackend

pytestmark = pytest.mark.integration

OpenCritic = Callable[..., MegatronCritic]

LENGTHS = (9, 33, 1, 20, 27)
# Adam divides gradients near zero by eps, which would blow rounding up.
PARITY = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.5)

rng = np.random.default_rng(4)
SEQUENCES = [rng.integers(0, 67, n) for n in LENGTHS]
RETURNS = [torch.from_numpy(rng.normal(size=n - 1)).float() for n in LENGTHS]
PACKED = [PackedSequences.pack(SEQUENCES)]
NUM_SCORED = PACKED[0].num_scored_tokens
ALL = tuple(range(len(LENGTHS)))


@pytest.fixture
def open_critic(ground: Ground, tmp_path: Path) -> Iterator[OpenCritic]:
    """(optimizer, *, folder="model", dtype=float32) → a critic on tmp_path/folder."""
    with ExitStack() as stack:

        def open_(optimizer: OptimizerConfig, *, folder: str = "model", dtype: Dtype = Dtype.float32) -> MegatronCritic:
            model = ModelConfig(path=str(tmp_path / folder), dtype=dtype)
            critic = MegatronCritic(ground, model, optimizer, num_steps=10)
            stack.callback(critic.close)
            return critic

        yield open_


def split(*plan: tuple[int, ...]) -> tuple[list[PackedSequences], ValueLoss]:
    """Micro-batches by a plan of indices, and their squared error, divided by the scored tokens of the whole batch."""
    micro_batches = [PackedSequences.pack([SEQUENCES[i] for i in part]) for part in plan]
    returns = [torch.cat([RETURNS[i] for i in part]) for part in plan]
    return micro_batches, lambda values, index: (values - returns[index]).square().sum() / NUM_SCORED


class PlainCritic:
    """transformers' body, a zero row above it, and torch's AdamW."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.body = model.model
        self.head = torch.zeros(1, model.config.hidden_size, requires_grad=True)
        parameters = [*self.body.parameters(), self.head]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=PARITY.lr,
            betas=(PARITY.beta1, PARITY.beta2),
            eps=PARITY.eps,
            weight_decay=PARITY.weight_decay,
        )
        self.parameters = parameters

    def values(self) -> list[Tensor]:
        values = []
        for tokens in SEQUENCES:
            hidden = self.body(torch.from_numpy(tokens)[None]).last_hidden_state[0]
            values.append((hidden @ self.head[0])[:-1])
        return values

    def step(self) -> float:
        self.optimizer.zero_grad()
        errors = [(v - r).square().sum() for v, r in zip(self.values(), RETURNS, strict=True)]
        loss = sum(errors, torch.zeros(())) / NUM_SCORED
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, PARITY.clip_grad_norm)
        self.optimizer.step()
        return float(loss.detach())


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "LlamaForCausalLM"])
@pytest.mark.parametrize("tie", [True, False])
def test_steps_and_values_are_those_of_plain_torch(
    make_reference: MakeReference, open_critic: OpenCritic, architecture: str, tie: bool
) -> None:
    plain = PlainCritic(make_reference(architecture, tie_word_embeddings=tie))
    critic = open_critic(PARITY)
    micro_batches, loss = split(ALL[:2], ALL[2:])
    # The body moves from the second step on, when the head is no longer 0.
    for _ in range(4):
        assert critic.step(micro_batches, loss).loss == pytest.approx(plain.step(), rel=1e-5)
    values = critic.values(PACKED)[0]
    assert values.dtype == torch.float32 and values.abs().max() > 0.1
    assert (values - torch.cat(plain.values())).abs().max() < 1e-5


def test_values_are_zero_before_the_first_step(make_reference: MakeReference, open_critic: OpenCritic) -> None:
    make_reference()
    assert open_critic(PARITY).values(PACKED)[0].tolist() == [0.0] * NUM_SCORED


def test_a_step_sees_the_values_that_values_gives(make_reference: MakeReference, open_critic: OpenCritic) -> None:
    make_reference()
    critic = open_critic(PARITY)
    critic.step(*split(ALL))
    before, seen = critic.values(PACKED)[0], []

    def loss(values: Tensor, index: int) -> Tensor:
        seen.append(values.detach().clone())
        return values.sum()

    critic.step(PACKED, loss)
    assert torch.equal(seen[0], before)


def test_micro_batches_do_not_change_a_step(make_reference: MakeReference, open_critic: OpenCritic) -> None:
    make_reference()
    values = []
    for plan in ((ALL,), tuple((i,) for i in reversed(ALL))):
        critic = open_critic(PARITY)
        for _ in range(3):
            critic.step(*split(*plan))
        values.append(critic.values(PACKED)[0])
    assert (values[0] - values[1]).abs().max() < 1e-6


def test_a_step_that_is_not_finite_changes_nothing(make_reference: MakeReference, open_critic: OpenCritic) -> None:
    make_reference()
    critic = open_critic(PARITY)
    critic.step(*split(ALL))
    before = critic.values(PACKED)[0]
    result = critic.step(PACKED, lambda values, index: values.sum() * math.nan)
    assert result.skipped
    assert torch.equal(critic.values(PACKED)[0], before)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_training_goes_on_bit_for_bit_after_a_restart(
    make_reference: MakeReference, open_critic: OpenCritic, tmp_path: Path, dtype: Dtype
) -> None:
    make_reference()
    config = OptimizerConfig(lr=1e-2, schedule=Schedule.cosine, warmup_steps=3, weight_decay=0.1)
    critic = open_critic(config, dtype=dtype)
    for _ in range(3):
        critic.step(*split(ALL[:2], ALL[2:]))
    critic.snapshot().write(tmp_path / "checkpoint")
    expected = critic.step(*split(ALL))
    resumed = open_critic(config, dtype=dtype)
    resumed.load(tmp_path / "checkpoint")
    assert resumed.step(*split(ALL)) == expected
    assert torch.equal(resumed.values(PACKED)[0], critic.values(PACKED)[0])


def test_a_bfloat16_body_gives_float32_values(make_reference: MakeReference, open_critic: OpenCritic) -> None:
    make_reference()
    critic = open_critic(OptimizerConfig(lr=1e-2), dtype=Dtype.bfloat16)
    losses = [critic.step(*split(ALL)).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    values = critic.values(PACKED)[0]
    assert values.dtype == torch.float32 and not torch.equal(values, values.bfloat16().float())


def test_policy_and_critic_do_not_touch_each_other(
    make_reference: MakeReference, open_backend: OpenBackend, open_critic: OpenCritic
) -> None:
    make_reference()
    policy, critic = open_backend(OptimizerConfig(lr=1e-2)), open_critic(PARITY)
    scores = policy.score(PACKED, temperature=1.0)[0].logprobs
    for _ in range(2):
        critic.step(*split(ALL))
    assert torch.equal(policy.score(PACKED, temperature=1.0)[0].logprobs, scores)
    values = critic.values(PACKED)[0]
    policy.step(PACKED, lambda scores, index: -scores.logprobs.mean(), temperature=1.0)
    assert torch.equal(critic.values(PACKED)[0], values)


def test_the_checkpoint_of_a_policy_is_refused(
    make_reference: MakeReference, open_backend: OpenBackend, open_critic: OpenCritic, tmp_path: Path
) -> None:
    make_reference(tie_word_embeddings=False)
    open_backend(OptimizerConfig()).snapshot().write(tmp_path / "checkpoint")
    with pytest.raises(ModelError, match="cannot be read"):
        open_critic(PARITY).load(tmp_path / "checkpoint")
