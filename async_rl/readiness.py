"""What a launch would miss on this machine, found without loading anything heavy.

Owns the quick looks of `async-rl launch --dry-run`: files that are named exist, objects that are named import, rows can
be read, memory suffices. The launch itself looks closer. A dry run lists what is missing without failing, since it may
be meant for another machine.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.parallel_rules import check_parallel_sizes
from async_rl.config.schema import RunConfig
from async_rl.data.source import load_rows
from async_rl.errors import ConfigError, ModelError, ResourceError, RewardError, UserError
from async_rl.named_object import load_object
from async_rl.sizing.model_json import check_given, read_fields, read_sizes

GPU_FILES = "nvidia[0-9]*"
"""One for each GPU, beside the driver's."""
GPU_DRIVER = Path("/dev/nvidiactl")
"""There where engines may keep keys and values on GPUs, whose memory nobody knows here."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many there are, before those are left out that are too long."""

    train: int
    held_out: int


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """What a launch would find."""

    rows: Rows | None
    """None where they cannot be read."""
    sizes: ModelSizes | None
    """The model's, by its folder or by the config; None where neither says them."""
    missing: list[UserError]
    """What it would stumble over, in the order of the config; empty if it may begin."""


def readiness_of(config: RunConfig) -> Readiness:
    """Looks at everything that a run of this config names."""
    missing: list[UserError] = []
    counts: list[int] = []

    def count_rows(config: RunConfig) -> None:
        for is_held_out in (False, True):
            counts.append(len(load_rows(config.data, is_held_out=is_held_out, seed=config.seed)))

    for look in (_check_model, _check_critic, count_rows, _check_reward, check_memory, check_gpus):
        try:
            look(config)
        except UserError as error:
            missing.append(error)
    return Readiness(
        rows=Rows(train=counts[0], held_out=counts[1]) if len(counts) == 2 else None,
        sizes=_known_sizes(config),
        missing=missing,
    )


def check_model_folder(folder: Path) -> None:
    """Raises a `ModelError` where there is no folder."""
    if not folder.is_dir():
        raise ModelError(
            f"there is no model folder {folder}",
            place="model.path",
            remedy="name a Hugging Face folder; `async-rl sft` makes one",
        )


def check_positions(config: RunConfig, positions: int, folder: Path) -> None:
    """Raises a `ConfigError` where sequences may grow longer than a model's positions."""
    length = config.generation.max_model_len
    if length > positions:
        raise ConfigError(
            f"generation.max_model_len={length}, but the model has {positions} positions",
            place=f"generation.max_model_len, {folder}",
            remedy=f"set generation.max_model_len={positions} or less, or give a model with more positions",
        )


def check_model_sizes(config: RunConfig, folder: Path) -> ModelSizes:
    """The sizes of the model in a folder.

    Raises:
        ModelError: its config.json does not say them.
        ConfigError: `model.sizes` says others, or the ranks and engines cannot share them.
    """
    sizes = read_sizes(folder)
    check_given(config.model.sizes, sizes, folder)
    check_parallel_sizes(config, sizes)
    return sizes


def check_gpus(config: RunConfig) -> None:
    """Raises a `ResourceError` where this machine is the cluster, and has fewer GPUs than it should."""
    found, wanted = len(list(GPU_DRIVER.parent.glob(GPU_FILES))), config.cluster.gpus_per_node
    if not config.cluster.address and found < wanted:
        raise ResourceError(
            f"cluster.gpus_per_node={wanted}, and this machine has {found} {'GPU' if found == 1 else 'GPUs'}",
            place="cluster.gpus_per_node",
            remedy="launch it where the GPUs are, or set cluster.gpus_per_node=0 for a run on CPUs",
        )


def check_memory(config: RunConfig) -> None:
    """Raises a `ResourceError` where the engines' keys and values alone are larger than this machine's memory."""
    if config.cluster.address or config.cluster.gpus_per_node or GPU_DRIVER.exists():
        return
    generation = config.generation
    needed_gib = generation.num_generators * generation.kv_cache_gib
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed_gib > memory_gib:
        raise ResourceError(
            f"keys and values of {generation.num_generators} engines need {needed_gib:,.1f} GiB, and this machine has "
            f"{memory_gib:.1f} GiB of memory",
            place="generation.kv_cache_gib, generation.num_generators",
            remedy=f"set generation.kv_cache_gib well below {memory_gib / generation.num_generators:.1f}",
        )


def _check_model(config: RunConfig) -> None:
    folder = Path(config.model.path)
    check_model_folder(folder)
    positions = read_fields(folder).get("max_position_embeddings")
    check_model_sizes(config, folder)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder} holds no weights", place="model.path", remedy="name a folder with *.safetensors files"
        )
    if isinstance(positions, int):
        check_positions(config, positions, folder)


def _check_critic(config: RunConfig) -> None:
    path = config.critic.path
    if path and config.advantage.estimator in VALUE_ESTIMATORS and not Path(path, "config.json").is_file():
        raise ModelError(
            f"{path} has no config.json, so no critic can start from it",
            place="critic.path",
            remedy="name a Hugging Face folder, or set critic.path= to start from the policy",
        )


def _known_sizes(config: RunConfig) -> ModelSizes | None:
    """Whatever is wrong with the folder has been said already."""
    try:
        return read_sizes(Path(config.model.path))
    except ModelError:
        return config.model.sizes if config.model.sizes.is_given else None


def _check_reward(config: RunConfig) -> None:
    path = config.reward.model.path
    if path and not Path(path, "config.json").is_file():
        raise ModelError(
            f"{path} has no config.json" if Path(path).is_dir() else f"there is no folder {path}",
            place="reward.model.path",
            remedy="name a Hugging Face folder of a sequence classifier, or set reward.model.path= to do without",
        )
    if not config.reward.function:
        return
    load_object(
        config.reward.function,
        kind="reward function",
        place="reward.function",
        remedy="name a function of that module",
        error=RewardError,
    )
