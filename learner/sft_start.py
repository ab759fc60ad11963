"""Where a fine-tuning begins: in which folder, with which model, from which checkpoint.

Owns what is decided once, before there are ranks. Loads no training library.
"""

from dataclasses import dataclass
from pathlib import Path

from async_rl.checkpoints import SftState, read_state
from async_rl.config.schema import SftConfig
from async_rl.data.source import load_task
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.run_folder import RunFolder
from learner.model_folder import create_model


@dataclass(frozen=True, kw_only=True)
class SftStart:
    """The same on every rank."""

    folder: RunFolder
    model: Path
    """Of the weights to begin with, and of the tokenizer."""
    checkpoint: Path | None
    """To go on from."""
    run_hash: str | None
    """Aim's name of the run."""
    began_s: float
    """When the command was given, as `time.time()` says."""

    @property
    def state(self) -> SftState:
        """Of the checkpoint, or of nothing."""
        if self.checkpoint is None:
            return SftState(version=0, trained_tokens=0, run_hash=self.run_hash)
        return read_state(self.checkpoint, SftState)


def make_model(config: SftConfig, folder: Path) -> Path:
    """The model to begin with: the config's, or a new one for its task in a folder, with a token a character."""
    if config.model.path:
        return Path(config.model.path).absolute()
    tokenizer = folder.with_name("tokenizer")
    save_character_tokenizer(load_task(config.data.task).alphabet, tokenizer)
    create_model(folder, config.new_model, tokenizer=tokenizer, seed=config.seed)
    return folder
