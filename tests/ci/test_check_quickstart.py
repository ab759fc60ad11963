"""A quickstart that did not learn what is promised does not pass."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("reward", "greedy", "verdict", "code"),
    [
        ((0.25, 0.95), (0.39, 1.0), "learned", 0),
        ((0.41, 0.95), (0.39, 1.0), "reward.start 0.410 > 0.4", 1),
        ((0.25, 0.79), (0.39, 1.0), "reward.end 0.790 < 0.8", 1),
        ((0.25, 0.95), (0.80, 1.0), "greedy rose by 0.200 < 0.25", 1),
    ],
)
def test_the_promise_is_checked_in_every_part(
    tmp_path: Path,
    repository: Path,
    reward: tuple[float, float],
    greedy: tuple[float, float],
    verdict: str,
    code: int,
) -> None:
    summary = {"reward": dict(zip(("start", "end"), reward, strict=True))}
    summary["greedy"] = dict(zip(("start", "end"), greedy, strict=True))
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(summary))
    script = str(repository / ".ci" / "check_quickstart.py")
    done = subprocess.run([sys.executable, script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.strip().endswith(verdict)
