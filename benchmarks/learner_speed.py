"""The learner's training step and scoring beside plain transformers and torch, and with and without shared prompts.

    python benchmarks/learner_speed.py [--sizes 1M 10M] [--samples 3] [--json FILE]

On one thread, in one process, in turns: tokens per second of the processor, a prompt counted once a response, whoever
computes it once. The opponent (learner_peer.py) is taken in the fastest of its layouts, batch by batch. `step_…` and
`score_…` are how many times as fast ours is as it runs by default, with prompts shared; `…_plain` without that; `least`
is the smallest of all these. `sharing_…` is shared against plain, at some ratios of prompt to response. Peaks of memory
are of weights, gradients, optimizer and the pass, each in a process of its own. Exits 1 where log-probabilities or
losses disagree.

Not named after the package that it measures: that would hide the package from the scripts beside it.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from contest import Outputs, compare, take_turns
from learner_batches import Batch, ratios, spreads
from learner_memory import Case, measure
from learner_models import SIZES, make
from learner_ours import OurLearner
from learner_peer import TransformersLearner
from learner_sides import OPTIMIZER, OURS, PEERS, PLAIN, SHARED, Side, our_side, peer_side
from report import Report, Row


@dataclass(frozen=True, kw_only=True)
class Times:
    """Of all sides in one pass over one batch."""

    size: str
    batch: Batch
    pass_name: str
    seconds: dict[str, float]
    agree: bool

    @property
    def name(self) -> str:
        """Of its ratios."""
        return f"{self.pass_name}_{self.batch.name}_{self.size}"

    @property
    def peer(self) -> str | None:
        """The opponent's fastest layout; None where it did not take part."""
        return min(set(PEERS) & set(self.seconds), key=lambda name: self.seconds[name], default=None)

    @property
    def cases(self) -> list[Case]:
        """Whose memory is measured."""
        chosen = [] if self.peer is None else [*OURS, self.peer]
        return [Case(self.size, self.batch.name, self.pass_name, side) for side in chosen]

    def ratios(self) -> dict[str, float]:
        """How many times as fast the first of two is."""
        if self.peer is None:
            return {f"sharing_{self.name}": self.seconds[PLAIN] / self.seconds[SHARED]}
        best = self.seconds[self.peer]
        return {self.name: best / self.seconds[SHARED], f"{self.name}_plain": best / self.seconds[PLAIN]}

    def row(self, peaks: dict[Case, float]) -> Row:
        """A line of the table."""
        speeds = {name: round(self.batch.num_tokens / seconds) for name, seconds in self.seconds.items()}
        mib = {case.side: round(peaks[case]) for case in self.cases}
        return {
            "model": self.size,
            "batch": self.batch.name,
            "pass": self.pass_name,
            "shared/s": speeds[SHARED],
            "plain/s": speeds[PLAIN],
            "peer/s": "" if self.peer is None else speeds[self.peer],
            "peer's": self.peer or "",
            "shared MiB": mib.get(SHARED, ""),
            "plain MiB": mib.get(PLAIN, ""),
            "peer MiB": "" if self.peer is None else mib[self.peer],
            "agree": "yes" if self.agree else "no",
        }


def hold(batch: Batch, size: str, sides: dict[str, Side], *, num_samples: int) -> Iterator[Times]:
    """Compares what the sides say of the batch, then times them."""
    said: list[Outputs] = [{"logprobs": side.score(), "loss": side.step()} for side in sides.values()]
    mask = torch.ones(0, dtype=torch.bool)
    agree = not any(compare(said[0], other, mask, 1e-4) for other in said)
    for pass_name in ("score", "step"):
        print(f"timing {size} {batch.name} {pass_name}", flush=True)
        calls = {name: side.call(pass_name) for name, side in sides.items()}
        seconds = take_turns(calls, num_samples=num_samples)
        yield Times(size=size, batch=batch, pass_name=pass_name, seconds=seconds, agree=agree)


def race(size: str, *, num_samples: int) -> list[Times]:
    """All batches with models of one size."""
    results: list[Times] = []
    with tempfile.TemporaryDirectory(prefix="learner-") as name:
        make(Path(name), size)
        with OurLearner(Path(name), OPTIMIZER) as ours:
            peer = TransformersLearner(Path(name), OPTIMIZER)
            for batch in spreads():
                sides = {side: our_side(batch, ours, side) for side in OURS}
                sides |= {side: peer_side(batch, peer, side) for side in PEERS}
                results += hold(batch, size, sides, num_samples=num_samples)
            for batch in ratios():
                sides = {side: our_side(batch, ours, side) for side in OURS}
                results += hold(batch, size, sides, num_samples=num_samples)
    return results


def publish(results: Sequence[Times], json_path: Path | None) -> None:
    """Measures memory, then prints and writes everything."""
    print("measuring memory", flush=True)
    peaks = measure([case for times in results for case in times.cases])
    found = {name: ratio for times in results for name, ratio in times.ratios().items()}
    least = min(ratio for name, ratio in found.items() if not name.startswith("sharing_"))
    Report(
        title="the learner beside transformers and torch: tokens a second of one core, and peaks of memory",
        ratios={"least": least, **found},
        rows=[times.row(peaks) for times in results],
    ).publish(json_path)


def main() -> int:
    """Times everything and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the models")
    parser.add_argument("--samples", type=int, default=3, help="of each call")
    parser.add_argument("--json", type=Path, help="where to write the outcome as data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    results = [times for size in arguments.sizes for times in race(size, num_samples=arguments.samples)]
    publish(results, arguments.json)
    return 0 if all(times.agree for times in results) else 1


if __name__ == "__main__":
    sys.exit(main())
