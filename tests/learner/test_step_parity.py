"""A learner's step on Megatron against the same step in plain transformers and torch."""

import math
from pathlib import Path

import pytest
import torch

from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import LearnerConfig, OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.objective import CorrectionConfig, LossConfig
from async_rl.config.schema import RunConfig
from async_rl.sizing.flops import ModelFlops
from async_rl.sizing.model_json import read_sizes
from learner.batch import TrainingBatch
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.roles import Roles
from learner.update import Updater
from tests.learner.conftest import SIZES, MakeReference
from tests.learner.groups import random_batch

TEMPERATURE = 0.9
ENTROPY_COEF = 0.01
CAP = 2.0

pytestmark = pytest.mark.integration


def batch() -> TrainingBatch:
    received = random_batch(
        num_groups=3, group_size=4, version=4, seed=11, vocabulary=int(str(SIZES["vocab_size"])), max_length=30
    )
    return TrainingBatch.build(received, mask_above=None)


def plain_step(model: torch.nn.Module, batch: TrainingBatch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients, one sequence after the other, every formula written out."""
    model.zero_grad()
    total = 0.0
    for row, sequence in enumerate(batch.sequences):
        siblings = torch.tensor([s.reward for s in batch.sequences if s.group == sequence.group])
        advantage = (sequence.reward - siblings.mean()) / (siblings.std() + 1e-6)
        length = sequence.response_length
        tokens = torch.from_numpy(sequence.token_ids).long()
        log_p = torch.log_softmax(model(tokens[None]).logits[0, :-1] / TEMPERATURE, -1)
        chosen = log_p.gather(1, tokens[1:, None])[:, 0]
        chosen, entropy = chosen[-length:], -(log_p.exp() * log_p).sum(-1)[-length:]
        weights = (chosen.detach() - batch.rollout_logprobs[row, :length]).exp().clamp(max=CAP)
        ratios = (chosen - chosen.detach()).exp()
        loss = (-weights * advantage * ratios - ENTROPY_COEF * entropy).sum()
        loss = loss / batch.num_trained_tokens
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def megatron_step(folder: Path, batch: TrainingBatch, *, max_tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    with Ground(seed=0, num_threads=1) as ground:
        backend = MegatronBackend(ground, ModelConfig(path=str(folder)), OptimizerConfig(), num_steps=1)
        updater = Updater(
            Roles(policy=backend),
            RunConfig(
                learner=LearnerConfig(micro_batch_tokens=max_tokens),
                loss=LossConfig(entropy_coef=ENTROPY_COEF),
                correction=CorrectionConfig(cap=CAP),
                generation=GenerationConfig(temperature=TEMPERATURE),
            ),
            flops=ModelFlops.of(read_sizes(folder)),
        )
        outcome = updater.update(batch, updater.score(batch))
        assert float((outcome.trained_tokens.ratios - 1).abs().max()) <= 1e-5
        return outcome.steps[0].loss, {name: gradient.clone() for name, gradient in backend.named_gradients()}


def test_one_step_equals_plain_transformers_and_no_split_changes_it(
    make_reference: MakeReference, tmp_path: Path
) -> None:
    model = make_reference("Qwen3ForCausalLM", tie_word_embeddings=True)
    loss, gradients = plain_step(model, batch())
    whole_loss, whole = megatron_step(tmp_path / "model", batch(), max_tokens=10_000)
    assert whole_loss == pytest.approx(loss, abs=1e-5)
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")  # type: ignore[misc]
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
    assert norm > 1e-2

    split_loss, split = megatron_step(tmp_path / "model", batch(), max_tokens=50)
    assert split_loss == pytest.approx(whole_loss, abs=1e-6)
    for name, gradient in split.items():
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-6)
