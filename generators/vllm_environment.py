"""What a process must be before vLLM is imported in it: its cores and its environment variables.

vLLM, torch and OpenMP read both while they are loaded, and the engine's own process inherits them. Imports nothing
heavy, so that it can run first.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_ENVIRONMENT = {
    # Two threads on cores that others use, too, are many times slower than one.
    "OMP_NUM_THREADS": "1",
    # The cores are chosen below; vLLM's own choice may put two engines on one of them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The worker lives in the engine's process instead of a third one: fewer switches per step on one core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Even an eager engine compiles its ranking of log-probabilities, for a minute; interpreted it is as fast.
    "TORCHDYNAMO_DISABLE": "1",
    # Models are folders: nothing is ever fetched or reported.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_for_vllm(cores: Sequence[int] | None, scratch: Path) -> None:
    """Pins this process to `cores` (None: leaves it as it is) and sets its environment; before any import of vLLM.

    `scratch` is where vLLM leaves its sockets and other files, which it never removes; a short path, since the names
    of sockets are limited.
    """
    assert "vllm" not in sys.modules, "vLLM has read its environment already"
    if cores is not None:
        os.sched_setaffinity(0, cores)
    os.environ.update(_ENVIRONMENT, VLLM_RPC_BASE_PATH=str(scratch), TMPDIR=str(scratch))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
