"""Top-k and top-p sampling, as the engine does it: which words are never drawn.

Owns the bound between a row's logits of words that sampling keeps and of words that it leaves out. Knows nothing of
models or scores.

Legend: R rows; V words of this rank's part of the vocabulary, P ranks that share it, C candidates.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from async_rl.config.generation import GenerationConfig
from learner.logit_statistics import FAR
from learner.vocabulary import Gather

FIRST_CANDIDATES = 64
"""Likeliest words that are looked at for top-p, before eight times as many are, and so on: most rows need few. Two at
least."""


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """Sampling keeps the `top_k` likeliest words, and of those the likeliest that together have `top_p`."""

    top_k: int
    """0: all."""
    top_p: float
    """In (0, 1]; 1: all."""

    @classmethod
    def of(cls, config: GenerationConfig) -> Self | None:
        """What generators leave out; None: nothing."""
        keeps_all = config.top_k == 0 and config.top_p == 1.0
        return None if keeps_all else cls(top_k=config.top_k, top_p=config.top_p)

    def floors(self, logits: Tensor, *, temperature: float, gather: Gather) -> Tensor:
        """A bound of each row's logits: those above it are kept.

        It is the middle between the last that is kept and the next, so that logits that are made again, in tiles of
        another shape, are on the same side of it whatever their last digit.

        Where ranks share the vocabulary all call it at once, with the same arguments but their own logits.

        Args:
            logits: [R, V] float32 or wider, undivided by the temperature, which top-p sees them divided by.
            temperature: above 0.
            gather: see `Gather`.

        Returns:
            [R], the same on every rank.
        """
        if self.top_k:
            # With the first that is not kept.
            candidates = _likeliest(logits, self.top_k + 1, gather)
            total = _exp_sum(candidates[:, :-1], candidates[:, 0], temperature)
            return self._bounds(candidates, total, temperature)[0]
        num = FIRST_CANDIDATES
        while True:
            candidates = _likeliest(logits, num, gather)
            total = gather(_exp_sum(logits, candidates[:, 0], temperature)).sum(0)
            bounds, is_enough = self._bounds(candidates, total, temperature)
            # Ranks decide alike: all have seen the same candidates.
            if is_enough:
                return bounds
            num *= 8

    def _bounds(self, candidates: Tensor, total: Tensor, temperature: float) -> tuple[Tensor, bool]:
        """And whether no word that is no candidate could be kept."""
        is_kept = candidates > FAR
        if self.top_k:
            is_kept[:, self.top_k :] = False
        if self.top_p < 1.0:
            e = ((candidates - candidates[:, :1]) / temperature).exp()
            is_kept &= e.cumsum(1) - e < self.top_p * total[:, None]
        num_kept = is_kept.sum(1, keepdim=True).clamp(1, candidates.shape[1] - 1)
        last, following = candidates.gather(1, num_kept - 1), candidates.gather(1, num_kept)
        return (0.5 * (last + following))[:, 0], bool((~is_kept[:, -1]).all())


def _likeliest(logits: Tensor, num: int, gather: Gather) -> Tensor:
    """The largest logits of each row over all ranks, [R, `num`] from the largest on; `FAR` where there are no more."""
    mine = logits.topk(min(num, logits.shape[1]), dim=1).values
    # Every rank gives as many.
    mine = torch.nn.functional.pad(mine, (0, num - mine.shape[1]), value=FAR)
    everyone = gather(mine).transpose(0, 1).flatten(1)
    return everyone.topk(num, dim=1).values


def _exp_sum(logits: Tensor, highest: Tensor, temperature: float) -> Tensor:
    """[R, any] → [R]: Σ exp((l − highest) / T)"""
    return ((logits - highest[:, None]) / temperature).exp().sum(1)
