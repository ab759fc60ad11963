"""Where each process of a run goes: which cores on CPUs, which node of a cluster.

Pure: cores and nodes come in as arguments. An engine and a learner rank each keep one thread busy; two of them on
one core slow each other down tenfold, so generators get cores of their own first and the learner what is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from async_rl.config.ranks import num_ranks, num_sft_ranks
from async_rl.config.schema import RunConfig, SftConfig


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Cores by process; None: not pinned."""

    generators: list[list[int] | None]
    ranks: list[list[int] | None]
    """Of the learner."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Processes that have to be on one node, and what each of them takes."""

    num_processes: int
    cpus: int
    gpus: int

    @property
    def resources(self) -> dict[str, float]:
        """What all of them take."""
        gpus = {"GPU": float(self.num_processes * self.gpus)} if self.gpus else {}
        return {"CPU": float(self.num_processes * self.cpus), **gpus}


def place(*, num_generators: int, num_ranks: int, cores: Sequence[int], pin: bool) -> Placement:
    """Pins generators to the first cores, one each, and ranks to the rest, which they share out evenly.

    Where there are more ranks than cores left, they go round these; where none is left, round all, from the last on.
    """
    if not pin:
        return Placement(generators=[None] * num_generators, ranks=[None] * num_ranks)
    ordered = sorted(cores)
    generators: list[list[int] | None] = [[ordered[i % len(ordered)]] for i in range(num_generators)]
    left = ordered[num_generators:] or ordered[::-1]
    ranks: list[list[int] | None] = [
        _share(left, rank, num_ranks)
        if len(left) >= num_ranks and len(ordered) > num_generators
        else [left[rank % len(left)]]
        for rank in range(num_ranks)
    ]
    return Placement(generators=generators, ranks=ranks)


def _share(cores: Sequence[int], index: int, count: int) -> list[int]:
    return list(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def learner_bundles(config: RunConfig) -> list[Bundle]:
    """Tensor parallel peers, who talk in every layer, share a node."""
    return _rank_bundles(num_ranks(config), peers=config.learner.parallel.tp, uses_gpus=_uses_gpus(config))


def sft_bundles(config: SftConfig) -> list[Bundle]:
    """The same of a fine-tuning."""
    return _rank_bundles(num_sft_ranks(config), peers=config.parallel.tp, uses_gpus=_uses_gpus(config))


def _rank_bundles(num_ranks: int, *, peers: int, uses_gpus: bool) -> list[Bundle]:
    return [Bundle(num_processes=peers, cpus=1, gpus=int(uses_gpus))] * (num_ranks // peers)


def generator_bundles(config: RunConfig) -> list[Bundle]:
    """One a generator, whose engine shares its matrices among GPUs of one node."""
    gpus = config.generation.tp if _uses_gpus(config) else 0
    return [Bundle(num_processes=1, cpus=1, gpus=gpus)] * config.generation.num_generators


def reward_model_bundles(config: RunConfig) -> list[Bundle]:
    """One, or none."""
    return [Bundle(num_processes=1, cpus=1, gpus=int(_uses_gpus(config)))] * bool(config.reward.model.path)


def _uses_gpus(config: RunConfig | SftConfig) -> bool:
    return config.cluster.gpus_per_node > 0


def in_order_of_nodes(node_of: Mapping[int, str]) -> list[int]:
    """Bundles so that those of one node follow each other: ranks with near numbers talk more.

    Args:
        node_of: by bundle; nodes keep the order in which the bundles name them first.
    """
    nodes = list(dict.fromkeys(node_of.values()))
    return sorted(node_of, key=lambda bundle: (nodes.index(node_of[bundle]), bundle))
