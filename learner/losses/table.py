"""All surrogate losses by the name that the config gives them.

Adding one is a function (tokens, config) → `Surrogate` and a line here (docs/objectives.md).
"""

from learner.losses.clipped import cispo, dppo_kl, dppo_tv, ppo_clip, sapo
from learner.losses.covariance import clip_cov, kl_cov, select_clip_cov, select_kl_cov
from learner.losses.policy_gradient import aipo, dro, reinforce, topr
from learner.losses.sequence_level import gmpo, gspo
from learner.losses.surrogate import SurrogateKind

SURROGATES: dict[str, SurrogateKind] = {
    "ppo_clip": SurrogateKind(ppo_clip),
    "gspo": SurrogateKind(gspo, aggregation="seq_mean_token_mean"),
    "gmpo": SurrogateKind(gmpo, aggregation="seq_mean_token_mean", pools_weights=True),
    "sapo": SurrogateKind(sapo, aggregation="seq_mean_token_mean"),
    "cispo": SurrogateKind(cispo),
    "reinforce": SurrogateKind(reinforce),
    "gpg": SurrogateKind(reinforce),
    "aipo": SurrogateKind(aipo),
    "topr": SurrogateKind(topr),
    "clip_cov": SurrogateKind(clip_cov, select=select_clip_cov),
    "kl_cov": SurrogateKind(kl_cov, select=select_kl_cov),
    "dppo_tv": SurrogateKind(dppo_tv),
    "dppo_kl": SurrogateKind(dppo_kl),
    "dro": SurrogateKind(dro),
}
"""Keys are the words of `async_rl.config.objective.Surrogate`."""
