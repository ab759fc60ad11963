"""Offloading where there is nothing to offload, or nowhere to."""

from async_rl.config.objective import Estimator, KLEstimator
from tests.async_rl.config.sound import accepted, refusal

GPUS = {"cluster__gpus_per_node": 8}
CRITIC = {"critic__offload": True, "advantage__estimator": Estimator.gae}
REFERENCE = {"kl__offload": True, "kl__coef": 0.1}


def test_models_are_offloaded_on_gpus() -> None:
    accepted(**GPUS, **CRITIC, **REFERENCE)


def test_on_cpus_there_is_nowhere_to_offload_to() -> None:
    assert str(refusal(**CRITIC)) == (
        "critic.offload=true on CPUs, where models lie in the host's memory anyway (cluster.gpus_per_node=0)\n"
        "  where:  critic.offload, cluster.gpus_per_node\n"
        "  remedy: set critic.offload=false, or give the number of GPUs of a machine"
    )
    assert refusal(**REFERENCE).place == "kl.offload, cluster.gpus_per_node"


def test_a_model_that_is_not_there() -> None:
    assert refusal(**GPUS, critic__offload=True).problem == (
        "critic.offload=true, and advantage.estimator=grpo has no critic"
    )
    assert refusal(**GPUS, kl__offload=True).problem == "kl.offload=true, and kl.coef=0 loads no reference"
    assert refusal(**GPUS, **REFERENCE, learner__lora__rank=8).place == "kl.offload, learner.lora.rank"


def test_an_exact_kl_reads_the_reference_in_the_policys_step() -> None:
    error = refusal(**GPUS, **REFERENCE, kl__estimator=KLEstimator.full)
    assert error.remedy == "set kl.offload=false, or kl.estimator=k3"
