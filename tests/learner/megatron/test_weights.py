"""From a folder to the ranks that share a model, and back."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.errors import ModelError
from learner.megatron.head import Head
from learner.megatron.model import HiddenStates, build_chunks
from learner.megatron.runtime import Ground
from learner.megatron.weights import load_shard, named_weights
from learner.model_shape import ModelShape, read_shape
from learner.place import Place
from learner.weight_files import WeightFiles
from tests.learner.conftest import MakeReference, read_folder
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

DENSE = [
    ParallelConfig(tp=2),
    ParallelConfig(pp=2),
    ParallelConfig(pp=2, vpp=2),
    ParallelConfig(tp=2, pp=2, sequence_parallel=True),
    ParallelConfig(dp=2),
]
EXPERTS = [
    ParallelConfig(ep=2, dp=2),
    ParallelConfig(tp=2, ep=2, sequence_parallel=True),
    ParallelConfig(tp=2, etp=2, sequence_parallel=True),
    ParallelConfig(pp=2, ep=2, dp=2),
    ParallelConfig(ep=2, etp=2, dp=4),
]


def num_ranks(parallel: ParallelConfig) -> int:
    return parallel.ranks_of_copy * max(parallel.dp, 1)


def empty_chunks(ground: Ground, shape: ModelShape, head: Head) -> list[HiddenStates]:
    """A rank's pieces, with nothing in them that a number could be taken for."""
    chunks = build_chunks(shape, torch.float32, head, parallel=ground.parallel, recompute=Recompute.none)
    with torch.no_grad():
        for chunk in chunks:
            for parameter in chunk.parameters():
                parameter.fill_(torch.nan)
    return chunks


def there_and_back(place: Place, parallel: ParallelConfig, folder: Path) -> dict[str, list[object]]:
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        shape = read_shape(folder)
        chunks = empty_chunks(ground, shape, Head.VOCABULARY)
        load_shard(chunks, shape, folder, Head.VOCABULARY)
        # Lists, since tensors do not survive the end of a forked process.
        return {name: tensor.tolist() for name, tensor in named_weights(chunks, shape, lambda parameter: parameter)}


@pytest.mark.parametrize(
    ("architecture", "parallel", "tie"),
    [
        *(("Qwen3ForCausalLM", parallel, tie) for parallel in [ParallelConfig(), *DENSE] for tie in (True, False)),
        *(("Qwen2ForCausalLM", parallel, True) for parallel in DENSE),
        ("LlamaForCausalLM", ParallelConfig(tp=2), False),
        *(("Qwen3MoeForCausalLM", parallel, False) for parallel in [ParallelConfig(), *EXPERTS]),
        ("MixtralForCausalLM", ParallelConfig(tp=2, ep=2, sequence_parallel=True), True),
    ],
)
def test_a_folder_comes_back_bit_for_bit(
    make_reference: MakeReference, tmp_path: Path, architecture: str, parallel: ParallelConfig, tie: bool
) -> None:
    make_reference(architecture, tie_word_embeddings=tie, num_hidden_layers=4)
    speaker, *others = run_ranks(num_ranks(parallel), there_and_back, parallel, tmp_path / "model")
    assert not any(others)
    assert speaker == {name: tensor.tolist() for name, tensor in read_folder(tmp_path / "model").items()}
    assert next(iter(speaker)) == "model.embed_tokens.weight"
    assert list(speaker)[-1] == ("model.norm.weight" if tie else "lm_head.weight")


def read_and_held(place: Place, parallel: ParallelConfig, folder: Path) -> tuple[int, int]:
    """How many numbers were read, and how many the rank's parameters are."""
    num_read = 0
    read = WeightFiles.read

    def counting(files: WeightFiles, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        nonlocal num_read
        tensor = read(files, name, part)
        num_read += tensor.numel()
        return tensor

    WeightFiles.read = counting  # type: ignore[method-assign, assignment]
    with Ground(parallel, place, seed=0, num_threads=1) as ground:
        shape = read_shape(folder)
        chunks = empty_chunks(ground, shape, Head.VOCABULARY)
        load_shard(chunks, shape, folder, Head.VOCABULARY)
        return num_read, sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())


def test_a_rank_reads_what_it_holds_and_nothing_else(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3MoeForCausalLM", vocab_size=64)
    for parallel in (ParallelConfig(tp=2, ep=2, sequence_parallel=True), ParallelConfig(pp=2)):
        for num_read, num_held in run_ranks(2, read_and_held, parallel, tmp_path / "model"):
            assert num_read == num_held


def padding(place: Place, folder: Path) -> list[float]:
    """The last rank's rows of a vocabulary of 67 behind its own 33."""
    with Ground(ParallelConfig(tp=2), place, seed=0, num_threads=1) as ground:
        shape = read_shape(folder)
        (chunk,) = empty_chunks(ground, shape, Head.VOCABULARY)
        load_shard([chunk], shape, folder, Head.VOCABULARY)
        rows = chunk.embedding.word_embeddings.weight
        assert rows.isfinite().all()
        return [float(row.abs().sum()) for row in rows[33:]]


def test_words_that_are_not_there_are_0(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    first, last = run_ranks(2, padding, tmp_path / "model")
    assert first[0] > 0
    assert last == [0.0]


def test_a_value_head_stays_0(ground: Ground, make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    shape = read_shape(tmp_path / "model")
    chunks = build_chunks(shape, torch.float32, Head.VALUE, parallel=ground.parallel, recompute=Recompute.none)
    load_shard(chunks, shape, tmp_path / "model", Head.VALUE)
    assert chunks[0].output_layer.weight.tolist() == [[0.0] * 64]


def replace_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Names with `__` for the dots."""
    weights = read_folder(folder) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")


def refused(place: Place, folder: Path) -> str:
    with Ground(ParallelConfig(pp=2), place, seed=0, num_threads=1) as ground:
        shape = read_shape(folder)
        chunks = empty_chunks(ground, shape, Head.VOCABULARY)
        with pytest.raises(ModelError) as caught:
            load_shard(chunks, shape, folder, Head.VOCABULARY)
        return str(caught.value)


@pytest.mark.parametrize("tie", [True, False])
def test_every_rank_names_a_missing_weight(make_reference: MakeReference, tmp_path: Path, tie: bool) -> None:
    make_reference(tie_word_embeddings=tie)
    replace_weights(tmp_path / "model", model__layers__1__mlp__up_proj__weight=None)
    first, second = run_ranks(2, refused, tmp_path / "model")
    assert first == second
    assert "model.layers.1.mlp.up_proj.weight is missing; config.json asks for shape (96, 64)" in first


def test_a_weight_of_another_shape_is_named(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference()
    replace_weights(tmp_path / "model", model__norm__weight=torch.ones(3))
    first, _ = run_ranks(2, refused, tmp_path / "model")
    assert "of shape (3,); config.json asks for shape (64,)" in first
