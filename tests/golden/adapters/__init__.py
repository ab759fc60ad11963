"""From a case to what our public functions give for it, by kind.

General in options, never by a case's id. An option or input that an adapter does not ask for fails its case.
"""

from tests.golden.adapters.advantages import advantage, gae_discounts, whitening
from tests.golden.adapters.correction import probs_diff, rollout_correction, v_trace
from tests.golden.adapters.kl import kl, penalised_rewards
from tests.golden.adapters.losses import aggregation, critic_loss, from_logits, surrogate_loss
from tests.golden.checker import Adapter

ADAPTERS: dict[str, Adapter] = {
    "advantage": advantage,
    "whiten": whitening,
    "gae_discounts": gae_discounts,
    "policy_loss": surrogate_loss,
    "aggregation": aggregation,
    "value_loss": critic_loss,
    "from_logits": from_logits,
    "kl": kl,
    "kl_in_reward": penalised_rewards,
    "rollout_correction": rollout_correction,
    "probs_diff": probs_diff,
    "vtrace": v_trace,
}
