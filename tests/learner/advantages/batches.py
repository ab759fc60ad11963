"""Batches for the tests of advantages: drawn, with poison wherever no data stand."""

import math
from dataclasses import fields

import torch
from hypothesis import strategies as st
from torch import Tensor

from learner.advantages.inputs import AdvantageInputs

POISON = (math.nan, math.inf, -math.inf)


@st.composite
def masks(draw: st.DrawFn, *, max_rows: int = 6, max_tokens: int = 20) -> Tensor:
    """[N, T] bool with holes, padding and empty rows."""
    num_rows, width = draw(st.integers(1, max_rows)), draw(st.integers(0, max_tokens))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["holes", "prefix", "full", "none", "single"]))
    if kind == "holes":
        return torch.rand(num_rows, width, generator=generator) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    mask = torch.zeros(num_rows, width, dtype=torch.bool)
    if kind == "prefix":
        lengths = torch.randint(0, width + 1, (num_rows, 1), generator=generator)
        mask = torch.arange(width) < lengths
    elif kind == "full":
        mask = ~mask
    elif kind == "single" and width:
        mask[0, draw(st.integers(0, width - 1))] = True
    return mask


def drawn_tokens(mask: Tensor, seed: int, *, low: float = -1.0, high: float = 1.0) -> Tensor:
    """[N, T] float64, uniform in the mask, poison outside."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(mask.shape, generator=generator, dtype=torch.float64) * (high - low) + low
    return poisoned(values, mask, generator)


def poisoned(values: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    """The same with NaN and infinities outside of the mask [N, …] bool."""
    chosen = torch.randint(len(POISON), values.shape, generator=generator)
    return torch.where(mask, values, torch.tensor(POISON, dtype=values.dtype)[chosen])


def drawn_inputs(mask: Tensor, seed: int, *, num_components: int = 2) -> AdvantageInputs:
    """Everything that an estimator may ask for, in float64; groups of arbitrary labels."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, counted = len(mask), mask.any(1)
    labels = torch.tensor([-7, 3, 10**12])[torch.randint(3, (num_rows,), generator=generator)]
    baselines = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    components = torch.rand(num_rows, num_components, generator=generator, dtype=torch.float64)
    return AdvantageInputs(
        mask=mask,
        token_rewards=drawn_tokens(mask, seed + 1),
        groups=labels,
        values=drawn_tokens(mask, seed + 2),
        baseline_rewards=poisoned(baselines, counted, generator),
        component_rewards=poisoned(components, counted[:, None].expand_as(components), generator),
        proximal_logprobs=drawn_tokens(mask, seed + 3, low=-4.0, high=0.0),
        sum_pi_squared=drawn_tokens(mask, seed + 4, low=0.01, high=1.0),
        weights=drawn_tokens(mask, seed + 5, low=0.2, high=2.0),
        log_rhos=drawn_tokens(mask, seed + 6, low=-2.0, high=2.0),
    )


def tensors_of(inputs: AdvantageInputs) -> dict[str, Tensor]:
    """Every field that is given, by name."""
    given = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {name: values for name, values in given.items() if values is not None}
