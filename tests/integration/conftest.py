"""Real runs: one Ray for all tests, one tiny model, and the command line that a user types."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from async_rl.config.model import NewModel
from async_rl.data.tasks.addition import Addition
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.protocol import Scalar
from async_rl.summary import Summary
from async_rl.trained_log import TrainedBatch, TrainedLog
from learner.model_folder import create_model

ASYNC_RL = Path(sys.executable).with_name("async-rl")
RUN_TIMEOUT_S = 240.0

CONFIG = """
defaults: [run_schema, _self_]
steps: 12
data: {{task: "async_rl.data.tasks.addition:Addition", num_train: 64, num_evaluate: 4, max_prompt_tokens: 8}}
model: {{path: {model}}}
reward: {{function: "{rewards}:reward"}}
generation: {{group_size: 4, max_new_tokens: 16, max_model_len: 32, max_concurrent: 32, kv_cache_gib: 0.25}}
learner: {{groups_per_step: 4, optimizer: {{lr: 1.0e-3}}}}
staleness: {{max: 4, depth: 1}}
tracking: {{aim: false}}
cluster: {{address: "{ray}"}}
"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with a token a character."""
    folder = tmp_path_factory.mktemp("model")
    save_character_tokenizer(Addition.alphabet, folder / "tokenizer")
    shape = NewModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=32, intermediate_size=128)
    create_model(folder / "model", shape, tokenizer=folder / "tokenizer", seed=0)
    return folder / "model"


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """One Ray for all runs; theirs would take seconds each."""
    import ray

    context = ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield str(context.address_info["gcs_address"])
    ray.shutdown()


@dataclass
class RunProcess:
    """`async-rl launch`, and what it made."""

    process: subprocess.Popen[str]
    folder: Path
    output: str = ""
    exit_code: int | None = field(default=None)

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> "RunProcess":
        """To its end."""
        self.output, _ = self.process.communicate(timeout=timeout_s)
        self.exit_code = self.process.returncode
        return self

    def until(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Waits while it runs."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline_s, "it took too long"
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    @property
    def trained(self) -> list[TrainedBatch]:
        """What the run says that it trained."""
        return TrainedLog(self.folder / "trained.jsonl").read()

    @property
    def trained_ids(self) -> list[int]:
        """Group ids in the order in which they trained."""
        return [i for batch in self.trained for i in batch.group_ids]

    @property
    def summary(self) -> Summary:
        """summary.json."""
        return Summary.from_json((self.folder / "summary.json").read_bytes())

    def pids(self, name: str) -> list[int]:
        """Process ids of every life of a process, from its log."""
        log = self.folder / "logs" / f"{name}.log"
        return [int(n) for n in re.findall(rf"{name} is process (\d+)", log.read_text())] if log.exists() else []


Launch = Callable[..., RunProcess]


@pytest.fixture
def launch(tmp_path: Path, tiny_model: Path, ray_address: str) -> Iterator[Launch]:
    """Starts a run with options over the small config; ends it if the test does not."""
    started: list[subprocess.Popen[str]] = []
    rewards = Path(__file__).with_name("rewards.py")
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(model=tiny_model, rewards=rewards, ray=ray_address))

    def start(*arguments: str, **options: Scalar) -> RunProcess:
        overrides = [f"{name.replace('__', '.')}={value}" for name, value in options.items()]
        command = [str(ASYNC_RL), "launch", str(config), *arguments, "name=run", f"runs_dir={tmp_path}", *overrides]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "160"}
        )
        started.append(process)
        return RunProcess(process=process, folder=tmp_path / "run")

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
