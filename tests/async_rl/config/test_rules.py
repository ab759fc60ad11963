"""Contradictions of a run: each is refused where it stands, and what is near it is not."""

import pytest

from async_rl.config.learner import Schedule
from async_rl.config.loop import Transport
from async_rl.config.lora import LoraPublish
from async_rl.config.rules import check_run, max_group_bytes
from tests.async_rl.config.sound import SOUND, accepted, refusal


def test_the_defaults_with_a_model_prompts_and_a_reward_are_sound() -> None:
    check_run(SOUND)


def test_a_depth_above_the_bound() -> None:
    error = refusal(staleness__depth=5)
    assert str(error) == (
        "staleness.depth=5 lets generation run further ahead than staleness.max=4 lets anything train\n"
        "  where:  staleness.depth, staleness.max\n"
        "  remedy: set staleness.depth=4 or less, or staleness.max=5 or more"
    )
    accepted(staleness__depth=4)


def test_publishing_too_rarely_for_the_bound() -> None:
    error = refusal(weights__publish_every=6)
    assert str(error) == (
        "weights.publish_every=6 leaves generators 5 versions behind, over staleness.max=4, "
        "so the bound can never be met\n"
        "  where:  weights.publish_every, staleness.max\n"
        "  remedy: set weights.publish_every=5 or less, or staleness.max=5 or more"
    )


def test_depth_and_rare_publishing_add_up() -> None:
    error = refusal(staleness__depth=2, weights__publish_every=4)
    assert str(error) == (
        "staleness.depth=2 and weights.publish_every=4 together ask for tokens 5 versions old, over staleness.max=4\n"
        "  where:  staleness.depth, weights.publish_every, staleness.max\n"
        "  remedy: set staleness.max=5 or more, or staleness.depth=1 or less"
    )
    accepted(staleness__depth=1, weights__publish_every=4)
    accepted(staleness__depth=0, weights__publish_every=5)


def test_synchronous_training_is_sound_and_publishes_every_version() -> None:
    accepted(staleness__max=0, staleness__depth=0)
    assert refusal(staleness__max=0, staleness__depth=0, weights__publish_every=2).remedy == (
        "set weights.publish_every=1 or less, or staleness.max=1 or more"
    )


def test_a_batch_that_can_never_fill() -> None:
    error = refusal(generation__max_concurrent=7)
    assert str(error) == (
        "generation.max_concurrent=7 cannot hold a group of 8, so no batch ever fills\n"
        "  where:  generation.max_concurrent, generation.group_size\n"
        "  remedy: set generation.max_concurrent=8 or more"
    )
    accepted(generation__max_concurrent=8)


def test_samples_that_are_all_alike() -> None:
    assert refusal(generation__top_k=1).place == "generation.top_k"
    accepted(generation__top_k=2)


def test_a_batch_larger_than_a_frame() -> None:
    error = refusal(
        learner__groups_per_step=512,
        generation__max_new_tokens=8192,
        generation__max_model_len=9000,
        learner__micro_batch_tokens=9000,
    )
    assert error.problem == "a batch can take 418 MiB, over channel.max_message_mib=64"
    assert error.remedy == "set channel.max_message_mib=418 or more, or make the batch smaller"


def test_a_group_is_at_most_as_large_as_its_tokens_and_names() -> None:
    assert max_group_bytes(SOUND) == 128 * 5 + 8 * (64 * 13 + 256)


def test_a_trajectory_longer_than_the_model_or_a_micro_batch() -> None:
    error = refusal(generation__max_new_tokens=129)
    assert str(error) == (
        "a prompt of 128 and a response of 129 tokens do not fit in generation.max_model_len=256\n"
        "  where:  data.max_prompt_tokens, generation.max_new_tokens, generation.max_model_len\n"
        "  remedy: set generation.max_model_len=257, or lower one of the other two"
    )
    assert refusal(learner__micro_batch_tokens=191).remedy == "set learner.micro_batch_tokens=192 or more"
    accepted(learner__micro_batch_tokens=192)


def test_mini_batches_that_do_not_divide_the_batch() -> None:
    assert refusal(learner__mini_batches=17).problem == (
        "learner.mini_batches=17 are more than learner.groups_per_step=16"
    )
    assert refusal(learner__mini_batches=3).remedy == "set learner.mini_batches to one of 1, 2, 4, 8, 16"
    accepted(learner__mini_batches=4)


def test_no_model() -> None:
    assert refusal(model__path="").remedy == "name a Hugging Face folder; `async-rl sft` makes one"


def test_prompts_from_nowhere_or_from_two_places() -> None:
    assert refusal(data__task="").problem == "there are no prompts: data.task and data.train are both empty"
    assert refusal(data__train="rows.jsonl").place == "data.task, data.train"
    assert refusal(data__evaluate="rows.jsonl").place == "data.task, data.evaluate"


def test_a_task_that_is_no_reference_or_makes_no_rows() -> None:
    assert refusal(data__task="tasks").remedy == "write `module:Class` or `path/to/file.py:Class`"
    assert refusal(data__task="tasks:").problem == "data.task='tasks:' does not name an object in a module"
    assert refusal(data__num_train=0).place == "data.num_train"


def test_columns_that_are_one() -> None:
    error = refusal(data__task="", data__train="rows.jsonl", data__answer_column="prompt")
    assert error.problem == "data.prompt_column and data.answer_column are both 'prompt'"
    assert refusal(data__task="", data__train="rows.jsonl", data__prompt_column="").place == "data.prompt_column"


def test_evaluating_without_held_out_rows() -> None:
    assert refusal(evaluation__every=5, data__num_evaluate=0).problem == (
        "evaluation.every=5, and there are no held-out rows"
    )
    assert refusal(evaluation__every=5, data__task="", data__train="rows.jsonl").problem == (
        "evaluation.every=5, and there are no held-out rows"
    )
    accepted(evaluation__every=0, data__num_evaluate=0)


def test_no_reward_or_one_that_outlives_its_lease() -> None:
    assert refusal(reward__function="").problem == (
        "reward.function and reward.model.path are empty: nobody says what a trajectory is worth"
    )
    assert refusal(reward__function="rewards.py").remedy == "write `module:function` or `path/to/file.py:function`"
    assert (
        refusal(reward__timeout_s=120.0).remedy == "set reward.timeout_s below 120, or ledger.lease_timeout_s above 120"
    )


def test_a_learning_rate_that_ends_above_its_peak_or_never_gets_there() -> None:
    assert refusal(learner__optimizer__min_lr=1.0).problem == (
        "learner.optimizer.min_lr=1 is above learner.optimizer.lr=0.0003"
    )
    assert refusal(learner__optimizer__warmup_steps=100).remedy == "set learner.optimizer.warmup_steps=99 or less"
    accepted(learner__optimizer__warmup_steps=100, learner__mini_batches=2)
    assert refusal(learner__optimizer__warmup_share=1.0).place == "learner.optimizer.warmup_share, steps"
    both = refusal(learner__optimizer__warmup_steps=5, learner__optimizer__warmup_share=0.1)
    assert both.remedy == "keep one of them"
    longer = {"schedule": Schedule.wsd, "warmup_share": 0.6, "decay_share": 0.5}
    assert refusal(**{f"learner__optimizer__{name}": value for name, value in longer.items()}).problem == (
        "learner.optimizer.schedule=wsd falls in 50 of 100 steps, and 60 of them are the warm-up"
    )
    assert refusal(learner__optimizer__beta2=1.0).place == "learner.optimizer.beta2"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb"])
def test_a_name_that_is_no_folder(name: str) -> None:
    assert refusal(name=name).problem == f"name={name!r} cannot be the name of a folder"


def test_the_name_of_the_link_to_the_newest_run() -> None:
    assert refusal(name="latest").problem == "name=latest is the link to the newest run"


def test_no_folder_for_runs() -> None:
    assert refusal(runs_dir="").place == "runs_dir"


def test_a_heartbeat_too_slow_for_its_deadline() -> None:
    assert refusal(channel__heartbeat_s=16.0).remedy == "set channel.dead_after_s=32 or more"
    assert refusal(channel__host="").place == "channel.host"


def test_a_warm_up_of_no_critic_or_of_the_whole_run() -> None:
    assert refusal(critic__warmup=2).problem == "critic.warmup=2, and advantage.estimator=grpo has no critic"
    assert refusal(critic__warmup=100, advantage__estimator="gae", steps=100).remedy == "set critic.warmup below 100"
    accepted(critic__warmup=5, advantage__estimator="gae")


def test_an_adapter_to_send_without_adapters() -> None:
    assert refusal(learner__lora__publish=LoraPublish.adapter).place == "learner.lora.publish, learner.lora.rank"
    accepted(learner__lora__publish=LoraPublish.adapter, learner__lora__rank=8)


def test_a_folder_for_weights_that_go_through_shared_memory() -> None:
    assert refusal(weights__folder="shared").place == "weights.folder, weights.transport"
    accepted(weights__folder="shared", weights__transport=Transport.file)
