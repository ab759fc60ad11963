"""Every test begins with rewards that nobody has asked for."""

import pytest

from tests.generators.judges import calls


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()
