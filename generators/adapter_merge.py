"""Adapters that came alone, merged into the weights that the model began with: W + B A, for each matrix that has them.

Owns the reading of PEFT's names and of the base folder. Knows nothing of transports or engines.

Legend: O outputs, I inputs, R rank of an adapter.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from async_rl.errors import WeightsError

_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"

NamedTensors = Sequence[tuple[str, torch.Tensor]]


def is_adapter(tensors: NamedTensors) -> bool:
    """Whether a version holds adapters, and not weights."""
    return all(name.startswith(_PREFIX) for name, _ in tensors)


def merged_into(base: Path, tensors: NamedTensors) -> list[tuple[str, torch.Tensor]]:
    """The matrices of `base` that have an adapter, with it, in their number format; rounded once.

    Args:
        base: a Hugging Face folder, which the learner began with as well.
        tensors: PEFT's names: `lora_A` [R, I], and `lora_B` [O, R] with the scale inside.

    Raises:
        WeightsError: an adapter is incomplete, or the folder has no weight for it.
    """
    adapters = dict(tensors)
    merged = []
    for name, weight in _read(base, [_base_name(name) for name in adapters if name.endswith(_UP)]):
        module = _PREFIX + name.removesuffix(".weight")
        up, down = adapters.get(module + _UP), adapters.get(module + _DOWN)
        if up is None or down is None:
            raise WeightsError(f"the adapter of {name} is incomplete")
        merged.append((name, (weight.float() + up.float() @ down.float()).to(weight.dtype)))
    return merged


def _base_name(up: str) -> str:
    return up.removeprefix(_PREFIX).removesuffix(_UP) + ".weight"


def _read(base: Path, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        index = base / _INDEX
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else {}
        for name in names:
            with safe_open(base / files.get(name, _WEIGHTS), framework="pt") as file:
                yield name, file.get_tensor(name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsError(f"the weights of {base} cannot be read, which an adapter is for: {error}") from error
