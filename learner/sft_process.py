"""One rank of a fine-tuning from start to end: model, rows, trainer, written folder.

Owns what is made in which order. Shows nothing: that is whoever's it tells. Every rank reads all rows, since each plans
every batch; what it trains is its shard's part.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch

from async_rl.checkpoints import Checkpoints
from async_rl.config.model import ModelConfig
from async_rl.config.schema import SftConfig
from async_rl.data.chat import Chat
from async_rl.data.example_set import Example, ExampleSet
from async_rl.data.row import Row
from async_rl.data.sft_source import load_sft_rows
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import ConfigError
from async_rl.sizing.model_json import read_sizes
from async_rl.summary import Exit
from async_rl.walltime import Walltime
from learner.agreement import agreed
from learner.checkpoint_check import check_checkpoint
from learner.megatron.backend import MegatronBackend
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground, device
from learner.model_shape import read_shape
from learner.peak_flops import peak_flops
from learner.place import Place
from learner.sft import SftTrainer
from learner.sft_events import Began, Said, SftEvent, Tell
from learner.sft_start import SftStart


def run_sft(
    config: SftConfig,
    start: SftStart,
    ground: Ground,
    place: Place,
    *,
    tell: Tell,
    is_stopping: Callable[[], bool],
    wants_checkpoint: Callable[[], bool] = lambda: False,
) -> Exit:
    """Trains, and where that was completed writes a Hugging Face folder to `config.output`.

    Args:
        config: the run.
        start: where it begins.
        ground: that this rank stands on.
        place: of this rank among them.
        tell: is told what happens, by the rank that speaks for all.
        is_stopping: whether this process was asked to end after its step.
        wants_checkpoint: whether it was asked for one since it was last called.

    Raises:
        UserError: data, task or model cannot be used.
        NonFiniteError: the loss is not finite in one step after the other.
    """
    mesh = MegatronMesh()
    if not mesh.is_speaker:
        tell = _tell_nobody

    def read() -> tuple[Sequence[Example], Sequence[Example]]:
        train, held = (_examples(config, start.model, is_held_out=flag, tell=tell) for flag in (False, True))
        return train, held

    training, held_out = agreed(mesh, place.rank, read)
    model = ModelConfig(path=str(start.model), dtype=config.model.dtype)
    backend = MegatronBackend(ground, model, config.optimizer, num_steps=config.steps, recompute=config.recompute)
    num_ranks = ground.parallel.ranks_of_copy * ground.parallel.dp
    with closing(backend):
        trainer = SftTrainer(
            config,
            backend=backend,
            mesh=mesh,
            sizes=read_sizes(start.model),
            state=start.state,
            checkpoints=Checkpoints.of(start.folder.checkpoints, config.checkpoint),
            peak_flops=num_ranks * mesh.largest(_rank_flops(config)),
            tell=tell,
            walltime=_walltime(config, start),
            is_stopping=is_stopping,
            wants_checkpoint=wants_checkpoint,
        )
        if start.checkpoint is not None:
            check_checkpoint(start.checkpoint, place, mesh)
            trainer.load(start.checkpoint)
        tell(Began(num_examples=len(training), num_held_out=len(held_out), num_ranks=num_ranks))
        exit_ = trainer.train(training, held_out)
        if exit_ is Exit.COMPLETED:
            backend.export(Path(config.output))
    return exit_


def _walltime(config: SftConfig, start: SftStart) -> Walltime:
    """Of the whole run, by the trainer's clock."""
    age_s = time.time() - start.began_s
    return Walltime(limit_s=config.checkpoint.walltime_s, began_s=time.perf_counter() - age_s)


def _rank_flops(config: SftConfig) -> float:
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    return peak_flops(config.cluster.peak_tflops, device=device(), dtype=dtype)


def _tell_nobody(event: SftEvent) -> None:
    """Of all ranks one speaks."""


def _examples(config: SftConfig, model: Path, *, is_held_out: bool, tell: Tell) -> Sequence[Example]:
    data, tokenizer, max_tokens = config.data, Tokenizer(model), _max_tokens(config, model)
    loaded = load_sft_rows(data, is_held_out=is_held_out, seed=config.seed)
    chats = [row for row in loaded.rows if isinstance(row, Chat)]
    if chats:
        built = ExampleSet.of_chats(chats, tokenizer, learn=data.learn_turns, max_tokens=max_tokens)
    else:
        pairs = [row for row in loaded.rows if isinstance(row, Row)]
        built = ExampleSet.of_pairs(pairs, tokenizer, max_prompt_tokens=data.max_prompt_tokens, max_tokens=max_tokens)
    for message in loaded.messages + built.messages:
        tell(Said(message=message))
    return built.examples


def _max_tokens(config: SftConfig, model: Path) -> int:
    """Of a row: what the config says, else what the model reads and a micro-batch holds."""
    asked, positions = config.data.max_tokens, read_shape(model).max_positions
    if asked > positions:
        raise ConfigError(
            f"data.max_tokens={asked}, and the model reads {positions} tokens at most",
            place=f"data.max_tokens, {model / 'config.json'}",
            remedy=f"set data.max_tokens={positions} or less",
        )
    return asked or min(positions, config.micro_batch_tokens)
