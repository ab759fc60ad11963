"""Which words top-k and top-p keep, against sorting the whole row, and scores of what they keep."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from async_rl.config.generation import GenerationConfig
from async_rl.config.objective import CorrectionConfig
from async_rl.protocol import Batch, TrajectoryGroup
from learner import truncation as module
from learner.backend import TokenScores
from learner.batch import TrainingBatch
from learner.output_layer import HiddenLogits, OutputLayer
from learner.token_scores import score_tokens
from learner.truncation import Truncation
from learner.vocabulary import Gather, VocabularyShard
from tests.learner.bigram_backend import BigramBackend
from tests.learner.groups import make_group, make_trajectory
from tests.learner.updates import config, update

ALONE: Gather = VocabularyShard.whole(1).gather


def is_kept(logits: Tensor, truncation: Truncation, temperature: float) -> Tensor:
    """[R, V] bool by its definition: the k likeliest, then of their distribution the likeliest down to a mass of p."""
    z, order = (logits / temperature).sort(dim=1, descending=True)
    if truncation.top_k:
        z[:, truncation.top_k :] = -torch.inf
    p = z.softmax(1)
    kept = z > -torch.inf
    if truncation.top_p < 1:
        kept &= p.cumsum(1) - p < truncation.top_p
    return torch.zeros_like(kept).scatter(1, order, kept)


def floors_of(logits: Tensor, truncation: Truncation, temperature: float, num_ranks: int = 1) -> Tensor:
    """By several ranks, each a thread with some of the words; all must say the same."""
    barrier, said = Barrier(num_ranks, timeout=30), [torch.empty(0)] * num_ranks
    parts = logits.tensor_split(num_ranks, dim=1)

    def on_rank(rank: int) -> Tensor:
        def gather(mine: Tensor) -> Tensor:
            said[rank] = mine
            barrier.wait()
            everyone = torch.stack(said)
            barrier.wait()
            return everyone

        return truncation.floors(parts[rank], temperature=temperature, gather=gather)

    with ThreadPoolExecutor(num_ranks) as pool:
        first, *others = pool.map(on_rank, range(num_ranks))
    assert all(torch.equal(other, first) for other in others)
    return first


@pytest.mark.parametrize("first_candidates", [2, 64])
@given(
    vocab_size=st.integers(2, 40),
    num_ranks=st.integers(1, 4),
    top_k=st.integers(0, 50),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    temperature=st.floats(0.3, 2.0),
    scale=st.floats(0.1, 20.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_what_sorting_the_row_keeps(
    first_candidates: int,
    vocab_size: int,
    num_ranks: int,
    top_k: int,
    top_p: float,
    temperature: float,
    scale: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(5, vocab_size, generator=generator, dtype=torch.float64)
    truncation = Truncation(top_k=top_k, top_p=top_p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_CANDIDATES", first_candidates)
        floors = floors_of(logits, truncation, temperature, num_ranks)
    assert torch.equal(logits >= floors[:, None], is_kept(logits, truncation, temperature))


def test_bounds_lie_in_the_middle_between_the_last_word_and_the_next() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    for truncation in (Truncation(top_k=1, top_p=1.0), Truncation(top_k=0, top_p=1e-6)):
        assert truncation.floors(logits, temperature=1.0, gather=ALONE).tolist() == [5.0]


def test_words_as_likely_as_the_last_one_are_kept_like_it() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    floors = Truncation(top_k=2, top_p=1.0).floors(logits, temperature=1.0, gather=ALONE)
    assert (logits >= floors).tolist() == [[True, True, True, False]]


TRUNCATIONS = [Truncation(top_k=5, top_p=1.0), Truncation(top_k=0, top_p=0.7), Truncation(top_k=8, top_p=0.8)]


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("tile", [(1, 7), (512, 1024)])
def test_scores_and_gradients_are_of_the_words_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, truncation: Truncation, tile: tuple[int, int]
) -> None:
    monkeypatch.setattr("learner.output_layer.CPU_TILE", tile)
    torch.manual_seed(3)
    num_tokens, vocab_size, temperature = 40, 30, 0.8
    hidden, weight = torch.randn(num_tokens, 6).double(), torch.randn(vocab_size, 6).double()
    their_hidden, their_weight = torch.randn(num_tokens, 4).double(), torch.randn(vocab_size, 4).double()
    labels, loss_weights = torch.randint(0, vocab_size, (num_tokens,)), torch.randn(3, num_tokens).double()
    of_both = (hidden.requires_grad_(), weight.requires_grad_())

    logits = hidden @ weight.t()
    kept = is_kept(logits.detach(), truncation, temperature).scatter(1, labels[:, None], True)
    assert kept.sum() > is_kept(logits.detach(), truncation, temperature).sum(), "no label was left out: a poor test"
    logp = (logits / temperature).masked_fill(~kept, -1e30).log_softmax(1)
    log_q = (their_hidden @ their_weight.t() / temperature).masked_fill(~kept, -1e30).log_softmax(1)
    p = logp.exp()
    expected = [logp.gather(1, labels[:, None])[:, 0], -(p * logp).sum(1), (p * (logp - log_q)).sum(1)]
    gradients = torch.autograd.grad((loss_weights * torch.stack(expected)).sum(), of_both)

    vocabulary = VocabularyShard.whole(vocab_size)
    found = score_tokens(
        hidden,
        OutputLayer(weight=weight, vocabulary=vocabulary),
        labels,
        temperature=temperature,
        truncation=truncation,
        with_sum_pi_squared=True,
        reference=HiddenLogits(hidden=their_hidden, layer=OutputLayer(weight=their_weight, vocabulary=vocabulary)),
    )
    assert found.exact_kl is not None and found.sum_pi_squared is not None
    scores = [found.logprobs, found.entropy, found.exact_kl]
    for ours, theirs in zip(scores, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-12
    assert (found.sum_pi_squared - p.square().sum(1)).abs().max() < 1e-12
    for ours, theirs in zip(
        torch.autograd.grad((loss_weights * torch.stack(scores)).sum(), of_both), gradients, strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-12


def test_sampling_that_keeps_all_words_changes_nothing() -> None:
    torch.manual_seed(4)
    hidden, layer = torch.randn(9, 6), OutputLayer(weight=torch.randn(30, 6), vocabulary=VocabularyShard.whole(30))
    labels = torch.randint(0, 30, (9,))

    def score(truncation: Truncation | None) -> TokenScores:
        return score_tokens(hidden, layer, labels, temperature=1.0, truncation=truncation)

    expected = score(None)
    for all_words in (Truncation(top_k=30, top_p=1.0), Truncation(top_k=99, top_p=1.0), Truncation(top_k=0, top_p=1.0)):
        assert torch.equal(score(all_words).logprobs, expected.logprobs)


def test_no_tokens_have_no_floors() -> None:
    layer = OutputLayer(weight=torch.randn(30, 6), vocabulary=VocabularyShard.whole(30))
    truncation = Truncation(top_k=3, top_p=0.9)
    found = score_tokens(
        torch.empty(0, 6), layer, torch.empty(0, dtype=torch.int64), temperature=1.0, truncation=truncation
    )
    assert found.logprobs.shape == (0,)


def test_a_config_that_keeps_all_words_has_no_truncation() -> None:
    assert Truncation.of(GenerationConfig()) is None
    assert Truncation.of(GenerationConfig(top_k=7)) == Truncation(top_k=7, top_p=1.0)
    assert Truncation.of(GenerationConfig(top_p=0.9)) == Truncation(top_k=0, top_p=0.9)


def sampled_group(backend: BigramBackend, generation: GenerationConfig, group_id: int) -> TrajectoryGroup:
    """Two responses as an engine would sample them, μ of the words that it keeps."""
    truncation, last = Truncation.of(generation), 0
    assert truncation is not None
    trajectories = []
    for reward in (0.0, 1.0):
        tokens: list[int] = []
        logprobs: list[float] = []
        for _ in range(12):
            logits = backend.table.detach()[last : last + 1]
            dropped = ~is_kept(logits, truncation, generation.temperature)
            mu = (logits / generation.temperature).masked_fill(dropped, -torch.inf).log_softmax(1)[0]
            last = int(torch.multinomial(mu.exp(), 1))
            tokens.append(last)
            logprobs.append(float(mu[last]))
        trajectories.append(make_trajectory(tokens, reward=reward, rollout_logprobs=logprobs))
        last = 0
    return make_group(group_id, [0], trajectories)


@pytest.mark.parametrize("generation", [GenerationConfig(temperature=0.8, top_k=3), GenerationConfig(top_p=0.6)])
def test_on_policy_weights_and_ratios_are_1(generation: GenerationConfig) -> None:
    torch.manual_seed(5)
    backend = BigramBackend()
    groups = [sampled_group(backend, generation, group_id) for group_id in range(4)]
    batch = TrainingBatch.build(Batch.whole(version=0, groups=groups), mask_above=None)
    run = replace(config(correction=CorrectionConfig(score_on_arrival=False, normalize=True)), generation=generation)
    scores, outcome = update(backend, batch, run)
    assert scores.corrected is not None
    assert (scores.corrected.weights[batch.mask] - 1).abs().max() < 1e-5
    for logprobs in (scores.models.logprobs, outcome.logprobs):
        assert logprobs is not None
        assert (logprobs - batch.rollout_logprobs)[batch.mask].abs().max() < 1e-5
