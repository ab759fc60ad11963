"""The rows that a run or a fine-tuning reads.

Owns names, defaults, effects and ranges. Rules that join options stand in the `*_rules` modules.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.option import option

# Enum members are named like their values, since Hydra reads enums by name.


@dataclass(frozen=True)
class DataConfig:
    """Prompts."""

    task: str = option(
        "", "A procedural task, `module:Class` or `file.py:Class` (docs/data.md). Excludes `train` and `evaluate`."
    )
    train: str = option("", "JSONL or parquet file with training rows.")
    evaluate: str = option("", "JSONL or parquet file with held-out rows.")
    prompt_column: str = option("prompt", "Column with the prompt: text, or a list of chat messages.")
    answer_column: str = option("answer", "Column with the answer that the reward function compares with.")
    task_column: str = option(
        "", "Column whose value names the row's task in the metrics of `async-rl launch`; empty: one task."
    )
    max_prompt_tokens: int = option(
        128, "Longer prompts are left out, and counted in a message at the start.", minimum=1
    )
    num_train: int = option(
        4096, "Rows that a procedural task makes for training; with files, 0 takes all and n the first n.", minimum=0
    )
    num_evaluate: int = option(256, "The same for the held-out rows.", minimum=0)
    shuffle: bool = option(True, "A new order in every epoch, from `seed`.")


class LearnTurns(StrEnum):
    """Which of the assistant's turns of a conversation are learned."""

    all = "all"
    last = "last"


@dataclass(frozen=True)
class SftDataConfig(DataConfig):
    """What `async-rl sft` learns from."""

    messages_column: str = option(
        "messages",
        "Column with a conversation, a list of messages: a file whose first row has it is of conversations. Empty: no "
        "file is.",
    )
    tools_column: str = option("tools", "Column with a conversation's tools, for the chat template; may be missing.")
    learn_turns: LearnTurns = option(
        LearnTurns.all, "Which of the assistant's turns of a conversation are learned: `all`, or the `last`."
    )
    max_tokens: int = option(
        0,
        "Longer rows, prompt and answers together, are left out, and counted in a message at the start; 0: what the "
        "model reads and a micro-batch holds.",
        minimum=0,
    )
