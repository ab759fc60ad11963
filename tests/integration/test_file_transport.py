"""A run whose weights travel as files, as they do where learner and generators share no machine."""

import pytest

from tests.integration.conftest import Launch

pytestmark = pytest.mark.integration


def test_weights_that_travel_as_files_are_those_that_sample(launch: Launch) -> None:
    run = launch(staleness__max=0, staleness__depth=0, steps=6, weights__transport="file").wait()
    assert run.exit_code == 0, run.output
    assert run.summary.mu_prox.max_abs is not None and run.summary.mu_prox.max_abs <= 1e-4
    assert list((run.folder / "weights").iterdir()) == []
