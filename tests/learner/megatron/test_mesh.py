"""What ranks tell each other, on every layout that four of them can have."""

import pytest
import torch

from async_rl.config.parallel import ParallelConfig
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground
from learner.mesh import Mesh
from learner.place import Place
from tests.learner.megatron.ranks import run_ranks

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "parallel", [ParallelConfig(), ParallelConfig(tp=2), ParallelConfig(pp=2), ParallelConfig(ep=2)]
)
def test_rows_and_words_of_all_shards_are_on_every_rank(parallel: ParallelConfig) -> None:
    def exchange(place: Place) -> tuple[int, bool, list[float], list[str]]:
        with Ground(parallel, place, seed=0, num_threads=1) as ground:
            mesh: Mesh = MegatronMesh()
            assert mesh.num_shards == ground.parallel.dp
            rows = torch.zeros(4, dtype=torch.float64)
            rows[mesh.shard] = mesh.shard + 1.5
            is_last_stage = place.rank >= 4 - 4 // parallel.pp
            said = mesh.collect(f"shard {mesh.shard}" if is_last_stage else None)
            return mesh.shard, mesh.is_speaker, mesh.merge(rows).tolist(), list(said)

    found = run_ranks(4, exchange)
    num_shards = 4 // parallel.ranks_of_copy
    assert {shard for shard, _, _, _ in found} == set(range(num_shards))
    assert [is_speaker for _, is_speaker, _, _ in found] == [True, False, False, False]
    for _, _, rows, said in found:
        assert rows == [shard + 1.5 if shard < num_shards else 0.0 for shard in range(4)]
        assert said == [f"shard {shard}" for shard in range(num_shards)]


def test_a_mask_is_merged_too() -> None:
    def merge(place: Place) -> list[bool]:
        with Ground(place=place, seed=0, num_threads=1):
            mask = torch.zeros(3, dtype=torch.bool)
            mask[place.rank] = True
            return MegatronMesh().merge(mask).tolist()

    assert run_ranks(2, merge) == [[True, True, False]] * 2
