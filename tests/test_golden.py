"""The checker of golden vectors: all of ours pass it, and nothing that is wrong, missing or unknown does."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.golden import FOLDER, require_folder
from tests.golden.__main__ import main
from tests.golden.adapters import ADAPTERS
from tests.golden.checker import check
from tests.golden.folder import Golden, GoldenFolder


def floats(rows: list[list[float]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """As the folders have them."""
    return np.array(rows, np.float32)


RIGHT = {
    "values": floats([[1, 2, 3]]),
    "mask": np.array([[True, True, True]]),
    "whitened": floats([[-1, 0, 1]]),
}
LOSS = {"loss_mat": floats([[1, 2], [3, 0]]), "valid": np.array([[True, True], [True, False]])}
WHITEN: dict[str, Any] = {
    "id": "one",
    "kind": "whiten",
    "name": "whiten",
    "options": {"shift_mean": True},
    "inputs": {"values": "values", "mask": "mask"},
    "outputs": {"whitened": "whitened"},
    "scalars": {},
    "file": "arrays.npz",
}
AGGREGATION: dict[str, Any] = {
    "id": "two",
    "kind": "aggregation",
    "name": "token-mean",
    "options": {"agg": "token-mean"},
    "inputs": {"loss_mat": "loss_mat", "mask": "valid"},
    "outputs": {},
    "scalars": {"loss": 2.0},
    "file": "arrays.npz",
}


def write(folder: Path, *cases: dict[str, Any], differs: list[dict[str, Any]] | None = None, **arrays: Any) -> Path:
    """A folder with these cases; arrays stand in the place of the right ones of their names."""
    np.savez(folder / "arrays.npz", **{**RIGHT, **LOSS, **arrays})
    manifest = {"tolerance": {"rtol": 2e-5, "atol": 2e-6}, "cases": list(cases)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if differs is not None:
        (folder / "differs.json").write_text(json.dumps({"file": "arrays.npz", "cases": differs}))
    return folder


def only_case(folder: Path) -> Golden:
    (case,) = GoldenFolder(folder).cases
    return case


def test_all_of_the_shared_vectors_pass(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(require_folder())
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert re.search(rf"^(\d+) of \1 cases passed in {FOLDER}$", printed, re.MULTILINE), printed
    assert {line.split()[0] for line in printed.splitlines()} >= ADAPTERS.keys(), "a kind without a case"


def test_what_agrees_passes_with_a_line_a_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(write(tmp_path, WHITEN, AGGREGATION)) == 0
    header, whiten, aggregation, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["kind", "cases", "passed", "error", "/", "bound"]
    assert whiten.split()[:3] == ["whiten", "1", "1"] and aggregation.split()[:3] == ["aggregation", "1", "1"]
    assert total == f"2 of 2 cases passed in {tmp_path}"


def test_a_wrong_output_is_named_with_its_place_and_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, WHITEN, AGGREGATION, whitened=floats([[-1, 0, 1.5]]))
    assert main(folder) == 1
    printed = capsys.readouterr().out
    assert "FAILED whiten whiten one\n    whitened: 1 instead of 1.5 at (0, 2), error 0.5, 1.56e+04 times" in printed
    assert "1 of 2 cases passed" in printed and "FAILED aggregation" not in printed


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "witen"}, "unknown kind 'witen'"),
        ({"scalars": {"los": 2.0}}, "los: nothing of ours has this name"),
        ({"scalars": {"loss": 2.1}}, "loss: 2 instead of 2.1"),
        ({"scalars": {"loss": float("nan")}}, "loss: 2 instead of nan"),
        ({"outputs": {"grad": "loss_mat"}}, "grad: nothing of ours has this name"),
        ({"outputs": {"grad_loss_mat": "whitened"}}, "grad_loss_mat: shape (2, 2) instead of (1, 3)"),
        ({"outputs": {"grad_loss_mat": "valid"}}, "grad_loss_mat: torch.float32 instead of bool"),
        ({"options": {"agg": "token-mean", "aggg": 1}}, "does not know 'aggg'"),
        ({"options": {"agg": "token-median"}}, "raised KeyError: 'token_median'"),
        ({"inputs": {**AGGREGATION["inputs"], "lengths": "values"}}, "does not know 'lengths'"),
    ],
)
def test_nothing_unknown_or_wrong_passes(
    change: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(write(tmp_path, {**AGGREGATION, **change})) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed and complaint in printed


def test_an_unknown_name_of_a_known_kind_fails(tmp_path: Path) -> None:
    case = {**WHITEN, "kind": "advantage", "name": "grope", "inputs": {"mask": "mask", "rewards": "values"}}
    verdict = check(only_case(write(tmp_path, case)), ADAPTERS)
    assert verdict.complaints and "raised KeyError: 'grope'" in verdict.complaints[0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_never_passes(wrong: float, tmp_path: Path) -> None:
    def broken(case: Golden) -> dict[str, torch.Tensor]:
        case.ignore(*case.inputs, *case.options)
        return {"whitened": torch.tensor([[-1.0, wrong, 1.0]])}

    verdict = check(only_case(write(tmp_path, WHITEN)), {"whiten": broken})
    assert verdict.excess == float("inf")
    assert "at (0, 1)" in verdict.complaints[0]


def test_a_looser_bound_holds_for_its_output_alone(tmp_path: Path) -> None:
    near = floats([[-1, 0, 1.001]])
    assert main(write(tmp_path, {**WHITEN, "loose": {"whitened": 2e-3}}, whitened=near)) == 0
    assert main(write(tmp_path, {**WHITEN, "loose": {"other": 2e-3}}, whitened=near)) == 1


def test_of_differences_the_right_side_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right: dict[str, Any] = {"arrays": {}, "scalars": {"loss": 2.0}}
    case = {**AGGREGATION, "verl": {"outcome": "nan", "scalars": {"loss": "nan"}}, "right": right}
    assert main(write(tmp_path, WHITEN, differs=[case])) == 0
    assert "aggregation (differs)" in capsys.readouterr().out
    right["scalars"]["loss"] = 1.0
    assert main(write(tmp_path, WHITEN, differs=[case])) == 1


def test_metrics_that_empty_rows_distort_are_right_without_them(tmp_path: Path) -> None:
    case = {**AGGREGATION, "scalars": {}}
    distorted = {"loss": {"verl": 1.0, "empty_rows_removed": 2.0}}
    assert main(write(tmp_path, {**case, "metrics_distorted_by_empty_rows": distorted})) == 0
    distorted["loss"] = {"verl": 2.0, "empty_rows_removed": 1.0}
    assert main(write(tmp_path, {**case, "metrics_distorted_by_empty_rows": distorted})) == 1


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (None, "it has no manifest.json"),
        ("{", "is broken: JSONDecodeError"),
        ('{"tolerance": {"rtol": 0, "atol": 0}, "cases": [{}]}', "is broken: KeyError"),
        ('{"tolerance": {"rtol": 0, "atol": 0}, "cases": []}', "has no cases"),
    ],
)
def test_what_is_no_such_folder_is_told_apart(
    manifest: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    assert main(tmp_path) == 2
    assert complaint in capsys.readouterr().err


def test_an_array_that_is_not_there_is_no_failure_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(write(tmp_path, {**WHITEN, "outputs": {"whitened": "whited"}})) == 2
    assert "has no array 'whited'" in capsys.readouterr().err


def test_the_command_exits_as_it_says(tmp_path: Path, repository: Path) -> None:
    write(tmp_path, {**AGGREGATION, "kind": "agregation"})
    command = [sys.executable, "-m", "tests.golden", str(tmp_path)]
    done = subprocess.run(command, cwd=repository, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "unknown kind 'agregation'" in done.stdout, done
