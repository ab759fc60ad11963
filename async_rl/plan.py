"""What a config means before anything starts: which processes, where they go, and what is promised.

Owns the words of `async-rl launch --dry-run`. Pure: the machine's cores come in as an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from async_rl.config.generation import KvOnUpdate
from async_rl.config.objective import CorrectionConfig, KLPlacement, Proximal, RatioLevel, Weighting
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.ranks import gpus_left, num_ranks
from async_rl.config.schema import RunConfig
from async_rl.config.staleness import OverBound
from async_rl.placement import Placement, place
from async_rl.process_plan import ProcessPlan, gpus, processes, shares_cores


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One promise in words."""

    subject: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a dry run says beside the resolved config."""

    processes: list[ProcessPlan]
    guarantees: list[Guarantee]
    warnings: list[str]


def make_plan(config: RunConfig, *, cores: Sequence[int]) -> Plan:
    """The plan of a config that has no contradictions.

    Args:
        cores: numbers of the cores that this process may use.
    """
    placement = place(
        num_generators=config.generation.num_generators,
        num_ranks=num_ranks(config),
        cores=cores,
        pin=config.cluster.pin_cores,
    )
    return Plan(
        processes=processes(config, placement),
        guarantees=[
            Guarantee(subject="bound per token", words=bound(config)),
            Guarantee(subject="usual lag", words=usual_lag(config)),
            Guarantee(subject="over the bound", words=over_bound(config)),
            Guarantee(subject="objective", words=objective(config)),
            Guarantee(subject="correction", words=correction(config)),
            Guarantee(subject="weight updates", words=weight_updates(config)),
            Guarantee(subject="accounting", words=accounting(config)),
            Guarantee(subject="a crash", words=crash(config)),
        ],
        warnings=_warnings(config, placement, cores),
    )


def bound(config: RunConfig) -> str:
    """How old a token may be when it trains."""
    most = config.staleness.max
    if config.staleness.over_bound is OverBound.train:
        return f"None: staleness.over_bound=train trains groups over staleness.max={most} too, and counts their tokens."
    if most == 0:
        return "Every token trains on the very weights that sampled it (staleness 0): synchronous RL."
    return f"No token trains that is more than {most} {_versions(most)} older than the weights it trains."


def usual_lag(config: RunConfig) -> str:
    """What depth and publishing come to, and the slack that stragglers have."""
    depth, every, most = config.staleness.depth, config.weights.publish_every, config.staleness.max
    lag = depth + every - 1
    if depth == 0:
        ahead = "Generation works on the next batch only"
    else:
        ahead = f"Generation runs up to {depth} {_batches(depth)} ahead"
    published = (
        f"weights are published every {every} batches" if every > 1 else "weights are published after every batch"
    )
    slack = most - lag
    rest = (
        f"the {slack} that remain to the bound are what stragglers have before anyone waits for them"
        if slack
        else "nothing remains to the bound, so the learner waits for stragglers"
    )
    return f"{ahead} and {published}: tokens are at most {lag} {_versions(lag)} old as a rule; {rest}."


def over_bound(config: RunConfig) -> str:
    """What happens where a group would pass the bound."""
    return {
        OverBound.wait: "The learner waits for the group before it would pass the bound: nothing is thrown away.",
        OverBound.drop: "The group is dropped and counted as stale; another prompt takes its place.",
        OverBound.requeue: "The group's samples are dropped and its prompt is sampled again.",
        OverBound.mask: "The group trains with the tokens inside the bound; its older tokens are masked and counted.",
        OverBound.train: "The group trains as it is; only the correction knows that it is old.",
    }[config.staleness.over_bound]


def objective(config: RunConfig) -> str:
    """What is minimised."""
    parts = [f"{config.advantage.estimator} advantages in a {config.loss.surrogate} loss"]
    if config.advantage.estimator in VALUE_ESTIMATORS:
        parts.append("a critic learns their values")
    if config.kl.coef:
        where = "the loss" if config.kl.placement is KLPlacement.loss else "the rewards"
        parts.append(f"{config.kl.coef:g} times the KL to the reference ({config.kl.estimator}) in {where}")
    return f"{'; '.join(parts)}."


def correction(config: RunConfig) -> str:
    """What becomes of the difference between the engine's policy and the learner's."""
    options = config.correction
    parts = [_proximal_words(options), _weight_words(options)]
    if options.score_on_arrival:
        parts.append(
            f"Trajectories scored in time have two ratios: engine mismatch, at most {options.mismatch_cap:g}, and "
            f"staleness, at most {options.staleness_cap:g}."
        )
    if options.reject:
        parts.append(f"Only what passes {' and '.join(options.reject)} trains.")
    if options.veto:
        parts.append(f"A token whose ratio is below {options.veto:g} rejects its trajectory.")
    return " ".join(parts)


def _proximal_words(options: CorrectionConfig) -> str:
    return {
        Proximal.recompute: "π_prox is the policy with the batch's first weights.",
        Proximal.rollout: "μ stands for π_prox.",
        Proximal.log_linear: "π_prox is taken between μ and π, by staleness.",
    }[options.proximal]


def _weight_words(options: CorrectionConfig) -> str:
    if options.weighting is Weighting.off:
        return "Tokens are not weighted."
    ratio = "π/μ" if options.proximal is Proximal.rollout else "π_prox/μ"
    whose = {
        RatioLevel.token: ratio,
        RatioLevel.segment: f"the product of {ratio} over its segment",
        RatioLevel.sequence: f"the product of {ratio} over its sequence",
        RatioLevel.geometric: f"the geometric mean of {ratio} over its sequence",
    }[options.level]
    bounds = f"[{options.floor:g}, {options.cap:g}]"
    if options.weighting is Weighting.masked:
        return f"Each token is weighted by {whose}, and by 0 where that is outside of {bounds}."
    held = f"held in {bounds}" if options.floor else f"at most {options.cap:g}"
    return f"Each token is weighted by {whose}, {held}."


def weight_updates(config: RunConfig) -> str:
    """What running requests do when new weights come."""
    kept = config.generation.kv_on_update is KvOnUpdate.keep
    keys = "keep their keys and values" if kept else "compute their keys and values anew"
    return (
        f"Generators load new weights between two tokens: running requests {keys} and go on, "
        "and each token remembers the version that sampled it."
    )


def accounting(config: RunConfig) -> str:
    """What becomes of every prompt."""
    return (
        "Every issued prompt is trained, or counted as stale, filtered or failed; none is trained twice. "
        f"A group has failed after {config.ledger.max_attempts} leases without delivery; "
        "a reward that fails is never a reward of 0."
    )


def crash(config: RunConfig) -> str:
    """What survives what."""
    every = config.checkpoint.every
    checkpoints = f"every {every} {_batches(every)} and at the end" if every else "only at the end and on Ctrl-C"
    return (
        f"A generator that dies is started again, up to {config.generation.max_restarts} times, and its prompts are "
        f"leased anew. Where a rank of the learner dies, all ranks are started again from the last checkpoint, up to "
        f"{config.learner.max_restarts} times, while generators live on. Checkpoints are written {checkpoints}; "
        "`--resume auto` goes on from the last one. "
        "Ctrl-C finishes the step and writes one; a second Ctrl-C stops at once."
    )


def _warnings(config: RunConfig, placement: Placement, cores: Sequence[int]) -> list[str]:
    warnings = []
    generation, idle = config.generation, gpus_left(config) - num_ranks(config)
    if config.cluster.gpus_per_node and idle > 0:
        warnings.append(f"{gpus(idle)} of the cluster {'has' if idle == 1 else 'have'} nothing to do.")
    if not config.cluster.gpus_per_node and shares_cores(placement):
        generators, ranks = generation.num_generators, num_ranks(config)
        warnings.append(
            f"{generators} {'generator' if generators == 1 else 'generators'} and "
            f"{'the learner' if ranks == 1 else f'{ranks} learner ranks'} share {len(cores)} "
            f"{'core' if len(cores) == 1 else 'cores'}: two busy processes on one core slow each other down. "
            "Fewer would be faster."
        )
    if config.cluster.address and config.channel.host == "127.0.0.1":
        warnings.append(
            "channel.host=127.0.0.1 can be reached from this machine only: processes on other machines of the cluster "
            "could not connect."
        )
    if generation.top_p < 1 or generation.top_k > 0:
        warnings.append(
            "With generation.top_p below 1 or top_k above 0, words that are left out are never tried and get no "
            "gradient, stale words at the edge of what is kept are weighed approximately, and every pass goes through "
            "the output layer once more (docs/correction.md)."
        )
    return warnings


def _versions(count: int) -> str:
    return "version" if count == 1 else "versions"


def _batches(count: int) -> str:
    return "batch" if count == 1 else "batches"
