"""Reward against trained tokens, by staleness and correction: what off-policy data costs, and what correcting saves.

    python benchmarks/staleness_sweep.py [--figure FILE.svg] [--json FILE] [--folder DIR]

Whole runs of the quickstart's task, some 40 s each: {4 staleness} × {5 corrections} × {3 seeds} take 40 minutes on a
machine that does nothing else. Staleness S is reached for certain, whoever is faster: weights are published after every
S batches. The learning rate is constant and higher than the quickstart's (`REGIME`): there staleness does little harm.
Each finished run is kept in the folder, and a broken sweep goes on from there.

V-trace has a critic for a baseline, the others their group: so it is compared with GAE, its own uncorrected form. At
staleness NN, `gain_sNN` is the final reward with the better of token TIS and sequence mask over that with none,
`gain_vtrace_sNN` that of V-trace over that of GAE, means over the seeds.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import ray
from report import Report, Row
from rich.progress import track

matplotlib.use("svg")

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"
COMMAND = str(Path(sys.executable).with_name("async-rl"))

REGIME = ("learner.optimizer.lr=3.0e-4", "learner.optimizer.schedule=constant")
"""Where staleness hurts."""

CORRECTIONS: Mapping[str, Sequence[str]] = {
    "none": ("correction.weighting=off",),
    "token TIS": ("correction.weighting=truncated", "correction.cap=2.0"),
    "sequence mask": (
        "correction.weighting=masked",
        "correction.level=sequence",
        "correction.floor=0.5",
        "correction.cap=2.0",
    ),
    "none, critic": ("advantage.estimator=gae", "correction.weighting=off", "critic.optimizer.lr=1.0e-3"),
    "V-trace": ("advantage.estimator=vtrace", "correction.weighting=off", "critic.optimizer.lr=1.0e-3"),
}
LAST_SHARE = 0.2
"""The final reward is the mean over the last fifth of the trained tokens."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the sweep."""

    staleness: int
    correction: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"s{self.staleness:02d}-{self.correction.replace(',', '').replace(' ', '-').lower()}-{self.seed}"

    @property
    def options(self) -> list[str]:
        """Of `async-rl launch`."""
        bound = [
            f"staleness.max={self.staleness}",
            f"staleness.depth={min(self.staleness, 1)}",
            f"weights.publish_every={max(self.staleness, 1)}",
        ]
        return [*REGIME, *bound, *CORRECTIONS[self.correction], f"seed={self.seed}"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What a run says of itself, one number a version."""

    tokens: npt.NDArray[np.float64]
    """Trained so far."""
    reward: npt.NDArray[np.float64]
    staleness: npt.NDArray[np.float64]
    ess: npt.NDArray[np.float64]

    @property
    def final(self) -> float:
        """Mean reward at the end."""
        return float(self.reward[self.tokens >= (1 - LAST_SHARE) * self.tokens[-1]].mean())


def launch(case: Case, folder: Path, model: Path, steps: int, ray_address: str) -> None:
    """One whole run, unless it is there already."""
    if (folder / case.name / "summary.json").exists():
        return
    place = [f"model.path={model}", f"runs_dir={folder}", f"name={case.name}"]
    lean = ["tracking.aim=false", "checkpoint.every=0", "data.num_evaluate=0", f"steps={steps}"]
    lean += [f"cluster.address={ray_address}"]
    command = [COMMAND, "launch", str(CONFIGS / "quickstart.yaml"), *place, *lean, *case.options]
    with (folder / f"{case.name}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def read_curve(run: Path) -> Curve:
    """From the run's metrics."""
    lines = [json.loads(line)["scalars"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [scalars for scalars in lines if "reward/mean" in scalars]

    def column(name: str) -> npt.NDArray[np.float64]:
        return np.array([scalars[name] for scalars in steps], np.float64)

    return Curve(
        tokens=np.cumsum(column("learner/tokens")),
        reward=column("reward/mean"),
        staleness=column("staleness/mean"),
        ess=column("mu_prox/ess"),
    )


def cases(staleness: Sequence[int], seeds: int) -> Iterator[Case]:
    """All of them, seed by seed: a sweep that is cut short has whole seeds."""
    for seed in range(seeds):
        for bound in staleness:
            for correction in CORRECTIONS:
                yield Case(staleness=bound, correction=correction, seed=seed)


def table(curves: Mapping[Case, Curve], staleness: Sequence[int]) -> list[Row]:
    """A line for each staleness and correction."""
    rows: list[Row] = []
    for bound in staleness:
        for correction in CORRECTIONS:
            own = [c for case, c in curves.items() if (case.staleness, case.correction) == (bound, correction)]
            finals = [c.final for c in own]
            rows.append(
                {
                    "correction": correction,
                    "staleness": bound,
                    "measured": float(np.mean([c.staleness[len(c.staleness) // 2 :].mean() for c in own])),
                    "final reward": float(np.mean(finals)),
                    "lowest": min(finals),
                    "highest": max(finals),
                    "ESS of π_prox/μ": float(np.mean([c.ess.mean() for c in own])),
                }
            )
    return rows


def gains(rows: Sequence[Row]) -> dict[str, float]:
    """Corrected over uncorrected, for each staleness and either baseline."""
    ratios = {}
    for bound in sorted({int(row["staleness"]) for row in rows}):
        own = {str(row["correction"]): float(row["final reward"]) for row in rows if row["staleness"] == bound}
        ratios[f"gain_s{bound:02d}"] = max(own["token TIS"], own["sequence mask"]) / max(own["none"], 1e-9)
        ratios[f"gain_vtrace_s{bound:02d}"] = own["V-trace"] / max(own["none, critic"], 1e-9)
    return ratios


def draw(curves: Mapping[Case, Curve], staleness: Sequence[int], path: Path) -> None:
    """A panel for each staleness, a line for each correction: the mean over seeds, and their range."""
    figure, panels = plt.subplots(1, len(staleness), figsize=(3.2 * len(staleness), 3.2), sharey=True, squeeze=False)
    for panel, bound in zip(panels[0], staleness, strict=True):
        for correction in CORRECTIONS:
            own = [c for case, c in curves.items() if (case.staleness, case.correction) == (bound, correction)]
            grid = np.linspace(0, min(c.tokens[-1] for c in own), 60)
            lines = np.stack([np.interp(grid, c.tokens, smooth(c.reward)) for c in own])
            (line,) = panel.plot(grid / 1000, lines.mean(0), label=correction)
            panel.fill_between(grid / 1000, lines.min(0), lines.max(0), alpha=0.15, color=line.get_color())
        panel.set(title=f"staleness {bound}", xlabel="trained tokens, thousands", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("reward of the batch")
    panels[0][-1].legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def smooth(values: npt.NDArray[np.float64], window: int = 5) -> npt.NDArray[np.float64]:
    """Mean of the last few."""
    sums = np.cumsum(np.concatenate([np.zeros(1), values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), np.float64)


def main() -> int:
    """Runs the sweep and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2, 8, 16], help="bounds to try")
    parser.add_argument("--steps", type=int, default=60, help="batches of each run")
    parser.add_argument("--folder", type=Path, default=Path("runs/staleness-sweep"), help="keeps the runs")
    parser.add_argument("--figure", type=Path, help="where to draw the curves, as SVG")
    parser.add_argument("--json", type=Path, help="where to write the outcome as data")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model"
    if not model.exists():
        options = [f"output={model}", f"runs_dir={folder}", "name=warm-start", "tracking.aim=false"]
        subprocess.run([COMMAND, "sft", str(CONFIGS / "quickstart-sft.yaml"), *options], check=True)
    curves = {}
    # One Ray for all runs; theirs would take seconds each.
    address = str(ray.init(include_dashboard=False, log_to_driver=False).address_info["gcs_address"])
    for case in track(list(cases(arguments.staleness, arguments.seeds)), description="runs"):
        launch(case, folder, model, arguments.steps, address)
        curves[case] = read_curve(folder / case.name)
    ray.shutdown()
    rows = table(curves, arguments.staleness)
    Report(title="reward by staleness and correction", ratios=gains(rows), rows=rows).publish(arguments.json)
    draw(curves, arguments.staleness, arguments.figure or folder / "figure.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
