"""Whether the quickstart's model learned what the README promises: reads a run's summary.json, exits 1 if not."""

import json
import sys
from pathlib import Path

MAX_REWARD_AT_START = 0.4
MIN_REWARD_AT_END = 0.8
MIN_GREEDY_RISE = 0.25


def shortfalls(summary: dict[str, dict[str, float]]) -> list[str]:
    """What of the promise does not hold, in words; empty when all does."""
    reward, greedy = summary["reward"], summary["greedy"]
    checks = [
        (reward["start"] <= MAX_REWARD_AT_START, f"reward.start {reward['start']:.3f} > {MAX_REWARD_AT_START}"),
        (reward["end"] >= MIN_REWARD_AT_END, f"reward.end {reward['end']:.3f} < {MIN_REWARD_AT_END}"),
        (
            greedy["end"] - greedy["start"] >= MIN_GREEDY_RISE,
            f"greedy rose by {greedy['end'] - greedy['start']:.3f} < {MIN_GREEDY_RISE}",
        ),
    ]
    return [words for holds, words in checks if not holds]


def main(path: str) -> int:
    """Prints the verdict."""
    summary = json.loads(Path(path).read_text(encoding="utf-8"))
    missing = shortfalls(summary)
    reward, greedy = summary["reward"], summary["greedy"]
    print(
        f"reward {reward['start']:.3f} → {reward['end']:.3f}, greedy {greedy['start']:.3f} → {greedy['end']:.3f}:",
        "; ".join(missing) or "learned",
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
