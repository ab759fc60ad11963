"""A rank of the learner from start to end: models, weights, connection, loop.

Owns what is built and closed in which order. The supervisor that starts the process is not known here.
"""

import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from async_rl.channel.peer_socket import BlockingPeerSocket
from async_rl.checkpoints import read_loop_state
from async_rl.config.model import ModelConfig
from async_rl.config.rules import critic_steps, optimizer_steps
from async_rl.config.schema import RunConfig
from async_rl.protocol import SCHEMA_VERSION, Hello, Role
from async_rl.sizing.flops import ModelFlops
from async_rl.sizing.model_json import read_sizes
from async_rl.weights.transports import open_publisher
from learner.backend import ScoringBackend
from learner.batch_source import ControllerBatchSource
from learner.checkpoint_check import check_checkpoint
from learner.learner import Learner
from learner.megatron.backend import MegatronBackend
from learner.megatron.critic import MegatronCritic
from learner.megatron.mesh import MegatronMesh
from learner.megatron.runtime import Ground, device
from learner.peak_flops import peak_flops
from learner.place import Place
from learner.roles import Roles
from learner.scoring import ScoringPlan

CONNECT_TIMEOUT_S = 60.0


def run_learner(
    config: RunConfig,
    *,
    rank: int,
    world_size: int,
    rendezvous: str,
    address: str,
    incarnation: str,
    run_folder: Path,
    run_id: str,
    checkpoint: Path | None,
) -> None:
    """Trains as one of the learner's ranks until the controller says that the run is over.

    Args:
        config: the run.
        rank: of this process.
        world_size: how many there are.
        rendezvous: `host:port`, where rank 0 listens for the others; not read where there are none.
        address: of the controller.
        incarnation: of this process.
        run_folder: where checkpoints and the exported model go.
        run_id: names the shared memory.
        checkpoint: where to go on from; None begins with the model's own weights.
    """
    place = Place(rank=rank, world_size=world_size, rendezvous=rendezvous)
    with ExitStack() as stack:
        ground = Ground(config.learner.parallel, place, seed=config.seed, num_threads=config.learner.num_threads)
        roles = _open_roles(config, stack.enter_context(ground), stack)
        mesh = MegatronMesh()
        publisher = None
        if mesh.is_speaker:
            publisher = open_publisher(config.weights, run_id=run_id, run_folder=run_folder)
            stack.enter_context(closing(publisher))
        peer = stack.enter_context(closing(_socket(config, rank, address=address, incarnation=incarnation)))
        learner = Learner(
            config,
            roles=roles,
            flops=ModelFlops.of(read_sizes(Path(config.model.path))),
            publisher=publisher,
            source=ControllerBatchSource(peer, shard=mesh.shard),
            run_folder=run_folder,
            version=0 if checkpoint is None else read_loop_state(checkpoint).version,
            mesh=mesh,
            peak_flops=world_size * mesh.largest(_rank_flops(config)),
        )
        if checkpoint is not None:
            check_checkpoint(checkpoint, place, mesh)
            learner.load(checkpoint)
        peer.connect(CONNECT_TIMEOUT_S)
        learner.run()


def _rank_flops(config: RunConfig) -> float:
    """What this rank's device can do at most."""
    dtype: torch.dtype = getattr(torch, config.model.dtype)
    return peak_flops(config.cluster.peak_tflops, device=device(), dtype=dtype)


def _socket(config: RunConfig, rank: int, *, address: str, incarnation: str) -> BlockingPeerSocket:
    hello = Hello(
        schema_version=SCHEMA_VERSION,
        role=Role.LEARNER,
        name=f"learner-{rank}",
        incarnation=incarnation,
        pid=os.getpid(),
        host=socket.gethostname(),
    )
    return BlockingPeerSocket(address, hello, max_message_bytes=config.channel.max_message_mib << 20)


def _open_roles(config: RunConfig, ground: Ground, stack: ExitStack) -> Roles:
    """The models that the objective asks for, closed with the stack."""
    reference: ScoringBackend | None = None
    # Those that may be offloaded first: so there is never more on the device than in their later uses.
    if config.kl.coef > 0 and not config.learner.lora.rank:
        reference = stack.enter_context(closing(_reference(config, ground)))
    critic = stack.enter_context(closing(_critic(config, ground))) if ScoringPlan.of(config).values else None
    policy = stack.enter_context(closing(_policy(config, ground)))
    if config.kl.coef > 0 and config.learner.lora.rank:
        reference = policy.without_adapters()
    return Roles(policy=policy, reference=reference, critic=critic)


def _policy(config: RunConfig, ground: Ground) -> MegatronBackend:
    return MegatronBackend(
        ground,
        config.model,
        config.learner.optimizer,
        num_steps=optimizer_steps(config),
        recompute=config.learner.recompute,
        lora=config.learner.lora if config.learner.lora.rank else None,
    )


def _reference(config: RunConfig, ground: Ground) -> MegatronBackend:
    """The model's own weights, whatever was resumed."""
    return MegatronBackend(ground, config.model, None, num_steps=0, offload=config.kl.offload)


def _critic(config: RunConfig, ground: Ground) -> MegatronCritic:
    return MegatronCritic(
        ground,
        ModelConfig(path=config.critic.path or config.model.path, dtype=config.model.dtype),
        config.critic.optimizer,
        num_steps=critic_steps(config),
        recompute=config.learner.recompute,
        offload=config.critic.offload,
    )
