"""A fine-tuning process from start to end: model, rows, trainer, written folder.

Owns what is made in which order. Shows nothing: that is the observer's.
"""

from pathlib import Path

from async_rl.config.schema import ModelConfig, SftConfig
from async_rl.data.prompt_set import PromptSet
from async_rl.data.row import Row
from async_rl.data.source import load_rows, load_task
from async_rl.data.tokenizer import Tokenizer, save_character_tokenizer
from learner.megatron.backend import MegatronBackend
from learner.megatron.runtime import Ground
from learner.model_folder import create_model
from learner.place import Place
from learner.sft import Pair, SftObserver, SftTrainer, make_pairs


def run_sft(config: SftConfig, *, run_folder: Path, observer: SftObserver) -> None:
    """Trains, and writes a Hugging Face folder to `config.output`.

    Raises:
        UserError: data, task or model cannot be used.
        NonFiniteError: the loss is not finite in one step after the other.
    """
    rows, held_out_rows = _rows(config, is_held_out=False), _rows(config, is_held_out=True)
    folder = Path(config.model.path) if config.model.path else _make_model(config, run_folder / "new_model")
    tokenizer = Tokenizer(folder)
    pairs, held_out = [
        _pairs(some, tokenizer, config.data.max_prompt_tokens, observer) for some in (rows, held_out_rows)
    ]
    with Ground(config.parallel, Place(), seed=config.seed, num_threads=config.num_threads) as ground:
        backend = MegatronBackend(
            ground,
            ModelConfig(path=str(folder), dtype=config.model.dtype),
            config.optimizer,
            num_steps=config.steps,
            recompute=config.recompute,
        )
        try:
            SftTrainer(config, backend, observer).train(pairs, held_out)
            backend.export(Path(config.output))
        finally:
            backend.close()


def _rows(config: SftConfig, *, is_held_out: bool) -> list[Row]:
    return list(load_rows(config.data, is_held_out=is_held_out, seed=config.seed))


def _pairs(rows: list[Row], tokenizer: Tokenizer, max_prompt_tokens: int, observer: SftObserver) -> list[Pair]:
    prompts = PromptSet.build(rows, tokenizer, max_tokens=max_prompt_tokens)
    for message in prompts.messages:
        observer.said(message)
    return make_pairs(prompts.prompts, tokenizer)


def _make_model(config: SftConfig, folder: Path) -> Path:
    """A model from scratch for a procedural task, with a token a character."""
    tokenizer = folder.with_name("tokenizer")
    save_character_tokenizer(load_task(config.data.task).alphabet, tokenizer)
    create_model(folder, config.new_model, tokenizer=tokenizer, seed=config.seed)
    return folder
