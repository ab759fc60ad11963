"""Whether the quickstart learns whatever the seed: warm start and run, once a seed, against what the README promises.

    python benchmarks/quickstart_seeds.py [--seeds 5] [--json FILE]

About a minute and a half each. `reward_gain` is the smallest ratio of held-out reward after training to before. Exits 1
where a seed falls short.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Report, Row

from async_rl.summary import Summary

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"


def run(seed: int, folder: Path) -> None:
    """The quickstart's two commands with another seed."""
    command = str(Path(sys.executable).with_name("async-rl"))
    place = [f"seed={seed}", f"runs_dir={folder}", "tracking.aim=false"]
    model = folder / f"model-{seed}"
    warm_start = [command, "sft", str(CONFIGS / "quickstart-sft.yaml"), f"output={model}", f"name=sft-{seed}"]
    training = [command, "launch", str(CONFIGS / "quickstart.yaml"), f"model.path={model}", f"name=run-{seed}"]
    for words in (warm_start, training):
        subprocess.run([*words, *place], check=True, stdout=subprocess.DEVNULL)


def has_learned(summary: Path) -> bool:
    """What CI asks of its own quickstart run."""
    check = [sys.executable, str(REPOSITORY / ".ci" / "check_quickstart.py"), str(summary)]
    return subprocess.run(check, check=False).returncode == 0


def row(seed: int, folder: Path) -> Row:
    """A line of the table."""
    path = folder / f"run-{seed}" / "summary.json"
    summary, learned = Summary.from_json(path.read_bytes()), has_learned(path)
    reward, greedy = summary.reward, summary.greedy
    assert reward.start is not None and reward.end is not None and summary.wall_s is not None
    assert greedy.start is not None and greedy.end is not None
    return {
        "seed": seed,
        "reward before": reward.start,
        "reward after": reward.end,
        "greedy before": greedy.start,
        "greedy after": greedy.end,
        "training s": summary.wall_s,
        "learned": "yes" if learned else "no",
    }


def main() -> int:
    """Runs every seed and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this")
    parser.add_argument("--json", type=Path, help="where to write the outcome as data")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="seeds-") as name:
        for seed in range(arguments.seeds):
            print(f"seed {seed}", flush=True)
            run(seed, Path(name))
            rows.append(row(seed, Path(name)))
    gain = min(float(r["reward after"]) / max(float(r["reward before"]), 1e-9) for r in rows)
    Report(title="the quickstart, seed by seed", ratios={"reward_gain": gain}, rows=rows).publish(arguments.json)
    return 0 if all(r["learned"] == "yes" for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
