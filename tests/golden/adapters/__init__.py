"""From a case to what our public functions give for it, by kind.

General in options, never by a case's id. An option or input that an adapter does not ask for fails its case.
"""

from tests.golden.adapters.correction import probs_diff, rollout_correction, v_trace
from tests.golden.checker import Adapter

ADAPTERS: dict[str, Adapter] = {
    "rollout_correction": rollout_correction,
    "probs_diff": probs_diff,
    "vtrace": v_trace,
}
