"""The tables on the page of scale are what the shipped configs come to."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from async_rl.config.compose import load_run_config
from async_rl.errors import ResourceError
from async_rl.process_plan import layout
from async_rl.sizing.fit import check_fit, usable_bytes
from async_rl.sizing.run import accounts
from async_rl.terminal.memory_table import memory_table


@pytest.mark.parametrize("name", ["8b", "30b-a3b", "70b"])
def test_the_row_of_a_config(repository: Path, name: str) -> None:
    config = load_run_config(repository / "configs" / f"{name}.yaml")
    page = (repository / "docs/scale.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| [{name}]")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    learner, engine = accounts(config, config.model.sizes)
    assert cells[-2:] == [f"{learner.gib:.1f}", f"{engine.gib:.1f}"]
    assert cells[4].split(",")[0] == layout(config).partition("= ")[2].split(",")[0]


def test_the_memory_that_is_shown(repository: Path) -> None:
    config = load_run_config(repository / "configs/70b.yaml")
    console = Console(width=120)
    with console.capture() as capture:
        console.print(memory_table(accounts(config, config.model.sizes), usable=usable_bytes(config)))
    page = (repository / "docs/scale.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- 70b -->\n```text\n")[2].partition("\n```")[0]
    assert shown == "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_the_refusal_that_is_shown(repository: Path) -> None:
    config = load_run_config(repository / "configs/8b.yaml", ["learner.recompute=none"])
    with pytest.raises(ResourceError) as caught:
        check_fit(config, config.model.sizes)
    page = (repository / "docs/scale.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(?:error|where|remedy): +(.*)$", page, re.MULTILINE)
    assert shown == [caught.value.problem, caught.value.place, caught.value.remedy]
