"""What overlap is worth: the same run synchronous (staleness.max=0) and asynchronous, wall-clock for the same tokens.

    python benchmarks/overlap.py [--steps 60] [--json FILE]

One generator on one core, the learner on the other, so 2 is the limit. The workload is chosen so that generating and
training a batch cost about the same; the idle shares of both sides say how far that holds. Both runs are whole runs of
the product, with an untrained model whose responses differ in length, and a reward that needs no skill. `overlap` is
with keys and values kept over weight updates, `overlap_recompute` with those of running requests computed anew.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Report, Row

from async_rl.config.model import NewModel
from async_rl.data.tasks.addition import Addition
from async_rl.data.tokenizer import save_character_tokenizer
from async_rl.summary import Summary
from learner.model_folder import create_model

MODES = {
    "synchronous": ("staleness.max=0", "staleness.depth=0"),
    "asynchronous": ("staleness.max=4", "staleness.depth=2", "generation.kv_on_update=keep"),
    "asynchronous, recomputing": ("staleness.max=4", "staleness.depth=2", "generation.kv_on_update=recompute"),
}
REWARD = '''
def reward(prompt, response, answer, metadata):
    """Share of even digits: any model earns some of it."""
    return sum(c in "02468" for c in response) / max(len(response), 1)
'''
CONFIG = """
defaults: [run_schema, _self_]
steps: {steps}
data: {{task: "async_rl.data.tasks.addition:Addition", num_train: 512, num_evaluate: 8, max_prompt_tokens: 8}}
model: {{path: {folder}/model}}
reward: {{function: "{folder}/even.py:reward"}}
generation: {{group_size: 8, max_new_tokens: 64, max_model_len: 80, max_concurrent: 128, kv_cache_gib: 0.25}}
learner: {{groups_per_step: 16, optimizer: {{lr: 1.0e-6}}}}
tracking: {{aim: false}}
"""


def prepare(folder: Path, *, steps: int) -> Path:
    """Writes model, reward and config; returns the config."""
    save_character_tokenizer(Addition.alphabet, folder / "tokenizer")
    create_model(folder / "model", NewModel(), tokenizer=folder / "tokenizer", seed=0)
    (folder / "even.py").write_text(REWARD, encoding="utf-8")
    config = folder / "overlap.yaml"
    config.write_text(CONFIG.format(steps=steps, folder=folder), encoding="utf-8")
    return config


def run(config: Path, mode: str, folder: Path) -> Summary:
    """One whole run."""
    name = mode.split(",")[-1].strip()
    command = [str(Path(sys.executable).with_name("async-rl")), "launch", str(config)]
    options = [f"runs_dir={folder}", f"name={name}", *MODES[mode]]
    print(f"{mode}: {' '.join(MODES[mode])}", flush=True)
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return Summary.from_json((folder / name / "summary.json").read_bytes())


def row(mode: str, summary: Summary) -> Row:
    """A line of the table."""
    assert summary.wall_s and summary.tokens_per_s.learner and summary.idle.generators is not None
    assert summary.idle.learner is not None and summary.staleness.mean is not None
    return {
        "mode": mode,
        "wall s": summary.wall_s,
        "trained tokens": summary.trained_tokens,
        "trained tokens/s": summary.tokens_per_s.learner,
        "generator idle": summary.idle.generators,
        "learner idle": summary.idle.learner,
        "staleness mean": summary.staleness.mean,
    }


def main() -> None:
    """Runs both modes and reports their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="batches of each run")
    parser.add_argument("--json", type=Path, help="where to write the outcome as data")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overlap-") as name:
        folder = Path(name)
        config = prepare(folder, steps=arguments.steps)
        rows = [row(mode, run(config, mode, folder)) for mode in MODES]
    # Lengths differ from run to run, so speed is trained tokens per second, not wall-clock alone.
    synchronous, keeping, recomputing = (float(r["trained tokens/s"]) for r in rows)
    ratios = {"overlap": keeping / synchronous, "overlap_recompute": recomputing / synchronous}
    Report(title="overlap of generation and training", ratios=ratios, rows=rows).publish(arguments.json)


if __name__ == "__main__":
    main()
