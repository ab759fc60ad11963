"""The policy loss as one would write it by hand: Python floats, loops, derivatives taken on paper.

The reference of the tests; shares nothing with the code under test but the config.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from async_rl.config.objective import KLConfig, LossConfig


@dataclass(frozen=True, kw_only=True)
class Token:
    logprob: float
    proximal: float
    reference: float
    entropy: float
    advantage: float
    weight: float
    kept: bool
    chosen: bool = False

    @property
    def d(self) -> float:
        return self.logprob - self.proximal

    @property
    def r(self) -> float:
        return math.exp(max(-20.0, min(20.0, self.d)))

    @property
    def dr(self) -> float:
        """∂r/∂log π"""
        return self.r if abs(self.d) <= 20 else 0.0


Row = Sequence[Token]
Slope = tuple[float, float]
"""(loss of a token, its derivative by the token's own log π)"""


def clipped(a: float, r: float, dr: float, c: LossConfig, dual: float) -> Slope:
    lower, upper = (0.0, 1 + c.clip_high) if a > 0 else (1 - c.clip_low, dual)
    return -a * min(max(r, lower), upper), -a * dr if lower <= r <= upper else 0.0


def weighted(t: Token, scale: float) -> Slope:
    return -scale * t.advantage * t.logprob, -scale * t.advantage


def ppo_clip(t: Token, row: Row, c: LossConfig) -> Slope:
    return clipped(t.advantage, t.r, t.dr, c, c.clip_dual or math.inf)


def clip_cov(t: Token, row: Row, c: LossConfig) -> Slope:
    return (0.0, 0.0) if t.chosen else clipped(t.advantage, t.r, t.dr, c, math.inf)


def kl_cov(t: Token, row: Row, c: LossConfig) -> Slope:
    loss, slope = -t.advantage * t.r, -t.advantage * t.dr
    if t.chosen:
        loss, slope = loss + c.kl_cov_coef * abs(t.d), slope + c.kl_cov_coef * sign(t.d)
    return loss, slope


def gspo(t: Token, row: Row, c: LossConfig) -> Slope:
    s = math.exp(min(sum(x.d for x in row) / len(row), 10.0))
    return clipped(t.advantage, s, s, c, math.inf)


def sapo(t: Token, row: Row, c: LossConfig) -> Slope:
    tau = c.tau_positive if t.advantage > 0 else c.tau_negative
    x = tau * (t.r - 1)
    sigmoid = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    return -t.advantage * 4 / tau * sigmoid, -t.advantage * 4 * sigmoid * (1 - sigmoid) * t.dr


def cispo(t: Token, row: Row, c: LossConfig) -> Slope:
    return weighted(t, min(max(t.r, 1 - c.clip_low), 1 + c.clip_high))


def reinforce(t: Token, row: Row, c: LossConfig) -> Slope:
    return weighted(t, 1.0)


def aipo(t: Token, row: Row, c: LossConfig) -> Slope:
    return weighted(t, min(t.r, c.ratio_cap))


def topr(t: Token, row: Row, c: LossConfig) -> Slope:
    return weighted(t, 1.0 if t.advantage >= 0 else math.exp(min(sum(x.d for x in row), 0.0)))


def dppo_tv(t: Token, row: Row, c: LossConfig) -> Slope:
    move = math.exp(t.logprob) - math.exp(t.proximal)
    dropped = move > c.clip_high if t.advantage > 0 else move < -c.clip_low
    return weighted(t, 0.0 if dropped else min(t.r, c.ratio_cap))


def dppo_kl(t: Token, row: Row, c: LossConfig) -> Slope:
    p, q = math.exp(t.logprob), math.exp(t.proximal)
    kl = q * (t.proximal - t.logprob) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    dropped = (kl > c.clip_high and p > q) if t.advantage > 0 else (kl > c.clip_low and p < q)
    return weighted(t, 0.0 if dropped else min(t.r, c.ratio_cap))


def dro(t: Token, row: Row, c: LossConfig) -> Slope:
    return -(t.advantage * t.logprob - c.dro_beta / 2 * t.d**2), -t.advantage + c.dro_beta * t.d


TOKENS: dict[str, Callable[[Token, Row, LossConfig], Slope]] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "sapo": sapo,
    "cispo": cispo,
    "reinforce": reinforce,
    "gpg": reinforce,
    "aipo": aipo,
    "topr": topr,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "dro": dro,
}
"""All but gmpo, whose tokens share one loss."""


def gmpo(row: Row, c: LossConfig) -> tuple[float, list[float]]:
    """Of the row's tokens together; derivatives by each token's log π."""
    n = len(row)
    held, moves = [], []
    for t in row:
        d = max(-20.0, min(20.0, t.d))
        k = min(d, c.clip_high) if t.advantage > 0 else max(d, -c.clip_low) if t.advantage < 0 else 0.0
        held.append(k)
        moves.append(float(k == d and t.advantage != 0 and abs(t.d) <= 20))
    pooled = math.exp(sum(math.log(t.weight + 1e-10) for t in row) / n)
    mean_loss = -sum(t.advantage for t in row) / n * math.exp(sum(held) / n) * pooled
    return n * mean_loss, [mean_loss * move for move in moves]


def kl_term(t: Token, kl: KLConfig) -> Slope:
    """KL(π‖reference) of a token."""
    d = t.logprob - t.reference
    x = max(-20.0, min(20.0, -d))
    k3 = min(math.expm1(x) - x, 10.0)
    value, slope = {
        "k1": (d, 1.0),
        "abs": (abs(d), sign(d)),
        "k2": (d * d / 2, d),
        "k3": (k3, -math.expm1(x) if k3 < 10 else 0.0),
    }[kl.estimator.value]
    return value, d if kl.straight_through else slope


def sign(x: float) -> float:
    return float((x > 0) - (x < 0))


@dataclass(frozen=True, kw_only=True)
class NaiveLoss:
    loss: float
    logprobs_gradient: list[list[float]]
    entropy_gradient: list[list[float]]


def naive_loss(rows: Sequence[Row], scales: Sequence[float], c: LossConfig, kl: KLConfig, kl_coef: float) -> NaiveLoss:
    """The loss and its derivatives, [N][T]."""
    total = 0.0
    by_logprob = [[0.0] * len(row) for row in rows]
    by_entropy = [[0.0] * len(row) for row in rows]
    for i, row in enumerate(rows):
        places = [j for j, t in enumerate(row) if t.kept]
        kept = [row[j] for j in places]
        if kept and c.surrogate.value == "gmpo":
            loss, slopes = gmpo(kept, c)
            total += scales[i] * loss
            for j, slope in zip(places, slopes, strict=True):
                by_logprob[i][j] += scales[i] * slope
        for j, t in zip(places, kept, strict=True):
            if c.surrogate.value != "gmpo":
                loss, slope = TOKENS[c.surrogate.value](t, kept, c)
                total += scales[i] * t.weight * loss
                by_logprob[i][j] += scales[i] * t.weight * slope
            value, slope = kl_term(t, kl)
            total += scales[i] * (kl_coef * value - c.entropy_coef * t.entropy)
            by_logprob[i][j] += scales[i] * kl_coef * slope
            by_entropy[i][j] -= scales[i] * c.entropy_coef
    return NaiveLoss(loss=total, logprobs_gradient=by_logprob, entropy_gradient=by_entropy)
