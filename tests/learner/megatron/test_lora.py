"""Adapters train as transformers with hooks of its own does, in every layout, and leave the model behind them alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from async_rl.config.learner import OptimizerConfig
from async_rl.config.lora import LoraConfig
from async_rl.config.model import ModelConfig
from async_rl.config.parallel import ParallelConfig, Recompute
from generators.adapter_merge import is_adapter, merged_into
from learner.backend import TokenScores
from learner.megatron.backend import MegatronBackend
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.packing import PackedSequences
from learner.place import Place
from tests.learner.conftest import MakeReference, read_folder
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration

LENGTHS = (9, 33, 2, 20)
SEQUENCES = [torch.randint(0, 67, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in LENGTHS]
NUM_STEPS = 3
BOUND = 5e-6
LORA = LoraConfig(rank=4, alpha=8.0)
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_grad_norm=0.0)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a rank has to say; weights and adapters are rank 0's."""

    grad_norms: list[float]
    first_adapters: dict[str, Tensor]
    adapters: dict[str, Tensor]
    weights: dict[str, Tensor]
    before: list[TokenScores]
    without: list[TokenScores]
    after: list[TokenScores]


def open_backend(ground: Ground, folder: Path, recompute: Recompute = Recompute.none) -> MegatronBackend:
    model = ModelConfig(path=str(folder))
    return MegatronBackend(ground, model, OPTIMIZER, num_steps=NUM_STEPS, recompute=recompute, lora=LORA)


def taken(tensors: object) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors}  # type: ignore[attr-defined]


def steps(policy: MegatronBackend, micro_batches: Sequence[PackedSequences], count: int) -> list[float]:
    def loss(scores: TokenScores, index: int) -> Tensor:
        return -scores.logprobs.sum() / sum(LENGTHS)

    return [policy.step(micro_batches, loss, temperature=1.0).grad_norm for _ in range(count)]


def train(place: Place, folder: Path, parallel: ParallelConfig, recompute: Recompute) -> Trained:
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        policy, mesh = open_backend(ground, folder, recompute), MegatronMesh()
        own = SEQUENCES[mesh.shard :: mesh.num_shards]
        micro_batches = [PackedSequences.pack(own[:1]), PackedSequences.pack(own[1:])]
        first_adapters = taken(policy.named_adapters())
        before = policy.score(micro_batches, temperature=1.0)
        grad_norms = steps(policy, micro_batches, NUM_STEPS)
        return Trained(
            grad_norms=grad_norms,
            first_adapters=first_adapters,
            adapters=taken(policy.named_adapters()),
            weights=taken(policy.named_weights()),
            before=before,
            without=policy.without_adapters().score(micro_batches, temperature=1.0),
            after=policy.score(micro_batches, temperature=1.0),
        )


def train_plainly(model: PreTrainedModel, adapters: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """The same steps on one rank; q, k and v, and gate and up, share the matrix that reads their inputs."""
    scale = LORA.alpha / LORA.rank
    shared: dict[tuple[str, ...], torch.nn.Parameter] = {}
    pairs: dict[str, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    for name, module in model.named_modules():
        first = adapters.get(f"base_model.model.{name}.lora_A.weight")
        if first is None:
            continue
        assert isinstance(module, torch.nn.Linear)
        group = "attention" if name[-6:] in ("q_proj", "k_proj", "v_proj") else name.split(".")[-1]
        group = "gated" if group in ("gate_proj", "up_proj") else group
        down = shared.setdefault((name.rsplit(".", 1)[0], group), torch.nn.Parameter(first.clone()))
        assert torch.equal(down, first)
        pairs[name] = (down, torch.nn.Parameter(torch.zeros(module.out_features, LORA.rank)))
        a, b = pairs[name]
        module.register_forward_hook(lambda m, args, out, a=a, b=b: out + args[0] @ a.T @ b.T * scale)
    model.requires_grad_(False)
    parameters = [*shared.values(), *(b for _, b in pairs.values())]
    assert all(parameter.requires_grad for parameter in parameters)
    optimizer = torch.optim.AdamW(
        parameters, lr=OPTIMIZER.lr, betas=(OPTIMIZER.beta1, OPTIMIZER.beta2), eps=OPTIMIZER.eps, weight_decay=0.1
    )
    grad_norms = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for sequence in SEQUENCES:
            ids = torch.tensor(sequence)
            logp = torch.log_softmax(model(ids[None]).logits[0, :-1], dim=-1)
            (-logp.gather(1, ids[1:, None]).sum() / sum(LENGTHS)).backward()
        grad_norms.append(float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm()))
        optimizer.step()
    weights = dict(model.named_parameters())
    return grad_norms, {f"{n}.weight": (weights[f"{n}.weight"] + b @ a * scale).detach() for n, (a, b) in pairs.items()}


LAYOUTS = {
    "one rank": (1, ParallelConfig(), Recompute.none),
    "one rank, recomputed": (1, ParallelConfig(), Recompute.full),
    "tp2": (2, ParallelConfig(tp=2), Recompute.none),
    "tp2, sequence parallel, recomputed": (2, ParallelConfig(tp=2, sequence_parallel=True), Recompute.full),
    "pp2": (2, ParallelConfig(pp=2), Recompute.none),
    "dp2": (2, ParallelConfig(dp=2), Recompute.none),
    "tp2 pp2": (4, ParallelConfig(tp=2, pp=2), Recompute.none),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tie", [True, False])
def test_three_steps_are_those_of_plain_torch(
    make_reference: MakeReference, tmp_path: Path, layout: str, tie: bool
) -> None:
    reference = make_reference(tie_word_embeddings=tie)
    world_size, parallel, recompute = LAYOUTS[layout]
    found = run_ranks(world_size, train, tmp_path / "model", parallel, recompute)
    grad_norms, merged = train_plainly(reference, found[0].first_adapters)
    for rank in found:
        assert rank.grad_norms == pytest.approx(grad_norms, abs=BOUND)
        for before, without, after in zip(rank.before, rank.without, rank.after, strict=True):
            assert (before.logprobs - without.logprobs).abs().max() <= BOUND
            assert (before.logprobs - after.logprobs).abs().max() > 1e-3
    base = read_folder(tmp_path / "model")
    assert found[0].weights.keys() == base.keys()
    for name, weight in found[0].weights.items():
        assert (weight - merged.get(name, base[name])).abs().max() <= BOUND, name
        assert (name in merged) == (not torch.equal(weight, base[name])), name


def test_a_generator_that_merges_the_adapter_alone_has_the_learners_weights(
    make_reference: MakeReference, tmp_path: Path
) -> None:
    make_reference()
    (trained,) = run_ranks(1, train, tmp_path / "model", ParallelConfig(), Recompute.none)
    sent = list(trained.adapters.items())
    assert is_adapter(sent) and not is_adapter(list(trained.weights.items()))
    merged = dict(merged_into(tmp_path / "model", sent))
    base = read_folder(tmp_path / "model")
    assert {n for n, w in trained.weights.items() if not torch.equal(w, base[n])} == merged.keys()
    for name, weight in merged.items():
        assert torch.equal(weight, trained.weights[name]), name
    assert sum(t.numel() for t in trained.adapters.values()) < sum(t.numel() for t in trained.weights.values()) / 5


def test_the_first_adapters_do_not_depend_on_the_layout(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference(tie_word_embeddings=False)
    one = run_ranks(1, train, tmp_path / "model", ParallelConfig(), Recompute.none)[0].first_adapters
    two = run_ranks(2, train, tmp_path / "model", ParallelConfig(tp=2), Recompute.none)[0].first_adapters
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(one[name].any() for name in one if "lora_B" in name)


def save(place: Place, folder: Path, checkpoint: Path, parallel: ParallelConfig) -> list[float]:
    with Ground(parallel, place, seed=0, num_threads=1, timeout_s=60) as ground:
        policy = open_backend(ground, folder)
        micro_batches = [PackedSequences.pack(SEQUENCES)]
        steps(policy, micro_batches, 2)
        policy.snapshot().write(checkpoint)
        return steps(policy, micro_batches, 2)


def load(place: Place, folder: Path, checkpoint: Path, parallel: ParallelConfig) -> list[float]:
    with Ground(parallel, place, seed=1, num_threads=1, timeout_s=60) as ground:
        policy = open_backend(ground, folder)
        policy.load(checkpoint)
        return steps(policy, [PackedSequences.pack(SEQUENCES)], 2)


@pytest.mark.parametrize("after", [ParallelConfig(), ParallelConfig(tp=2), ParallelConfig(pp=2)])
def test_training_goes_on_from_a_checkpoint_in_another_layout(
    make_reference: MakeReference, tmp_path: Path, after: ParallelConfig
) -> None:
    make_reference()
    (expected, _) = run_ranks(2, save, tmp_path / "model", tmp_path / "checkpoint", ParallelConfig(tp=2))
    found = run_ranks(after.ranks_of_copy, load, tmp_path / "model", tmp_path / "checkpoint", after)
    assert found[0] == pytest.approx(expected, abs=BOUND)


def test_attention_alone_has_adapters_beside_experts(make_reference: MakeReference, tmp_path: Path) -> None:
    make_reference("Qwen3MoeForCausalLM", tie_word_embeddings=False)
    (trained,) = run_ranks(1, train, tmp_path / "model", ParallelConfig(), Recompute.none)
    base = read_folder(tmp_path / "model")
    changed = {name.split(".")[-2] for name, weight in trained.weights.items() if not torch.equal(weight, base[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj"}
