"""Options of the objective: advantage, loss, KL to the reference, and the correction for off-policy data.

Owns their names, defaults, effects and ranges; each word of an enum here is a function or a value in a table of
the learner or of the correction. Cross-option rules stand in `objective_rules`.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option

# Enum members are named like their values, since Hydra reads enums by name.


class Estimator(StrEnum):
    """How rewards become advantages."""

    gae = "gae"
    vtrace = "vtrace"
    grpo = "grpo"
    grpo_passk = "grpo_passk"
    gdpo = "gdpo"
    rloo = "rloo"
    reinforce_plus_plus = "reinforce_plus_plus"
    reinforce_plus_plus_baseline = "reinforce_plus_plus_baseline"
    remax = "remax"
    opo = "opo"
    gpg = "gpg"
    optimal_token_baseline = "optimal_token_baseline"
    tir_optimal_token_baseline = "tir_optimal_token_baseline"


class Surrogate(StrEnum):
    """What is minimised per token, before weights and bonuses."""

    ppo_clip = "ppo_clip"
    gspo = "gspo"
    gmpo = "gmpo"
    sapo = "sapo"
    cispo = "cispo"
    reinforce = "reinforce"
    gpg = "gpg"
    aipo = "aipo"
    topr = "topr"
    clip_cov = "clip_cov"
    kl_cov = "kl_cov"
    dppo_tv = "dppo_tv"
    dppo_kl = "dppo_kl"
    dro = "dro"


class Aggregation(StrEnum):
    """How the losses of a mini-batch's tokens add up."""

    auto = "auto"
    token_mean = "token_mean"
    token_sum = "token_sum"
    seq_mean_token_mean = "seq_mean_token_mean"
    seq_mean_token_sum = "seq_mean_token_sum"
    seq_mean_token_sum_norm = "seq_mean_token_sum_norm"


class KLEstimator(StrEnum):
    """KL(π‖reference) of a token."""

    k1 = "k1"
    abs = "abs"
    k2 = "k2"
    k3 = "k3"
    full = "full"


class KLPlacement(StrEnum):
    """Where the KL to the reference counts."""

    loss = "loss"
    reward = "reward"


class KLController(StrEnum):
    """How the coefficient of the KL moves."""

    fixed = "fixed"
    adaptive = "adaptive"


class Proximal(StrEnum):
    """What stands for π_prox."""

    recompute = "recompute"
    rollout = "rollout"
    log_linear = "log_linear"


class RatioLevel(StrEnum):
    """Which tokens share an importance weight."""

    token = "token"
    segment = "segment"
    sequence = "sequence"
    geometric = "geometric"


class Weighting(StrEnum):
    """What becomes of an importance ratio."""

    off = "off"
    truncated = "truncated"
    masked = "masked"


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: Estimator = option(
        Estimator.grpo,
        "Baseline and credit: `grpo` (group mean), `rloo`, `opo`, `gpg`, `grpo_passk`, `gdpo` (several rewards), "
        "`reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `remax` (greedy rollout), `optimal_token_baseline`, "
        "`tir_optimal_token_baseline` (holes closed first), or with a critic `gae` and `vtrace` (docs/objectives.md).",
    )
    normalize_by_std: bool = option(
        True, "`grpo`, `gdpo`, `grpo_passk`: divide by the group's standard deviation; off is Dr. GRPO."
    )
    gamma: float = option(1.0, "Discount a token, of estimators with credit per token.", minimum=0, maximum=1)
    trace_lambda: float = option(
        1.0, "λ of `gae` and `vtrace`: 1 trusts rewards alone, 0 the critic's next value.", minimum=0, maximum=1
    )
    rho_cap: float = option(1.0, "`vtrace`: ρ̄, cap of π_prox/μ at a token's own error.", exclusive_minimum=0)
    c_cap: float = option(1.0, "`vtrace`: c̄, cap of π_prox/μ in the trace over later tokens.", exclusive_minimum=0)
    reward_components: list[str] = option(
        text="`gdpo`: the names of the rewards that the reward function returns.", factory=list
    )
    reward_weights: list[float] = option(text="`gdpo`: a weight for each of them; empty: 1 each.", factory=list)
    filter_zero_signal: bool = option(
        False, "Groups whose rewards are all equal are filtered, and others generated in their place."
    )

    @property
    def takes_greedy_baseline(self) -> bool:
        """Whether each prompt is also answered greedily, for the estimator's baseline."""
        return self.estimator is Estimator.remax


@dataclass(frozen=True)
class LossConfig:
    """What the policy minimises."""

    surrogate: Surrogate = option(
        Surrogate.ppo_clip,
        "Loss of a token (docs/objectives.md): `ppo_clip`, `gspo`, `gmpo`, `sapo`, `cispo`, `reinforce`, `gpg`, "
        "`aipo`, `topr`, `clip_cov`, `kl_cov`, `dppo_tv`, `dppo_kl`, `dro`.",
    )
    aggregation: Aggregation = option(
        Aggregation.auto,
        "How tokens add up over the mini-batch; `auto`: `seq_mean_token_mean` for `gspo`, `gmpo` and `sapo`, else "
        "`token_mean`.",
    )
    length_norm: float = option(
        0.0, "`seq_mean_token_sum_norm`: the constant length; 0 takes `generation.max_new_tokens`.", minimum=0
    )
    clip_low: float = option(
        0.2,
        "The ratio π/π_prox is clipped below 1 − this (`gmpo`: its logarithm below −this; `dppo_*`: the largest move "
        "of the probability that a negative advantage may make).",
        minimum=0,
        maximum=1,
    )
    clip_high: float = option(0.28, "The same above, 1 + this.", minimum=0)
    clip_dual: float = option(
        3.0, "`ppo_clip`: for negative advantages the loss is at most this times −A; 0 turns it off.", minimum=0
    )
    ratio_cap: float = option(
        20.0, "`aipo`, `dppo_*`: largest ratio that multiplies a token's gradient.", exclusive_minimum=0
    )
    tau_positive: float = option(1.0, "`sapo`: steepness of the gate where A > 0.", exclusive_minimum=0)
    tau_negative: float = option(1.05, "`sapo`: steepness of the gate elsewhere.", exclusive_minimum=0)
    cov_share: float = option(
        2e-4, "`clip_cov`, `kl_cov`: share of the tokens that is chosen by covariance.", minimum=0, maximum=1
    )
    clip_cov_low: float = option(1.0, "`clip_cov`: chosen among tokens whose covariance is above this.")
    clip_cov_high: float = option(5.0, "`clip_cov`: and below this.")
    kl_cov_coef: float = option(0.1, "`kl_cov`: weight of |log π/π_prox| at the chosen tokens.", minimum=0)
    dro_beta: float = option(0.1, "`dro`: weight of the quadratic pull to π_prox.", exclusive_minimum=0)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus.", minimum=0)


@dataclass(frozen=True)
class KLConfig:
    """KL(π‖reference)."""

    coef: float = option(0.0, "Weight; 0 loads no reference.", minimum=0)
    placement: KLPlacement = option(
        KLPlacement.loss, "`loss`: a term of the loss; `reward`: subtracted from each token's reward."
    )
    estimator: KLEstimator = option(
        KLEstimator.k3,
        "`k1` (unbiased), `abs`, `k2`, `k3` (never negative), or `full`: exact over the vocabulary, for a second pass "
        "through the output layer.",
    )
    straight_through: bool = option(
        False, "In the loss: the value of the estimator with the gradient of `k2`, unbiased for the KL's."
    )
    controller: KLController = option(
        KLController.fixed, "`adaptive` moves the coefficient so that the KL of a batch stays near `target`."
    )
    target: float = option(0.1, "`adaptive`: the wanted KL, nats a token.", exclusive_minimum=0)
    horizon: int = option(10_000, "`adaptive`: trajectories over which a correction is spread.", minimum=1)
    offload: bool = option(
        False,
        "Keep the reference in the host's memory between its uses, each of which costs the way to the GPU: the same "
        "numbers in less memory there. Only on GPUs, and not with `estimator=full`.",
    )


@dataclass(frozen=True)
class CorrectionConfig:
    """What becomes of tokens that another policy sampled (docs/correction.md)."""

    proximal: Proximal = option(
        Proximal.recompute,
        "π_prox: `recompute` it with the batch's first weights (decoupled PPO), take the `rollout` log-probabilities "
        "(bypass), or interpolate `log_linear` between μ and π by staleness. The last two score nothing, nor does the "
        "first with one step a batch, unless rejection, `normalize`, an estimator or a KL in the reward asks for it.",
    )
    level: RatioLevel = option(
        RatioLevel.token,
        "Whose ratio weighs a token: its own, the product over its `segment` (turn) or `sequence`, or the sequence's "
        "`geometric` mean.",
    )
    weighting: Weighting = option(
        Weighting.truncated,
        "`truncated` into [`floor`, `cap`], `masked` (0 outside of [`floor`, `cap`]), or `off`.",
    )
    cap: float = option(2.0, "Largest weight.", exclusive_minimum=0)
    floor: float = option(0.0, "Smallest weight.", minimum=0)
    normalize: bool = option(False, "Divide the weights by their mean over the batch.")
    reject: list[str] = option(
        text="Criteria that tokens or whole trajectories must all pass to train, `LEVEL_STATISTIC:BOUND` as in "
        "`seq_mean_k3:0.01` or `token_k1:0.5_2.0` (docs/correction.md).",
        factory=list,
    )
    veto: float = option(
        0.0, "A trajectory with a token whose π_prox/μ is below this is rejected; 0 turns it off.", minimum=0, maximum=1
    )
    score_on_arrival: bool = option(
        False,
        "Score trajectories under the version that sampled them while the learner would wait, to tell the engine's "
        "mismatch from staleness, and to cap each by itself.",
    )
    mismatch_cap: float = option(
        2.0, "`score_on_arrival`: cap of π_b/μ, the learner over the engine at the same version.", exclusive_minimum=0
    )
    staleness_cap: float = option(
        2.0, "`score_on_arrival`: cap of π_prox/π_b, what later versions changed.", exclusive_minimum=0
    )
    verl_compatible: bool = option(
        False, "Bounds of k1 criteria hold for μ/π_prox instead of π_prox/μ, as old verl runs have them."
    )
