"""Golden vectors: inputs and right outputs of the maths, kept beside the checkout in `../shared/golden`.

A machine without them skips the tests that compare with them, and says so; where CI runs, that is a failure.
`python -m tests.golden FOLDER` checks any folder in this format, whole.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from tests.golden.folder import Golden, GoldenFolder

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "golden"

__all__ = ["FOLDER", "Golden", "golden_cases", "golden_differences", "require_folder"]


def golden_cases(kind: str) -> list[Golden]:
    """Cases of a kind that a peer and the formula agree on."""
    return [case for case in _cases() if case.kind == kind and not case.differs]


def golden_differences(kind: str, *names: str) -> list[Golden]:
    """Cases of these names where the peer is wrong; the outputs are the right ones."""
    return [case for case in _cases() if case.kind == kind and case.name in names and case.differs]


def require_folder() -> Path:
    """The folder; skips the calling module or test where it is absent."""
    if not FOLDER.is_dir() and not os.environ.get("CI"):
        pytest.skip(f"no golden vectors in {FOLDER}", allow_module_level=True)
    return FOLDER


@cache
def _cases() -> list[Golden]:
    return GoldenFolder(require_folder()).cases
