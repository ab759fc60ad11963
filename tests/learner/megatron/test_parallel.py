"""Three steps on up to four ranks, against plain transformers and torch on one: every layout gives the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor
from transformers import PreTrainedModel

from async_rl.config.learner import OptimizerConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from learner.megatron import replicas
from learner.megatron.head import Head
from learner.megatron.mesh import MegatronMesh
from learner.megatron.network import Network
from learner.megatron.runtime import Ground
from learner.megatron.weights import named_weights
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference, read_folder
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

# Even, so that no row of the output layer is filled up: this test's own loss would see it.
VOCAB = 68
LENGTHS = (9, 33, 2, 20, 27, 12, 40, 5)
rng = np.random.default_rng(1)
SEQUENCES = [rng.integers(0, VOCAB, n) for n in LENGTHS]
WEIGHTS = [torch.from_numpy(rng.normal(size=n - 1).astype(np.float32)) for n in LENGTHS]
NUM_TOKENS = sum(LENGTHS) - len(LENGTHS)
NUM_STEPS = 3
BOUND = 5e-6

# Adam divides gradients near zero by eps, which would blow rounding up; clipping is made to bite.
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.5)

ONE = ((0, 1, 2, 3, 4, 5, 6, 7),)
TWO = ((6, 2), (0, 1, 3, 4, 5, 7))
THREE = ((0, 5, 7), (1, 2, 3), (4, 6))
FIVE = ((0,), (1, 2), (3, 5), (4, 7), (6,))


Plans = Sequence[Sequence[Sequence[int]]]
"""For each shard its micro-batches, and of each its sequences."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What became of a model."""

    losses: list[float]
    grad_norms: list[float]
    weights: dict[str, Tensor]


def token_losses(logprobs: Tensor, sequence: int) -> Tensor:
    """Of a sequence's tokens but the first: a sum that is not linear in the log-probabilities."""
    return (WEIGHTS[sequence] * logprobs + 0.05 * logprobs.square()).sum() / NUM_TOKENS


def train_plainly(model: PreTrainedModel, folder: Path) -> Trained:
    """Sequence by sequence, in one process; the folder is for its weights in their published names."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    betas = (OPTIMIZER.beta1, OPTIMIZER.beta2)
    optimizer = torch.optim.AdamW(
        groups, lr=OPTIMIZER.lr, betas=betas, eps=OPTIMIZER.eps, weight_decay=OPTIMIZER.weight_decay
    )
    losses, grad_norms = [], []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for index, sequence in enumerate(SEQUENCES):
            tokens = torch.from_numpy(sequence)
            logp = torch.log_softmax(model(tokens[None]).logits[0, :-1], dim=-1)
            total = total + token_losses(logp.gather(1, tokens[1:, None])[:, 0], index)
        total.backward()
        losses.append(float(total.detach()))
        grad_norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_grad_norm)))
        optimizer.step()
    model.save_pretrained(folder)
    return Trained(losses=losses, grad_norms=grad_norms, weights=read_folder(folder))


def train(
    place: Place,
    folder: Path,
    parallel: ParallelConfig,
    recompute: Recompute,
    plans: Plans,
) -> Trained:
    """A rank's part."""
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        network = Network(
            ground,
            ModelConfig(path=str(folder)),
            Head.VOCABULARY,
            OPTIMIZER,
            num_steps=NUM_STEPS,
            recompute=recompute,
        )
        plan = plans[MegatronMesh().shard]
        micro_batches = [PackedSequences.pack([SEQUENCES[i] for i in part]) for part in plan]

        def logprobs_of(hidden: Tensor, index: int) -> Tensor:
            """By Megatron's own output layer and loss, which are not what ours are."""
            packed, top = micro_batches[index], network.top
            is_shared = top.share_embeddings_and_output_weights
            weight = top.shared_embedding_or_output_weight() if is_shared else None
            logits = top.output_layer(hidden, weight=weight)[0]
            labels = torch.zeros(logits.shape[:2], dtype=torch.int64)
            labels[packed.sources, 0] = packed.labels
            negative: Tensor = vocab_parallel_cross_entropy(logits.float(), labels)[packed.sources, 0]
            return -negative

        def loss_of(hidden: Tensor, index: int) -> Tensor:
            parts = micro_batches[index].unpack(logprobs_of(hidden, index))
            losses = [token_losses(part, i) for part, i in zip(parts, plan[index], strict=True)]
            return torch.stack(losses).sum()

        scores = network.evaluate(micro_batches, logprobs_of)
        results = [network.step(micro_batches, loss_of) for _ in range(NUM_STEPS)]
        again = network.evaluate(micro_batches, logprobs_of)
        assert [x.shape for x in scores] == [batch.labels.shape for batch in micro_batches]
        assert not any(torch.equal(x, y) for x, y in zip(scores, again, strict=True))
        weights = {n: w.clone() for n, w in named_weights(network.chunks, network.shape, lambda p: p)}
        return Trained(losses=[r.loss for r in results], grad_norms=[r.grad_norm for r in results], weights=weights)


def check(found: list[Trained], expected: Trained) -> None:
    """Every rank says the same; rank 0 has the weights."""
    for rank in found:
        assert rank.losses == pytest.approx(expected.losses, abs=BOUND)
        assert rank.grad_norms == pytest.approx(expected.grad_norms, abs=BOUND)
        assert rank.grad_norms == found[0].grad_norms
    assert min(expected.grad_norms) > OPTIMIZER.clip_grad_norm
    assert found[0].weights.keys() == expected.weights.keys()
    for name, weight in found[0].weights.items():
        assert (weight - expected.weights[name]).abs().max() <= BOUND, name


LAYOUTS: dict[str, tuple[int, ParallelConfig, Plans]] = {
    "one rank": (1, ParallelConfig(), [THREE]),
    "tp2": (2, ParallelConfig(tp=2), [TWO]),
    "tp2, sequence parallel": (2, ParallelConfig(tp=2, sequence_parallel=True), [THREE]),
    "pp2": (2, ParallelConfig(pp=2), [FIVE]),
    "pp2, one micro-batch": (2, ParallelConfig(pp=2), [ONE]),
    "pp2, interleaved": (2, ParallelConfig(pp=2, vpp=2), [FIVE]),
    "dp2": (2, ParallelConfig(dp=2), [((0, 1), (2, 3)), ((4, 5), (6, 7))]),
    "tp2 pp2": (4, ParallelConfig(tp=2, pp=2), [THREE]),
    "tp2 pp2, sequence parallel, interleaved": (
        4,
        ParallelConfig(tp=2, pp=2, vpp=2, sequence_parallel=True),
        [FIVE],
    ),
    "pp2 dp2": (4, ParallelConfig(pp=2), [((0, 1), (2,), (3,)), ((4,), (5, 6), (7,))]),
    "cp4": (4, ParallelConfig(cp=4), [TWO]),
    "tp2 cp2, sequence parallel": (4, ParallelConfig(tp=2, cp=2, sequence_parallel=True), [THREE]),
    "pp2 cp2, interleaved": (4, ParallelConfig(pp=2, vpp=2, cp=2), [FIVE]),
    "cp2 dp2": (4, ParallelConfig(cp=2), [((0, 1, 2), (3,)), ((4,), (5, 6, 7))]),
    "tp2 dp2": (4, ParallelConfig(tp=2), [((0, 1, 2), (3,)), ((4,), (5, 6, 7))]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_steps_are_those_of_plain_torch(make_reference: MakeReference, tmp_path: Path, layout: str) -> None:
    reference = make_reference(tie_word_embeddings=False, vocab_size=VOCAB, num_hidden_layers=4)
    world_size, parallel, plans = LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, Recompute.none, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))


@pytest.mark.parametrize("layout", ["tp2", "pp2", "pp2, interleaved", "dp2", "tp2 pp2, sequence parallel, interleaved"])
def test_an_embedding_that_is_the_output_layer_too_learns_as_one(
    make_reference: MakeReference, tmp_path: Path, layout: str
) -> None:
    reference = make_reference(tie_word_embeddings=True, vocab_size=VOCAB, num_hidden_layers=4)
    world_size, parallel, plans = LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, Recompute.none, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))


@pytest.mark.parametrize("recompute", [Recompute.selective, Recompute.full])
@pytest.mark.parametrize("layout", ["tp2, sequence parallel", "pp2, interleaved"])
def test_activations_made_twice_are_the_same(
    make_reference: MakeReference, tmp_path: Path, layout: str, recompute: Recompute
) -> None:
    reference = make_reference(vocab_size=VOCAB, num_hidden_layers=4)
    world_size, parallel, plans = LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, recompute, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))


@pytest.mark.parametrize("layout", ["dp2", "pp2 dp2"])
def test_gradients_and_weights_that_travel_in_many_pieces_are_the_same(
    make_reference: MakeReference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(replicas, "BUCKET_SIZE", 10_000)
    reference = make_reference(vocab_size=VOCAB, num_hidden_layers=4, tie_word_embeddings=False)
    world_size, parallel, plans = LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, Recompute.none, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_other_architectures_are_spread_alike(make_reference: MakeReference, tmp_path: Path, architecture: str) -> None:
    reference = make_reference(architecture, vocab_size=VOCAB)
    world_size, parallel, plans = LAYOUTS["tp2, sequence parallel"]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, Recompute.none, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))


EXPERT_LAYOUTS: dict[str, tuple[int, ParallelConfig, Plans]] = {
    "one rank": (1, ParallelConfig(), [THREE]),
    "ep2": (2, ParallelConfig(ep=2), [((0, 1), (2, 3)), ((4, 5), (6, 7))]),
    "tp2 ep2": (2, ParallelConfig(tp=2, ep=2, sequence_parallel=True), [THREE]),
    "tp2 etp2": (2, ParallelConfig(tp=2, etp=2, sequence_parallel=True), [THREE]),
    "pp2 ep2": (4, ParallelConfig(pp=2, ep=2), [((0, 1), (2, 3)), ((4, 5), (6, 7))]),
    "cp2 ep2": (2, ParallelConfig(cp=2, ep=2), [THREE]),
    "ep2 dp4": (4, ParallelConfig(ep=2), [((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)]),
}


@pytest.mark.parametrize(
    ("architecture", "layout"),
    [*(("Qwen3MoeForCausalLM", layout) for layout in EXPERT_LAYOUTS), ("MixtralForCausalLM", "tp2 ep2")],
)
def test_three_steps_with_experts_are_those_of_plain_torch(
    make_reference: MakeReference, tmp_path: Path, architecture: str, layout: str
) -> None:
    reference = make_reference(architecture, tie_word_embeddings=False, vocab_size=VOCAB)
    world_size, parallel, plans = EXPERT_LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, Recompute.none, plans)
    check(found, train_plainly(reference, tmp_path / "trained"))
