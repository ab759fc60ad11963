"""From a run's checkpoint to a Hugging Face folder, which is there whole or not at all.

Owns what may be written over. What a model folder holds is the learner's.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from async_rl.checkpoints import Checkpoints, TrainingState, read_state
from async_rl.checksums import damage
from async_rl.config.compose import load_earlier_config
from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.rules import optimizer_steps
from async_rl.config.schema import RunConfig, SftConfig
from async_rl.disk import writing
from async_rl.errors import ResourceError
from async_rl.launch.sft_run import NEW_MODEL
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground

PLACE = "OUT"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What has to be known of a model that was trained."""

    model: ModelConfig
    optimizer: OptimizerConfig
    num_steps: int
    seed: int
    num_threads: int

    @classmethod
    def by(cls, config: RunConfig | SftConfig, folder: Path) -> "Trained":
        """By a run, or by a fine-tuning, whose new model lies in its folder."""
        if isinstance(config, RunConfig):
            return cls(
                model=config.model,
                optimizer=config.learner.optimizer,
                num_steps=optimizer_steps(config),
                seed=config.seed,
                num_threads=config.learner.num_threads,
            )
        return cls(
            model=replace(config.model, path=config.model.path or str(folder / NEW_MODEL)),
            optimizer=config.optimizer,
            num_steps=config.steps,
            seed=config.seed,
            num_threads=config.num_threads,
        )


def export_checkpoint(checkpoint: Path, folder: Path, *, force: bool = False) -> None:
    """Writes the model of `runs/NAME/checkpoints/VERSION`, or of `…/best`, to a folder, made if missing.

    Args:
        checkpoint: a folder that a run wrote.
        folder: where the model goes.
        force: a model that is there already is replaced.

    Raises:
        UserError: it is no checkpoint, the run's config or model folder is gone, or the folder holds something or
            cannot be written.
    """
    read_state(checkpoint, TrainingState)
    config_path = checkpoint.absolute().parent.parent / "config.yaml"
    if not config_path.is_file():
        raise ResourceError(
            f"no {config_path} beside the checkpoint",
            place=str(checkpoint),
            remedy="give a checkpoint in its run's folder: config.yaml says which model it is of",
        )
    check_target(folder, force=force)
    found = damage(checkpoint)
    if found is not None:
        raise Checkpoints(checkpoint.parent, keep=1).refusal(checkpoint, found)
    trained = Trained.by(load_earlier_config(config_path), config_path.parent)
    target = folder.resolve()
    beside = target.with_name(f".{target.name}.writing")
    with writing("the model", folder, remedy="free some disk, or choose a folder that you may write"):
        # Before the minutes that a large model takes to load.
        beside.mkdir(parents=True, exist_ok=True)
        try:
            with Ground(seed=trained.seed, num_threads=trained.num_threads) as ground:
                backend = MegatronBackend(ground, trained.model, trained.optimizer, num_steps=trained.num_steps)
                try:
                    backend.load(checkpoint / "learner")
                    backend.export(beside)
                finally:
                    backend.close()
            if target.exists():
                shutil.rmtree(target)
            os.replace(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def check_target(folder: Path, *, force: bool) -> None:
    """Raises a `ResourceError` where an export would destroy something that nobody gave up."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / "config.json").is_file():
        raise ResourceError(
            f"{folder} exists and holds no model", place=PLACE, remedy="name a folder of its own for the model"
        )
    if not force:
        raise ResourceError(
            f"there is a model in {folder}", place=PLACE, remedy="name another folder, or replace it with --force"
        )
