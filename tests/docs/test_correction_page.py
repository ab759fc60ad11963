"""docs/correction.md: its example runs."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "correction.md"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(example, PAGE.name, "exec"), {})
