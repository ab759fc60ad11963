"""Who says what a trajectory is worth.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass

from async_rl.config.model import Dtype
from async_rl.config.option import option, section


@dataclass(frozen=True)
class RewardModelConfig:
    """A sequence classifier that rewards whole responses, in a process of its own."""

    path: str = option("", "Hugging Face folder of a sequence classifier with one label; empty: no reward model.")
    dtype: Dtype = option(Dtype.float32, "Number format of the classifier.")
    weight: float = option(1.0, "Its score, times this, is added to what `reward.function` says.")
    ending: str = option(
        "", "Text put behind each response before it is scored: the end of turn that the classifier was trained with."
    )
    batch_tokens: int = option(8192, "Tokens, padding included, of one forward pass.", minimum=1)
    max_restarts: int = option(3, "How often its process is started again after it has died.", minimum=0)


@dataclass(frozen=True)
class RewardConfig:
    """Who says what a trajectory is worth: a function, a reward model, or both together."""

    function: str = option(
        "", "`module:function` or `file.py:function`, plain or async (docs/rewards.md); empty: the reward model alone."
    )
    model: RewardModelConfig = section(RewardModelConfig, "The reward model.")
    timeout_s: float = option(10.0, "A call that takes longer has failed; its process is ended.", exclusive_minimum=0)
    num_workers: int = option(
        1, "Processes, per generator, that run a plain function beside the generation.", minimum=1, maximum=64
    )
    max_concurrent: int = option(64, "Calls at once, per generator, of an async function.", minimum=1)
    max_retries: int = option(
        2, "How often a sample whose reward failed is generated again before its group goes back.", minimum=0
    )
    overlong_buffer: int = option(
        0,
        "Tokens before `generation.max_new_tokens` over which a response loses reward, linearly (DAPO); 0 turns it "
        "off.",
        minimum=0,
    )
    overlong_penalty: float = option(1.0, "What a response of full length loses.", minimum=0)
