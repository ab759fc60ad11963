"""The learner's loop: who hears what, in which order, and what ends it."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
import torch

from async_rl.balance import GroupLengths, group_cost
from async_rl.checksums import damage
from async_rl.config.learner import LearnerConfig
from async_rl.config.loop import CheckpointConfig, WeightsConfig
from async_rl.config.objective import AdvantageConfig, Estimator
from async_rl.config.schema import RunConfig
from async_rl.config.staleness import OverBound, StalenessConfig
from async_rl.errors import NonFiniteError
from async_rl.protocol import Batch, End, StepMetrics, WeightManifest
from learner.batch import TrainingBatch
from learner.batch_source import OnArrival
from learner.checkpoint_writer import WriteTimes
from learner.learner import Learner
from learner.roles import Roles
from tests.learner.bigram_backend import FLOPS, BigramBackend, BigramCritic
from tests.learner.groups import make_group, make_trajectory, random_batch


class Publisher:
    """Keeps what was published."""

    def __init__(self) -> None:
        self.published: dict[int, torch.Tensor] = {}

    def publish(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor]], *, gather_s: float = 0.0
    ) -> WeightManifest:
        self.published[version] = dict(tensors)["table"].clone()
        return WeightManifest(
            version=version,
            transport="list",
            location="",
            generation=version,
            tensors=[],
            num_bytes=0,
            gather_s=gather_s,
            transfer_s=0.0,
        )

    def close(self) -> None: ...


class ListedBatches:
    """A `BatchSource` of a list, that writes down what it hears."""

    def __init__(self, num_batches: int, *, checkpoint: bool = False, first: int = 0) -> None:
        self._end = first + num_batches
        self._checkpoint = checkpoint
        self.heard: list[str] = []
        self.metrics: dict[int, StepMetrics] = {}
        self.folders: list[Path] = []
        self.begun: list[int] = []
        """Checkpoints that a commit told of."""

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        del on_arrival
        if version == self._end:
            return End(reason="enough", checkpoint=self._checkpoint)
        return random_batch(num_groups=2, group_size=4, version=version, seed=version)

    def commit(self, version: int, metrics: StepMetrics, *, checkpoint: bool = False) -> None:
        self.heard.append(f"commit {version}")
        self.begun += [version] * checkpoint
        self.metrics[version] = metrics

    def publish(self, manifest: WeightManifest) -> None:
        self.heard.append(f"publish {manifest.version}")

    def complete_checkpoint(self, version: int, folder: Path, times: WriteTimes) -> None:
        assert times.stood_s >= 0 and times.write_s >= 0
        self.heard.append(f"checkpoint {version}")
        self.folders.append(folder)

    def await_checkpoint(self) -> None:
        assert all(f"checkpoint {v}" in self.heard for v in self.begun), "the writer is waited for first"


def config(
    *,
    steps: int = 3,
    publish_every: int = 1,
    checkpoint_every: int = 0,
    staleness: StalenessConfig | None = None,
    max_skipped: int = 5,
) -> RunConfig:
    return RunConfig(
        steps=steps,
        staleness=staleness or StalenessConfig(),
        learner=LearnerConfig(groups_per_step=2, max_skipped=max_skipped),
        weights=WeightsConfig(publish_every=publish_every),
        checkpoint=CheckpointConfig(every=checkpoint_every),
    )


def run(
    source: ListedBatches, config: RunConfig, folder: Path, *, backend: BigramBackend | None = None, version: int = 0
) -> tuple[BigramBackend, Publisher]:
    backend, publisher = backend or BigramBackend(), Publisher()
    Learner(
        config,
        roles=Roles(policy=backend),
        flops=FLOPS,
        peak_flops=1e9,
        publisher=publisher,
        source=source,
        run_folder=folder,
        version=version,
    ).run()
    return backend, publisher


def test_weights_go_out_before_the_commit_and_at_the_very_start(tmp_path: Path) -> None:
    source = ListedBatches(3)
    run(source, config(), tmp_path)
    assert source.heard == [
        "publish 0",
        *("publish 1", "commit 1"),
        *("publish 2", "commit 2"),
        *("publish 3", "commit 3"),
    ]


def test_what_is_published_are_the_weights_of_its_version(tmp_path: Path) -> None:
    backend, publisher = run(ListedBatches(3), config(), tmp_path)
    assert torch.equal(publisher.published[0], BigramBackend().table.detach())
    assert torch.equal(publisher.published[3], backend.table.detach())
    assert not torch.equal(publisher.published[2], publisher.published[3])


def test_the_last_version_is_published_whatever_publish_every_says(tmp_path: Path) -> None:
    source = ListedBatches(5)
    run(source, config(steps=5, publish_every=2), tmp_path)
    assert [line for line in source.heard if "publish" in line] == ["publish 0", "publish 2", "publish 4", "publish 5"]


def test_a_checkpoint_is_written_beside_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    source = ListedBatches(5, checkpoint=True)
    run(source, config(steps=5, checkpoint_every=2), tmp_path)
    assert [line for line in source.heard if "checkpoint" in line] == ["checkpoint 2", "checkpoint 4", "checkpoint 5"]
    assert source.begun == [2, 4], "of the end's version there is no further commit"
    assert source.folders[0] == tmp_path / "checkpoints" / ".writing-00000002"
    assert (source.folders[0] / "learner" / "table.pt").is_file()
    assert all(damage(folder) is None for folder in source.folders)


class AskedFor(ListedBatches):
    """The batch of version 1 is to end with a checkpoint."""

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        answer = super().next_batch(version)
        return msgspec.structs.replace(answer, checkpoint=version == 1) if isinstance(answer, Batch) else answer


def test_a_checkpoint_is_written_where_a_batch_asks_for_it(tmp_path: Path) -> None:
    source = AskedFor(4)
    run(source, config(steps=4), tmp_path)
    assert source.begun == [2] and source.heard.count("checkpoint 2") == 1


@pytest.mark.parametrize("every", [0, 2])
def test_the_end_writes_no_checkpoint_of_a_version_that_has_one(tmp_path: Path, every: int) -> None:
    source = ListedBatches(2, checkpoint=True)
    run(source, config(steps=2, checkpoint_every=every), tmp_path)
    assert source.heard.count("checkpoint 2") == 1


def test_a_resumed_learner_goes_on_with_its_version(tmp_path: Path) -> None:
    source = ListedBatches(1, first=7)
    run(source, config(steps=8), tmp_path, version=7)
    assert source.heard == ["publish 7", "publish 8", "commit 8"]


def test_a_resumed_learner_without_a_step_needs_no_new_checkpoint(tmp_path: Path) -> None:
    source = ListedBatches(0, first=7, checkpoint=True)
    run(source, config(), tmp_path, version=7)
    assert source.heard == ["publish 7"]


def test_resuming_at_half_ends_in_the_same_weights(tmp_path: Path) -> None:
    whole, _ = run(ListedBatches(4), config(steps=4), tmp_path / "whole")
    first = ListedBatches(2, checkpoint=True)
    run(first, config(steps=4), tmp_path / "half")
    resumed = BigramBackend(seed=9)
    resumed.load(first.folders[0] / "learner")
    run(ListedBatches(2, first=2), config(steps=4), tmp_path / "half", backend=resumed, version=2)
    assert torch.equal(resumed.table, whole.table)


def test_the_model_is_exported_at_the_end(tmp_path: Path) -> None:
    run(ListedBatches(1), config(), tmp_path)
    assert (tmp_path / "model" / "table.pt").is_file()


def test_steps_that_are_not_finite_are_counted_and_too_many_in_a_row_end_the_run(tmp_path: Path) -> None:
    backend = BigramBackend()
    with torch.no_grad():
        backend.table[:] = torch.nan
    source = ListedBatches(9)
    with pytest.raises(NonFiniteError, match="max_skipped=2"):
        run(source, config(steps=9, max_skipped=2), tmp_path, backend=backend)
    assert [source.metrics[v].scalars["skipped"] for v in (1, 2)] == [1.0, 1.0]
    assert not (tmp_path / "model").exists()


class EnormousRewards(ListedBatches):
    """Whitened they are advantages like others, squared they are no loss for a critic."""

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        del on_arrival
        trajectories = [make_trajectory([1, 2], reward=r) for r in (0.0, 1e30)]
        return Batch.whole(version=version, groups=[make_group(g, [3], trajectories) for g in range(2)])


def test_a_critic_whose_steps_are_not_finite_ends_the_run_though_the_policy_trains(tmp_path: Path) -> None:
    source, policy = EnormousRewards(9), BigramBackend()
    options = dataclasses.replace(
        config(steps=9, max_skipped=2, staleness=StalenessConfig(max=9)),
        advantage=AdvantageConfig(estimator=Estimator.gae),
    )
    learner = Learner(
        options,
        roles=Roles(policy=policy, critic=BigramCritic()),
        flops=FLOPS,
        peak_flops=1e9,
        publisher=Publisher(),
        source=source,
        run_folder=tmp_path,
        version=0,
    )
    with pytest.raises(NonFiniteError, match=r"3 steps of the critic .* lower critic\.optimizer\.lr"):
        learner.run()
    assert policy.table.isfinite().all()


class OneOldBatch(ListedBatches):
    """Tokens of version 0 in the batch of version 3."""

    def next_batch(self, version: int, on_arrival: OnArrival | None = None) -> Batch | End:
        del on_arrival
        answer = super().next_batch(version)
        if isinstance(answer, End):
            return answer
        old = [make_trajectory([1, 2], reward=r, versions=[0, 2]) for r in (0.0, 1.0)]
        return Batch.whole(version=version, groups=[make_group(0, [3], old)])


def test_a_batch_over_the_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(OneOldBatch(1, first=3), config(staleness=StalenessConfig(max=2)), tmp_path, version=3)


@pytest.mark.parametrize(("over_bound", "tokens"), [(OverBound.mask, 2), (OverBound.train, 4)])
def test_over_the_bound_tokens_are_masked_or_trained_if_so_chosen(
    tmp_path: Path, over_bound: OverBound, tokens: int
) -> None:
    source = OneOldBatch(1, first=3)
    run(source, config(staleness=StalenessConfig(max=2, over_bound=over_bound)), tmp_path, version=3)
    assert source.metrics[4].scalars["learner/tokens"] == tokens


def test_times_add_up(tmp_path: Path) -> None:
    source = ListedBatches(2)
    run(source, config(steps=2), tmp_path)
    said = source.metrics[2].scalars
    phases = ("learner/score_s", "learner/update_s", "learner/publish_s", "learner/metrics_s")
    assert said["learner/step_s"] == pytest.approx(sum(said[name] for name in phases))
    assert 0 <= said["learner/wait_s"] <= said["learner/idle_s"] <= said["learner/elapsed_s"]
    assert said["learner/step_s"] <= said["learner/elapsed_s"]


def test_what_the_devices_came_to_is_said(tmp_path: Path) -> None:
    source = ListedBatches(1)
    run(source, config(steps=1), tmp_path)
    said = source.metrics[1].scalars
    busy_s = said["learner/score_s"] + said["learner/update_s"]
    batch = TrainingBatch.build(random_batch(num_groups=2, group_size=4), mask_above=None)
    forward = sum(
        group_cost(GroupLengths(own[0].prompt_length, [s.response_length for s in own]), FLOPS)
        for own in ([s for s in batch.sequences if s.group == group] for group in range(2))
    )
    # π_prox comes out of the step's own pass, whose backward pass is two more.
    assert said["learner/tflops"] * 1e12 * busy_s == pytest.approx(3 * forward)
    assert said["learner/mfu"] == pytest.approx(said["learner/tflops"] * 1e12 / 1e9)
    assert said["learner/memory_gib"] > 0.01
    assert said["learner/imbalance/shards"] == said["learner/imbalance/micro_batches"] == said["learner/micro_batches"]


def test_every_number_of_the_loop_is_documented(tmp_path: Path, repository: Path) -> None:
    source = ListedBatches(1)
    run(source, config(steps=1), tmp_path)
    names = [name for name in source.metrics[1].scalars if name.startswith("learner/")]
    documented = (repository / "docs/metrics.md").read_text()
    assert [name for name in names if f"`{name}`" not in documented] == []
