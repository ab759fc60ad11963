"""N batches, kill -9, resumed from the last checkpoint: to the bit what N batches without are."""

import os
import signal
from pathlib import Path

import pytest

from async_rl.checksums import Manifest, damage, torn
from async_rl.config.learner import CriticConfig, LearnerConfig, OptimizerConfig, Schedule
from async_rl.config.model import ModelConfig
from async_rl.config.objective import AdvantageConfig, Estimator, KLConfig, KLController
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import RunConfig
from async_rl.protocol import Batch
from async_rl.sizing.flops import ModelFlops
from async_rl.sizing.model_json import read_sizes
from learner.batch import TrainingBatch
from learner.checkpoint_check import check_checkpoint
from learner.checkpoint_writer import CheckpointWriter
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.place import Place
from learner.roles import Roles
from learner.update import Updater
from tests.learner.conftest import MakeReference
from tests.learner.groups import random_groups
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

NUM_BATCHES = 6
EVERY = 2
KILLED_AT = 5
OPTIMIZER = OptimizerConfig(lr=1e-2, schedule=Schedule.cosine, warmup_steps=3, weight_decay=0.1)
CONFIG = RunConfig(
    steps=NUM_BATCHES,
    learner=LearnerConfig(groups_per_step=2, micro_batch_tokens=64, mini_batches=2, optimizer=OPTIMIZER),
    advantage=AdvantageConfig(estimator=Estimator.gae),
    critic=CriticConfig(optimizer=OPTIMIZER),
    kl=KLConfig(coef=0.1, controller=KLController.adaptive, target=1e-3, horizon=50),
)
NUM_STEPS = 2 * NUM_BATCHES


def train(
    place: Place, parallel: ParallelConfig, model: Path, folder: Path, version: int, killed_at: int | None
) -> None:
    """Goes on from the checkpoint of a version, with a checkpoint now and then and at the end."""
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        mesh, source = MegatronMesh(), ModelConfig(path=str(model))
        roles = Roles(
            policy=MegatronBackend(ground, source, OPTIMIZER, num_steps=NUM_STEPS),
            reference=MegatronBackend(ground, source, None, num_steps=0),
            critic=MegatronCritic(ground, source, OPTIMIZER, num_steps=NUM_STEPS),
        )
        updater = Updater(roles, CONFIG, flops=ModelFlops.of(read_sizes(model)), mesh=mesh)
        if version:
            check_checkpoint(folder / str(version), place, mesh)
            updater.load(folder / str(version))
        writer = CheckpointWriter()
        while version < NUM_BATCHES:
            batch = TrainingBatch.build(received(version, mesh), mask_above=None, mesh=mesh)
            updater.update(batch, updater.score(batch))
            version += 1
            if version == killed_at:
                # While the last checkpoint is being written, perhaps.
                os.kill(os.getpid(), signal.SIGKILL)
            if version % EVERY == 0:
                writer.begin(updater.snapshot, folder / str(version), lambda times: None)
        writer.finish()


def received(version: int, mesh: MegatronMesh) -> Batch:
    """The same in every life."""
    groups = random_groups(num_groups=2, group_size=4, version=version)
    shards = [[i % mesh.num_shards for i in range(4)] for _ in groups]
    return Batch.cut(version=version, groups=groups, shards=shards, count=mesh.num_shards)[mesh.shard]


def state_of(checkpoint: Path) -> dict[str, str]:
    """Checksums of weights, moments, random states, counters and the KL's coefficient."""
    assert damage(checkpoint) is None
    manifest = Manifest.read(checkpoint)
    assert isinstance(manifest, Manifest)
    # Torch's index has names of places in it.
    return {name: checksum.xxh3 for name, checksum in manifest.files.items() if not name.endswith(".metadata")}


@pytest.mark.parametrize("parallel", [ParallelConfig(), ParallelConfig(dp=2)], ids=["one rank", "dp2"])
def test_a_killed_learner_goes_on_to_the_bit(
    make_reference: MakeReference, tmp_path: Path, parallel: ParallelConfig
) -> None:
    make_reference()
    model, whole, parts = tmp_path / "model", tmp_path / "whole", tmp_path / "parts"
    num_ranks = max(parallel.dp, 1)
    run_ranks(num_ranks, train, parallel, model, whole, 0, None)
    with pytest.raises(AssertionError, match="died with exit code -9"):
        run_ranks(num_ranks, train, parallel, model, parts, 0, KILLED_AT)
    last = max(version for version in (2, 4) if torn(parts / str(version)) is None)
    run_ranks(num_ranks, train, parallel, model, parts, last, None)
    expected, found = state_of(whole / str(NUM_BATCHES)), state_of(parts / str(NUM_BATCHES))
    assert {"learner/__0_0.distcp", "critic/__0_0.distcp", "learner/common.pt", "kl.json"} <= expected.keys()
    assert found == expected
    assert state_of(whole / "4") != expected
    assert state_of(whole / "2") == state_of(parts / "2"), "training is the same in every process"
