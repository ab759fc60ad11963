"""What is checked before any process starts, so that a user's mistake costs seconds.

Owns the checks and the prompts that they load: model folder, tokenizer, data, reward function, port, cluster,
memory.
Each raises a `UserError` that says the value, the place and the remedy.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from async_rl.channel.controller_socket import ControllerSocket
from async_rl.config.loop import Transport
from async_rl.config.model import Dtype
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.schema import RunConfig
from async_rl.data.prompt_set import PromptSet
from async_rl.data.source import load_rows
from async_rl.data.tokenizer import Tokenizer
from async_rl.errors import ModelError, ResourceError
from async_rl.launch.cluster_address import check_cluster
from async_rl.protocol import Prompt
from async_rl.readiness import check_gpus, check_memory, check_model_folder, check_model_sizes, check_positions
from async_rl.sizing.fit import check_fit
from async_rl.weights.slots import NUM_SLOTS, SHARED_MEMORY
from generators.reward_function import load_reward_function
from learner.model_shape import ModelShape, read_shape

DTYPE_BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2}


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a run needs and was found in order."""

    prompts: list[Prompt]
    held_out: list[Prompt]
    messages: list[str]


def check(config: RunConfig) -> Preflight:
    """Looks at everything that a run reads.

    Raises:
        UserError: something is missing, malformed or too small.
    """
    folder = Path(config.model.path)
    check_model_folder(folder)
    shape = read_shape(folder)
    check_positions(config, shape.max_positions, folder)
    check_fit(config, check_model_sizes(config, folder))
    check_gpus(config)
    if config.critic.path and config.advantage.estimator in VALUE_ESTIMATORS:
        check_critic(config, shape)
    if config.reward.function:
        load_reward_function(config.reward.function)
    check_port(config)
    check_cluster(config.cluster.address)
    check_memory(config)
    if config.weights.transport is Transport.shm:
        check_shared_memory(folder, config.model.dtype)
    tokenizer = Tokenizer(folder)
    sets = [prompt_set(config, tokenizer, is_held_out=is_held_out) for is_held_out in (False, True)]
    return Preflight(
        prompts=sets[0].prompts,
        held_out=sets[1].prompts,
        messages=[message for s in sets for message in s.messages],
    )


def prompt_set(config: RunConfig, tokenizer: Tokenizer, *, is_held_out: bool) -> PromptSet:
    """One split's prompts."""
    rows = load_rows(config.data, is_held_out=is_held_out, seed=config.seed)
    return PromptSet.build(rows, tokenizer, max_tokens=config.data.max_prompt_tokens)


def check_critic(config: RunConfig, policy: ModelShape) -> None:
    """Raises a `UserError` where the critic's body is missing, or cannot read what the policy writes."""
    folder = Path(config.critic.path)
    shape = read_shape(folder)
    check_positions(config, shape.max_positions, folder)
    if shape.vocab_size < policy.vocab_size:
        raise ModelError(
            f"the critic's body knows {shape.vocab_size} tokens, and the policy {policy.vocab_size}",
            place=f"critic.path, {folder}",
            remedy="give a model with the policy's tokenizer, or set critic.path= to start from the policy",
        )


def check_shared_memory(folder: Path, dtype: Dtype) -> None:
    """Raises a `ResourceError` where two versions of the weights do not fit into shared memory."""
    needed = NUM_SLOTS * weight_bytes(folder, dtype)
    stats = os.statvfs(SHARED_MEMORY)
    free = stats.f_bavail * stats.f_frsize
    if needed > free:
        raise ResourceError(
            f"{SHARED_MEMORY} has {free >> 20} MiB left, {NUM_SLOTS} versions of the weights need {needed >> 20} MiB",
            place=f"weights.transport=shm, {SHARED_MEMORY}",
            remedy="remove leftovers there, or make it larger: mount -o remount,size=… /dev/shm (docker: --shm-size)",
        )


def weight_bytes(folder: Path, dtype: Dtype) -> int:
    """Size of a model's weights as they are published: in the learner's number format, whatever the files are in."""
    return sum(map(count_weights, folder.glob("*.safetensors"))) * DTYPE_BYTES[dtype]


def count_weights(file: Path) -> int:
    """How many numbers a file of weights holds; a `ModelError` where its header cannot be read."""
    try:
        with safe_open(file, framework="numpy") as tensors:
            names: list[str] = list(tensors.keys())
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"the weights cannot be read: {error}", place=str(file), remedy="copy or download the file again"
        ) from error


def check_port(config: RunConfig) -> None:
    """Raises a `ResourceError` where the controller could not listen."""
    ControllerSocket(
        config.channel.host, config.channel.port, max_message_bytes=config.channel.max_message_mib << 20, epoch=""
    ).close()
