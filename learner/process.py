"""A learner process from start to end: models, weights, connection, loop.

Owns what is built and closed in which order. The supervisor that starts the process is not known here.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from async_rl.channel.peer_socket import BlockingPeerSocket
from async_rl.checkpoints import read_loop_state
from async_rl.config.rules import optimizer_steps
from async_rl.config.schema import ModelConfig, RunConfig, Transport
from async_rl.protocol import SCHEMA_VERSION, Hello, Role
from async_rl.weights.shm import ShmWeightPublisher
from async_rl.weights.transport import WeightPublisher
from learner.batch_source import ControllerBatchSource
from learner.learner import Learner
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.runtime import Ground
from learner.place import Place
from learner.roles import Roles
from learner.scoring import ScoringPlan

CONNECT_TIMEOUT_S = 60.0

PUBLISHERS: Mapping[Transport, Callable[[str], WeightPublisher]] = {Transport.shm: ShmWeightPublisher}
"""Made with the name of the run; generators read from the manifest what they need."""


def run_learner(
    config: RunConfig, *, address: str, incarnation: str, run_folder: Path, run_id: str, checkpoint: Path | None
) -> None:
    """Trains until the controller says that the run is over.

    Args:
        config: the run.
        address: of the controller.
        incarnation: of this process.
        run_folder: where checkpoints and the exported model go.
        run_id: names the shared memory.
        checkpoint: where to go on from; None begins with the model's own weights.
    """
    with ExitStack() as stack:
        ground = Ground(config.learner.parallel, Place(), seed=config.seed, num_threads=config.learner.num_threads)
        roles = _open_roles(config, stack.enter_context(ground), stack)
        publisher = stack.enter_context(closing(PUBLISHERS[config.weights.transport](run_id)))
        hello = Hello(
            schema_version=SCHEMA_VERSION,
            role=Role.LEARNER,
            name="learner-0",
            incarnation=incarnation,
            pid=os.getpid(),
            host=socket.gethostname(),
        )
        max_bytes = config.channel.max_message_mib << 20
        peer = stack.enter_context(closing(BlockingPeerSocket(address, hello, max_message_bytes=max_bytes)))
        learner = Learner(
            config,
            roles=roles,
            publisher=publisher,
            source=ControllerBatchSource(peer),
            run_folder=run_folder,
            version=0 if checkpoint is None else read_loop_state(checkpoint).version,
        )
        if checkpoint is not None:
            learner.load(checkpoint)
        peer.connect(CONNECT_TIMEOUT_S)
        learner.run()


def _open_roles(config: RunConfig, ground: Ground, stack: ExitStack) -> Roles:
    """The models that the objective asks for, closed with the stack."""
    policy = stack.enter_context(closing(_policy(config, ground)))
    reference = stack.enter_context(closing(_reference(config, ground))) if config.kl.coef > 0 else None
    critic = stack.enter_context(closing(_critic(config, ground))) if ScoringPlan.of(config).values else None
    return Roles(policy=policy, reference=reference, critic=critic)


def _policy(config: RunConfig, ground: Ground) -> MegatronBackend:
    return MegatronBackend(
        ground,
        config.model,
        config.learner.optimizer,
        num_steps=optimizer_steps(config),
        recompute=config.learner.recompute,
    )


def _reference(config: RunConfig, ground: Ground) -> MegatronBackend:
    """The model's own weights, whatever was resumed."""
    return MegatronBackend(ground, config.model, None, num_steps=0)


def _critic(config: RunConfig, ground: Ground) -> MegatronCritic:
    return MegatronCritic(
        ground,
        ModelConfig(path=config.critic.path or config.model.path, dtype=config.model.dtype),
        config.critic.optimizer,
        num_steps=optimizer_steps(config),
        recompute=config.learner.recompute,
    )
