from dataclasses import replace

import pytest

from async_rl import plan
from async_rl.config.generation import GenerationConfig, KvOnUpdate
from async_rl.config.loop import CheckpointConfig, ClusterConfig, WeightsConfig
from async_rl.config.objective import (
    AdvantageConfig,
    CorrectionConfig,
    Estimator,
    KLConfig,
    Proximal,
    RatioLevel,
    Weighting,
)
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import RunConfig
from async_rl.config.staleness import OverBound, StalenessConfig

RUN = RunConfig()


def with_staleness(most: int, depth: int, over: OverBound = OverBound.wait, publish_every: int = 1) -> RunConfig:
    staleness = StalenessConfig(max=most, depth=depth, over_bound=over)
    return replace(RUN, staleness=staleness, weights=WeightsConfig(publish_every=publish_every))


def test_the_bound_in_words() -> None:
    assert plan.bound(with_staleness(4, 1)) == (
        "No token trains that is more than 4 versions older than the weights it trains."
    )
    assert plan.bound(with_staleness(1, 1)) == (
        "No token trains that is more than 1 version older than the weights it trains."
    )
    assert plan.bound(with_staleness(0, 0)) == (
        "Every token trains on the very weights that sampled it (staleness 0): synchronous RL."
    )
    assert plan.bound(with_staleness(2, 1, OverBound.train)).startswith("None: staleness.over_bound=train")


def test_the_usual_lag_is_depth_and_what_rare_publishing_adds() -> None:
    assert plan.usual_lag(with_staleness(4, 2, publish_every=2)) == (
        "Generation runs up to 2 batches ahead and weights are published every 2 batches: tokens are at most 3 "
        "versions old as a rule; the 1 that remain to the bound are what stragglers have before anyone waits for them."
    )
    assert plan.usual_lag(with_staleness(0, 0)) == (
        "Generation works on the next batch only and weights are published after every batch: tokens are at most "
        "0 versions old as a rule; nothing remains to the bound, so the learner waits for stragglers."
    )


@pytest.mark.parametrize(
    ("over", "word"),
    [
        (OverBound.wait, "waits"),
        (OverBound.drop, "dropped and counted as stale"),
        (OverBound.requeue, "sampled again"),
        (OverBound.mask, "masked"),
        (OverBound.train, "trains as it is"),
    ],
)
def test_what_happens_over_the_bound_in_words(over: OverBound, word: str) -> None:
    assert word in plan.over_bound(with_staleness(4, 1, over))


CORRECTIONS = {
    "π_prox is the policy with the batch's first weights. Each token is weighted by π_prox/μ, at most 2.": (
        CorrectionConfig()
    ),
    "π_prox is the policy with the batch's first weights. Tokens are not weighted.": (
        CorrectionConfig(weighting=Weighting.off)
    ),
    "μ stands for π_prox. Each token is weighted by the product of π/μ over its sequence, held in [0.5, 3].": (
        CorrectionConfig(
            proximal=Proximal.rollout, level=RatioLevel.sequence, weighting=Weighting.truncated, floor=0.5, cap=3.0
        )
    ),
    "π_prox is taken between μ and π, by staleness. Each token is weighted by the geometric mean of "
    "π_prox/μ over its sequence, and by 0 where that is outside of [0.5, 5].": (
        CorrectionConfig(
            proximal=Proximal.log_linear, level=RatioLevel.geometric, weighting=Weighting.masked, floor=0.5, cap=5.0
        )
    ),
    "π_prox is the policy with the batch's first weights. Tokens are not weighted. Only what passes seq_mean_k3:0.01 "
    "and token_k1:2 trains. A token whose ratio is below 0.0001 rejects its trajectory.": (
        CorrectionConfig(weighting=Weighting.off, reject=["seq_mean_k3:0.01", "token_k1:2"], veto=1e-4)
    ),
    "π_prox is the policy with the batch's first weights. Each token is weighted by π_prox/μ, at most 4. Trajectories "
    "scored in time have two ratios: engine mismatch, at most 2, and staleness, at most 2.": (
        CorrectionConfig(cap=4.0, score_on_arrival=True)
    ),
}


@pytest.mark.parametrize("words", CORRECTIONS)
def test_the_correction_in_words(words: str) -> None:
    assert plan.correction(replace(RUN, correction=CORRECTIONS[words])) == words


def test_the_objective_in_words() -> None:
    assert plan.objective(RUN) == "grpo advantages in a ppo_clip loss."
    with_critic = replace(RUN, advantage=AdvantageConfig(estimator=Estimator.vtrace), kl=KLConfig(coef=0.01))
    assert plan.objective(with_critic) == (
        "vtrace advantages in a ppo_clip loss; a critic learns their values; 0.01 times the KL to the reference (k3) "
        "in the loss."
    )
    assert "a critic" in {p.name: p.work for p in plan.make_plan(with_critic, cores=[0, 1]).processes}["learner-0"]


def test_updates_and_checkpoints_in_words() -> None:
    keep = replace(RUN, generation=GenerationConfig(kv_on_update=KvOnUpdate.keep))
    assert "keep their keys and values" in plan.weight_updates(keep)
    never = replace(RUN, checkpoint=CheckpointConfig(every=0))
    assert "only at the end and on Ctrl-C" in plan.crash(never)
    assert "every 20 batches and at the end" in plan.crash(replace(RUN, checkpoint=CheckpointConfig(every=20)))


def test_processes_and_their_cores() -> None:
    config = replace(RUN, generation=GenerationConfig(num_generators=2))
    made = plan.make_plan(config, cores=[0, 1, 2, 3])
    assert [(p.name, p.where) for p in made.processes] == [
        ("controller", "this process"),
        ("generator-0", "core 0"),
        ("generator-1", "core 1"),
        ("learner-0", "cores 2, 3"),
        ("tracker", "not pinned"),
    ]
    assert made.warnings == []


def test_each_rank_on_cpus_has_its_share_of_the_cores() -> None:
    config = replace(RUN, learner=replace(RUN.learner, parallel=ParallelConfig(tp=2)))
    made = plan.make_plan(config, cores=[0, 1, 2, 3, 4])
    rows = {p.name: (p.where, p.work) for p in made.processes}
    assert (rows["learner-0"][0], rows["learner-1"][0]) == ("cores 1, 2", "cores 3, 4")
    assert rows["learner-0"][1].startswith("2 ranks = tp 2 · dp 1; 16 groups of 8 a batch")


def test_ranks_and_engines_on_gpus() -> None:
    config = replace(
        RUN,
        cluster=ClusterConfig(address="auto", num_nodes=4, gpus_per_node=8),
        generation=GenerationConfig(num_generators=4, tp=4),
        learner=replace(RUN.learner, parallel=ParallelConfig(tp=8, pp=2, vpp=2)),
    )
    rows = {p.name: (p.where, p.work) for p in plan.make_plan(config, cores=[0]).processes}
    assert rows["generator-0 … 3"][0] == "4 GPUs of one node each"
    where, work = rows["learner-0 … 15"]
    assert where == "16 GPUs of 2 nodes"
    assert work.startswith("16 ranks = tp 8 · pp 2 · dp 1, each stage in 2 pieces; ")


def test_gpus_without_work_are_a_warning() -> None:
    config = replace(
        RUN,
        cluster=ClusterConfig(gpus_per_node=8),
        learner=replace(RUN.learner, parallel=ParallelConfig(tp=2, dp=2)),
    )
    assert plan.make_plan(config, cores=[0]).warnings == ["3 GPUs of the cluster have nothing to do."]


def test_too_few_cores_are_a_warning() -> None:
    config = replace(RUN, generation=GenerationConfig(num_generators=2))
    assert plan.make_plan(config, cores=[0, 1]).warnings == [
        "2 generators and the learner share 2 cores: two busy processes on one core slow each other down. "
        "Fewer would be faster."
    ]


def test_sampling_from_a_part_of_the_distribution_is_a_warning() -> None:
    config = replace(RUN, generation=GenerationConfig(top_p=0.9))
    assert "words that are left out are never tried" in plan.make_plan(config, cores=[0, 1]).warnings[0]
