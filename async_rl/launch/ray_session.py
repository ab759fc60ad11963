"""Ray, started on this machine or joined on a cluster. Owns the words for a cluster that is not there."""

import logging

import ray

from async_rl.errors import ResourceError


def start_ray(address: str, *, num_cpus: int) -> None:
    """Starts Ray with room for so many processes; where there is an address, joins the cluster there.

    Raises:
        ResourceError: there is no cluster at the address.
    """
    try:
        ray.init(
            # Without a word, Ray would join whatever cluster it finds on this machine.
            address=address or "local",
            num_cpus=None if address else num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError) as error:
        if not address:
            raise
        raise ResourceError(
            f"no Ray cluster at {address}: {error}",
            place="cluster.address",
            remedy="give the address of a running cluster, HOST:6379, or leave it empty to start Ray here",
        ) from error
