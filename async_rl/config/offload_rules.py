"""Contradictions of `critic.offload` and `kl.offload`.

Owns when there is nothing to offload, or nowhere to. Must not look at the machine.
"""

from async_rl.config.objective import KLEstimator
from async_rl.config.objective_rules import VALUE_ESTIMATORS
from async_rl.config.part_rules import refuse
from async_rl.config.schema import RunConfig


def check_offload(config: RunConfig) -> None:
    """Raises a `ConfigError` for the first contradiction."""
    kl, estimator, lora_rank = config.kl, config.advantage.estimator, config.learner.lora.rank
    for option, is_set in (("critic.offload", config.critic.offload), ("kl.offload", kl.offload)):
        refuse(
            is_set and not config.cluster.gpus_per_node,
            f"{option}=true on CPUs, where models lie in the host's memory anyway (cluster.gpus_per_node=0)",
            place=f"{option}, cluster.gpus_per_node",
            remedy=f"set {option}=false, or give the number of GPUs of a machine",
        )
    refuse(
        config.critic.offload and estimator not in VALUE_ESTIMATORS,
        f"critic.offload=true, and advantage.estimator={estimator} has no critic",
        place="critic.offload, advantage.estimator",
        remedy="set critic.offload=false",
    )
    refuse(
        kl.offload and kl.coef == 0,
        "kl.offload=true, and kl.coef=0 loads no reference",
        place="kl.offload, kl.coef",
        remedy="set kl.offload=false",
    )
    refuse(
        kl.offload and lora_rank > 0,
        f"kl.offload=true with learner.lora.rank={lora_rank}, where the reference is the policy without its adapters",
        place="kl.offload, learner.lora.rank",
        remedy="set kl.offload=false: it takes no memory of its own",
    )
    refuse(
        kl.offload and kl.estimator is KLEstimator.full,
        "kl.estimator=full reads the reference's output layer all through the policy's step, and kl.offload=true takes "
        "it from the GPU meanwhile",
        place="kl.offload, kl.estimator",
        remedy="set kl.offload=false, or kl.estimator=k3",
    )
