"""What every test shares: one thread, no hub, no telemetry; set before any heavy library is imported."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.update(
    OMP_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    RAY_AUTH_MODE="token",
    RAY_USAGE_STATS_ENABLED="0",
    TOKENIZERS_PARALLELISM="false",
)

# Wall-clock deadlines fail on a busy machine and say nothing about the code.
settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's top folder."""
    return Path(__file__).resolve().parent.parent
