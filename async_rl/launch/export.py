"""From a run's checkpoint to a Hugging Face folder."""

from pathlib import Path

from async_rl.checkpoints import read_loop_state
from async_rl.config.compose import load_run_config
from async_rl.errors import ResourceError
from learner.megatron.backend import MegatronBackend


def export_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Writes the policy of `runs/NAME/checkpoints/VERSION` to a folder, made if missing.

    Raises:
        UserError: it is no checkpoint, or the run's config or model folder is gone.
    """
    read_loop_state(checkpoint)
    config_path = checkpoint.absolute().parent.parent / "config.yaml"
    if not config_path.is_file():
        raise ResourceError(
            f"no {config_path} beside the checkpoint",
            place=str(checkpoint),
            remedy="give a checkpoint in its run's folder: config.yaml says which model it is of",
        )
    config = load_run_config(config_path)
    backend = MegatronBackend(
        config.model,
        config.learner.optimizer,
        num_steps=config.steps * config.learner.epochs * config.learner.mini_batches,
        seed=config.seed,
        num_threads=config.learner.num_threads,
    )
    try:
        backend.load(checkpoint / "learner")
        backend.export(folder)
    finally:
        backend.close()
