"""What a run takes of a Ray cluster, reserved at once: all of its processes have room, or none is started.

Owns the placement group. Which processes belong together is `async_rl.placement`'s to say.
"""

from collections.abc import Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from async_rl.errors import ResourceError
from async_rl.placement import Bundle, in_order_of_nodes

RESERVE_TIMEOUT_S = 60.0
"""A cluster that grows by itself gets this long."""


class Reservation:
    """Seats for all processes of a run."""

    def __init__(
        self,
        generators: Sequence[Bundle],
        learner: Sequence[Bundle],
        reward_models: Sequence[Bundle],
        *,
        place: str,
    ) -> None:
        """Waits for room.

        Args:
            generators: one bundle a generator.
            reward_models: likewise.
            learner: bundles of ranks that have to share a node.
            place: the options that decide all of them, for the refusal.

        Raises:
            ResourceError: the cluster has none.
        """
        bundles = [*learner, *generators, *reward_models]
        # Ray packs as many bundles as it can on one node; each of them is on one in any case.
        self._group: PlacementGroup = placement_group([bundle.resources for bundle in bundles], strategy="PACK")
        if not self._group.wait(RESERVE_TIMEOUT_S):
            self.release()
            raise _no_room(bundles, place)
        nodes: dict[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        order = in_order_of_nodes({bundle: nodes[bundle] for bundle in range(len(learner))})
        self.ranks = [self._seat(bundle) for bundle in order for _ in range(learner[bundle].num_processes)]
        """One a learner rank."""
        self.generators = [self._seat(len(learner) + index) for index in range(len(generators))]
        """One a generator."""
        self.reward_models = [self._seat(len(learner) + len(generators) + i) for i in range(len(reward_models))]
        """One a reward model."""

    def _seat(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def release(self) -> None:
        """Gives everything back."""
        remove_placement_group(self._group)


def _no_room(bundles: Sequence[Bundle], place: str) -> ResourceError:
    wanted = " + ".join(_words(bundle.resources) for bundle in bundles)
    all_resources = ray.cluster_resources()
    there = _words({name: all_resources.get(name, 0.0) for name in ("CPU", "GPU")})
    return ResourceError(
        f"the cluster has no room for {wanted} within {RESERVE_TIMEOUT_S:g} s: "
        f"it has {there} in all, of which others may use some",
        place=place,
        remedy="wait until others are done, or ask for fewer processes",
    )


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount)
