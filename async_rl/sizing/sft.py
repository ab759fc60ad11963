"""The memory of a fine-tuning's ranks, and whether it fits into theirs.

Owns what of `async-rl sft`'s config decides it. Pure.
"""

from async_rl.config.model_sizes import ModelSizes
from async_rl.config.ranks import num_sft_ranks
from async_rl.config.schema import SftConfig
from async_rl.errors import ResourceError
from async_rl.sizing.account import Account
from async_rl.sizing.fit import USABLE
from async_rl.sizing.training import HeldModel, Training, training_account


def sft_account(config: SftConfig, sizes: ModelSizes) -> Account:
    """Of the rank that needs the most."""
    num_shards = num_sft_ranks(config) // config.parallel.ranks_of_copy
    return training_account(
        Training(
            sizes=sizes,
            models=(HeldModel(name="model"),),
            parallel=config.parallel,
            num_shards=num_shards,
            recompute=config.recompute,
            dtype=config.model.dtype,
            tokens=config.micro_batch_tokens,
            micro_batches=-(-config.batch_size // num_shards),
            on_gpus=config.cluster.gpus_per_node > 0,
        )
    )


def check_sft_fit(config: SftConfig, sizes: ModelSizes) -> None:
    """Raises a `ResourceError` where a GPU is too small for a rank, as far as that is known."""
    usable_gib = USABLE * config.cluster.gpu_memory_gib
    if not config.cluster.gpus_per_node or not usable_gib:
        return
    account = sft_account(config, sizes)
    if account.gib > usable_gib:
        largest = max(account.parts, key=lambda part: part.num_bytes)
        raise ResourceError(
            f"each {account.owner} needs {account.gib:.1f} GiB, most of it for {largest.name} ({largest.gib:.1f} GiB), "
            f"and {USABLE:.0%} of cluster.gpu_memory_gib={config.cluster.gpu_memory_gib:g} are {usable_gib:.1f} GiB",
            place="parallel, micro_batch_tokens, cluster.gpu_memory_gib",
            remedy="set recompute=full, lower micro_batch_tokens, or let more ranks share the model (parallel.tp, pp)",
        )
