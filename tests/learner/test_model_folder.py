"""Folders read, written and made anew, as transformers sees them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from async_rl.config.model import NewModel
from async_rl.config.sft_rules import MODEL_FAMILIES
from async_rl.errors import DataError, ModelError
from learner import model_folder
from learner.model_folder import create_model, write_model
from learner.model_shape import MoeShape, read_shape
from tests.learner.conftest import MakeReference, read_folder

SMALL = NewModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, intermediate_size=64)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of 13 words."""
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *"0123456789", "+"])}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("family", MODEL_FAMILIES)
@pytest.mark.parametrize("tie", [True, False])
def test_a_new_model_loads_in_transformers(tmp_path: Path, tokenizer: Path, family: str, tie: bool) -> None:
    shape = replace(SMALL, family=family, intermediate_size=96, tie_embeddings=tie)
    create_model(tmp_path / "new", shape, tokenizer=tokenizer, seed=0)
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert model.dtype == torch.float32
    assert (model.config.vocab_size, model.config.head_dim, model.config.max_position_embeddings) == (13, 32, 256)
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)
    assert model.config.tie_word_embeddings is tie
    assert len(AutoTokenizer.from_pretrained(tmp_path / "new")) == 13
    assert read_shape(tmp_path / "new").num_layers == 2


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_new_model_has_the_experts_that_were_asked_for(tmp_path: Path, tokenizer: Path, family: str) -> None:
    create_model(tmp_path / "new", replace(SMALL, family=family, num_experts=3, top_k=2), tokenizer=tokenizer, seed=0)
    assert read_shape(tmp_path / "new").moe == MoeShape(
        num_experts=3, top_k=2, intermediate_size=64, normalize_top_k=True
    )
    experts = [name for name in read_folder(tmp_path / "new") if ".experts." in name]
    assert len(experts) == 2 * 3 * 3  # layers, experts, matrices


def test_the_seed_alone_decides_the_weights(tmp_path: Path, tokenizer: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)
        create_model(tmp_path / name, SMALL, tokenizer=tokenizer, seed=seed)
    a, b, c = (read_folder(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["model.embed_tokens.weight"], c["model.embed_tokens.weight"])


def test_making_a_model_leaves_the_random_state_alone(tmp_path: Path, tokenizer: Path) -> None:
    before = torch.get_rng_state()
    create_model(tmp_path / "new", SMALL, tokenizer=tokenizer, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_family_is_named_with_those_supported(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(ModelError, match="llama, mixtral, qwen3, qwen3_moe"):
        create_model(tmp_path / "new", NewModel(family="gpt2"), tokenizer=tokenizer, seed=0)


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="tokenizer") as caught:
        create_model(tmp_path / "new", NewModel(), tokenizer=tmp_path / "empty", seed=0)
    assert caught.value.place == str(tmp_path / "empty")


@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000])
def test_a_written_copy_loads_in_transformers(
    make_reference: MakeReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int
) -> None:
    monkeypatch.setattr(model_folder, "_SHARD_BYTES", shard_bytes)
    reference = make_reference("LlamaForCausalLM")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    doubled = {name: 2 * tensor for name, tensor in reference.state_dict().items()}
    write_model(tmp_path / "copy", source=tmp_path / "model", tensors=doubled.items(), dtype=torch.float32)
    assert (len(list((tmp_path / "copy").glob("*.safetensors"))) > 1) is (shard_bytes == 20_000)
    assert (tmp_path / "copy" / "tokenizer.json").is_file()
    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    assert all(torch.equal(tensor, doubled[name]) for name, tensor in copy.state_dict().items())
    assert all(torch.equal(tensor, doubled[name]) for name, tensor in read_folder(tmp_path / "copy").items())


def test_a_smaller_copy_leaves_nothing_of_a_larger_one(
    make_reference: MakeReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = make_reference("LlamaForCausalLM").state_dict()
    for shard_bytes in (20_000, 1 << 30):
        monkeypatch.setattr(model_folder, "_SHARD_BYTES", shard_bytes)
        write_model(tmp_path / "copy", source=tmp_path / "model", tensors=tensors.items(), dtype=torch.float32)
    assert [file.name for file in (tmp_path / "copy").glob("model*")] == ["model.safetensors"]


def test_the_config_names_the_format_of_the_written_weights(make_reference: MakeReference, tmp_path: Path) -> None:
    tensors = make_reference().state_dict()
    write_model(tmp_path / "copy", source=tmp_path / "model", tensors=tensors.items(), dtype=torch.bfloat16)
    assert json.loads((tmp_path / "copy" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in read_folder(tmp_path / "copy").values()} == {torch.bfloat16}
