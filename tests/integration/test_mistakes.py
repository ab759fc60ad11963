"""Each mistake of a user: three lines that name the value, the place and the remedy, exit code 2, nothing started."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import ASYNC_RL, CONFIG

pytestmark = pytest.mark.integration


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    """A config without mistakes, and a model of its own."""
    shutil.copytree(tiny_model, tmp_path / "model")
    path = tmp_path / "run.yaml"
    rewards = Path(__file__).with_name("rewards.py")
    path.write_text(CONFIG.format(model=tmp_path / "model", rewards=rewards, ray=""))
    return path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def refused(config: Path, *overrides: str) -> str:
    """What the user sees; and nothing else happened."""
    run = subprocess.run(
        [str(ASYNC_RL), "launch", str(config), f"runs_dir={config.parent}", *overrides],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert run.returncode == 2, (run.stdout, run.stderr)
    assert "Traceback" not in run.stderr
    assert "where:" in run.stderr and "remedy:" in run.stderr
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(config) in " ".join(p.info["cmdline"] or [])]
    return run.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("staleness.depht=1", ["staleness.depht", "staleness.depth"]),
        ("steps=many", ["many", "steps"]),
        ("staleness.max=0", ["staleness.depth=1", "staleness.max=0"]),
        ("generation.group_size=1", ["generation.group_size=1", "baseline"]),
        ("data.task=", ["data.task", "data.train"]),
        ("model.path=/nowhere", ["/nowhere", "model.path", "async-rl sft"]),
        ("reward.function=nowhere:reward", ["nowhere", "reward.function"]),
        ("reward.function=async_rl.errors:UserError", ["reward.function"]),
        ("cluster.address=127.0.0.1:1", ["127.0.0.1:1", "cluster.address", "HOST:6379"]),
        ("correction=tis", ["correction=tis", "decoupled_token_is"]),
    ],
)
def test_a_wrong_option_is_refused(config: Path, override: str, words: list[str]) -> None:
    said = refused(config, override)
    assert all(word in said for word in words), said


def test_a_missing_file_is_refused(config: Path) -> None:
    said = refused(config, "data.task=", "data.train=/nowhere.jsonl")
    assert "/nowhere.jsonl" in said and "data.train" in said


def test_a_broken_line_of_data_is_named(config: Path) -> None:
    data = config.with_name("rows.jsonl")
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", \n')
    said = refused(config, "data.task=", f"data.train={data}")
    assert "line 2" in said and "data.train" in said


def test_a_yaml_without_the_schema_is_refused(config: Path) -> None:
    bare = config.with_name("bare.yaml")
    bare.write_text("steps: 3\n")
    assert "run_schema" in refused(bare)
    assert "nowhere.yaml" in refused(config.with_name("nowhere.yaml"))


@pytest.mark.parametrize("damage", ["no config", "no weights", "half the weights", "no tokenizer", "architecture"])
def test_an_unreadable_model_folder_is_refused(config: Path, damage: str) -> None:
    model = config.with_name("model")
    match damage:
        case "no config":
            (model / "config.json").unlink()
        case "no weights":
            (model / "model.safetensors").unlink()
        case "half the weights":
            weights = model / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        case "no tokenizer":
            (model / "tokenizer.json").unlink()
        case "architecture":
            text = (model / "config.json").read_text()
            (model / "config.json").write_text(text.replace("Qwen3ForCausalLM", "MambaForCausalLM"))
    said = refused(config)
    assert str(model) in said or "model.path" in said, said


def test_an_occupied_port_is_refused(config: Path, taken_port: int) -> None:
    said = refused(config, f"channel.port={taken_port}")
    assert str(taken_port) in said and "channel.port" in said


def test_a_full_shared_memory_is_refused(config: Path) -> None:
    # A sparse file of a tensor that no machine has room for twice.
    size = 1 << 43
    header = json.dumps({"huge": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with (config.with_name("model") / "more.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    said = refused(config)
    assert "/dev/shm" in said and "MiB" in said
