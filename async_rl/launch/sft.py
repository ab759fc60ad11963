"""Which processes train a fine-tuning.

    one rank         this one
    under torchrun   this one too, as each of its processes; rank 0 shows and writes
    several ranks    a Ray actor each, of which the first tells this process what happens

Owns the choice. Whoever trains here loads Megatron, whoever watches others loads Ray: each import waits for its choice.
"""

from rich.console import Console

from async_rl.config.ranks import num_sft_ranks
from async_rl.config.schema import SftConfig
from async_rl.launch.process import take_interrupts
from async_rl.launch.sft_run import watch
from async_rl.launch.start import Resume, folder_of
from async_rl.summary import Exit
from learner.place import Place


def launch_sft(config: SftConfig, place: Place, *, resume: Resume, console: Console) -> Exit:
    """Trains, shows progress, and writes the model to `config.output`.

    Args:
        config: the run.
        place: of this process, where several run the same command; rank 0 prepares, shows and writes.
        resume: what becomes of an earlier run of its name.
        console: to show progress on.

    Raises:
        UserError: data, task or model cannot be used.
        RunError: the loss is not finite in one step after the other.
    """
    take_interrupts()
    if place.world_size == 1 and num_sft_ranks(config) > 1:
        from async_rl.launch.sft_group import SftGroup

        with folder_of(config).locked():
            return watch(config, resume, console, SftGroup(config).train)
    from async_rl.launch.sft_here import train_here

    return train_here(config, place, resume=resume, console=console)
