"""Every objective that a YAML file can name trains the quickstart's model on what a real engine sampled.

One learner on Megatron for all of them, put back to its first weights between two; five batches that vLLM sampled with
those weights, which are 0 to 4 versions old when they train.
"""

import asyncio
import math
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from async_rl.config.compose import load_run_config, load_sft_config
from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.objective import Aggregation, Estimator, KLEstimator, RatioLevel, Surrogate, Weighting
from async_rl.config.presets import load_presets
from async_rl.data.tasks.sorting import Sorting
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.protocol import Batch, Sampling, Trajectory, TrajectoryGroup
from async_rl.sizing.flops import ModelFlops
from async_rl.weights.shm import ShmWeightPublisher
from generators.engine import Engine, Sample
from generators.vllm_environment import prepare_for_vllm
from learner.batch import TrainingBatch
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.runtime import Ground
from learner.metrics import step_metrics
from learner.model_folder import create_model
from learner.roles import Roles
from learner.scoring import ScoringPlan
from learner.update import Updater

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Groups = list[TrajectoryGroup]
CONFIGS = Path(__file__).parents[2] / "configs"
NUM_BATCHES, GROUPS_PER_BATCH, GROUP_SIZE = 5, 4, 4
COMPONENTS = ["digits", "length"]
OPTIMIZER = OptimizerConfig(lr=1e-3)
FLOPS = ModelFlops(per_token=1000, per_scored_token=100, per_pair=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's shape, untrained."""
    folder = tmp_path_factory.mktemp("quickstart")
    shape = load_sft_config(CONFIGS / "quickstart-sft.yaml").new_model
    save_character_tokenizer(Sorting.alphabet, folder / "tokenizer")
    create_model(folder / "model", shape, tokenizer=folder / "tokenizer", seed=0)
    return folder / "model"


@pytest.fixture(scope="module")
def roles(model: Path) -> Iterator[Roles]:
    """Policy, reference and critic in one process."""
    where = ModelConfig(path=str(model))
    with ExitStack() as stack:
        ground = stack.enter_context(Ground(seed=0, num_threads=1))
        policy = MegatronBackend(ground, where, OPTIMIZER, num_steps=1000)
        stack.enter_context(closing(policy))
        reference = stack.enter_context(closing(MegatronBackend(ground, where, None, num_steps=0)))
        critic = stack.enter_context(closing(MegatronCritic(ground, where, OPTIMIZER, num_steps=1000)))
        yield Roles(policy=policy, reference=reference, critic=critic)


@pytest.fixture(scope="module")
def first_weights(roles: Roles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where policy and critic are put back to."""
    folder = tmp_path_factory.mktemp("first-weights")
    assert roles.critic is not None
    roles.policy.snapshot().write(folder / "policy")
    roles.critic.snapshot().write(folder / "critic")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def batches(model: Path, roles: Roles, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Groups]]:
    """Sampled by vLLM with the learner's first weights; later batches are older when they train."""
    if "vllm" not in sys.modules:
        prepare_for_vllm(None, tmp_path_factory.mktemp("vllm"))
    from generators.vllm_engine import VllmEngine

    generation = GenerationConfig(max_concurrent=32, kv_cache_gib=0.25, max_model_len=32, group_size=GROUP_SIZE)
    engine = VllmEngine(ModelConfig(path=str(model)), generation, seed=5)
    publisher = ShmWeightPublisher(f"test-objectives-{os.getpid()}")
    try:
        await engine.start()
        await engine.update_weights(publisher.publish(0, roles.policy.named_weights()))
        rows = Sorting().rows(is_held_out=False, count=NUM_BATCHES * GROUPS_PER_BATCH, seed=0)
        groups = await asyncio.gather(*(sample_group(engine, number, row.answer) for number, row in enumerate(rows)))
        yield [groups[n * GROUPS_PER_BATCH : (n + 1) * GROUPS_PER_BATCH] for n in range(NUM_BATCHES)]
    finally:
        await engine.close()
        publisher.close()


async def sample_group(engine: Engine, number: int, answer: str) -> TrajectoryGroup:
    """Samples of one prompt, and the greedy answer's reward."""
    prompt = [1 + (number + n) % 10 for n in range(6)]
    sampled = [
        trajectory(await engine.generate(f"{number}.{n}", prompt, Sampling(max_tokens=8))) for n in range(GROUP_SIZE)
    ]
    greedy = trajectory(await engine.generate(f"{number}.greedy", prompt, Sampling(max_tokens=8, temperature=0.0)))
    return TrajectoryGroup(
        group_id=number,
        attempt=0,
        incarnation="engine",
        prompt_id=number,
        task="sorting",
        prompt_token_ids=prompt,
        trajectories=sampled,
        baseline_reward=greedy.reward,
    )


def trajectory(sample: Sample) -> Trajectory:
    """With rewards that any model earns some of: tokens in order, and few of them."""
    rises = sum(a < b for a, b in zip(sample.token_ids, sample.token_ids[1:], strict=False)) / 8
    short = 1 - len(sample.token_ids) / 8
    return Trajectory.build(
        token_ids=sample.token_ids,
        rollout_logprobs=sample.logprobs,
        spans=sample.spans,
        reward=rises + short,
        finish_reason=sample.finish_reason,
        reward_components=[rises, short],
    )


OBJECTIVES = [
    *(f"advantage.estimator={e} correction.weighting=off" for e in Estimator),
    *(f"loss.surrogate={s} learner.epochs=2 loss.cov_share=0.1" for s in Surrogate),
    *(f"loss.aggregation={a}" for a in Aggregation),
    *(f"kl.coef=0.1 kl.estimator={e}" for e in KLEstimator),
    *(f"kl.coef=0.1 kl.estimator={e} kl.straight_through=true" for e in ("k1", "abs", "k2", "k3")),
    *(f"kl.coef=0.1 kl.estimator={e} kl.placement=reward" for e in ("k1", "abs", "k2", "k3")),
    "kl.coef=0.1 kl.controller=adaptive",
    *(f"correction.level={level} correction.weighting={w} correction.floor=0.5" for level in RatioLevel
      for w in Weighting),
    "correction.normalize=true correction.reject=[token_k1:0.5_2.0,seq_max_k2:4] correction.veto=1e-4",
    "reward.overlong_buffer=4 loss.entropy_coef=0.01",
    *(f"correction={preset.name}" for preset in load_presets()),
]  # fmt: skip


@pytest.mark.parametrize("options", OBJECTIVES)
async def test_an_objective_trains(
    options: str, model: Path, roles: Roles, first_weights: Path, batches: list[Groups]
) -> None:
    fixed = [f"model.path={model}", f"advantage.reward_components={COMPONENTS}".replace(" ", "")]
    config = load_run_config(CONFIGS / "quickstart.yaml", [*fixed, *options.split()])
    own = Roles(
        policy=roles.policy,
        reference=roles.reference if config.kl.coef > 0 else None,
        critic=roles.critic if ScoringPlan.of(config).values else None,
    )
    own.policy.load(first_weights / "policy")
    if own.critic is not None:
        own.critic.load(first_weights / "critic")
    updater = Updater(own, config, flops=FLOPS)
    before = weights(roles.policy)
    for version, groups in enumerate(batches):
        if config.correction.score_on_arrival and version == 0:
            updater.score_arrival(groups[0])
        batch = TrainingBatch.build(Batch.whole(version=version, groups=groups), mask_above=None)
        scores = updater.score(batch)
        outcome = updater.update(batch, scores)
        said = step_metrics(batch, scores, outcome, components=COMPONENTS).scalars
        wrong = {name: value for name, value in said.items() if not math.isfinite(value)}
        assert not wrong and not said["skipped"], wrong
    assert not torch.equal(weights(roles.policy), before)


def weights(policy: object) -> torch.Tensor:
    """All of a policy's, in a row."""
    assert isinstance(policy, MegatronBackend)
    return torch.cat([tensor.detach().flatten().clone() for _, tensor in policy.named_weights()])
