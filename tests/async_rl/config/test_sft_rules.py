"""Contradictions of a fine-tuning."""

from dataclasses import replace

import pytest

from async_rl.config.data import SftDataConfig
from async_rl.config.learner import OptimizerConfig
from async_rl.config.loop import ClusterConfig
from async_rl.config.model import ModelConfig, NewModel
from async_rl.config.parallel import ParallelConfig
from async_rl.config.schema import SftConfig
from async_rl.config.sft_rules import check_sft
from async_rl.errors import ConfigError

SOUND = SftConfig(data=SftDataConfig(task="tasks.py:Sum", max_prompt_tokens=16))


def refusal(config: SftConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_sft(config)
    return caught.value


def test_the_defaults_with_a_task_are_sound() -> None:
    check_sft(SOUND)


def test_an_unknown_family() -> None:
    error = refusal(replace(SOUND, new_model=NewModel(family="gpt2")))
    assert str(error) == (
        "new_model.family=gpt2 is not known\n  where:  new_model.family\n"
        "  remedy: give one of llama, mixtral, qwen3, qwen3_moe"
    )


def test_heads_that_do_not_share_evenly() -> None:
    error = refusal(replace(SOUND, new_model=NewModel(num_heads=4, num_kv_heads=3)))
    assert error.problem == "new_model.num_kv_heads=3 does not divide new_model.num_heads=4"


def test_tokens_sent_to_more_experts_than_there_are() -> None:
    error = refusal(replace(SOUND, new_model=NewModel(num_experts=4, top_k=5)))
    assert error.remedy == "set new_model.top_k to 4 or less"


def test_a_prompt_that_fills_the_model() -> None:
    error = refusal(replace(SOUND, new_model=NewModel(max_positions=16)))
    assert error.remedy == "set new_model.max_positions above 16"


def test_the_shape_of_a_new_model_does_not_matter_where_there_is_one() -> None:
    check_sft(replace(SOUND, model=ModelConfig(path="m"), new_model=NewModel(family="gpt2")))


def test_a_prompt_that_fills_a_micro_batch() -> None:
    assert refusal(replace(SOUND, micro_batch_tokens=16)).remedy == "set micro_batch_tokens above 16"


def test_no_output_no_name_no_prompts() -> None:
    assert refusal(replace(SOUND, output="")).place == "output"
    assert refusal(replace(SOUND, name="a/b")).place == "name"
    no_prompts = replace(SOUND, model=ModelConfig(path="m"), data=SftDataConfig(max_prompt_tokens=16))
    assert refusal(no_prompts).place == "data.task, data.train"


def test_a_new_model_without_a_task_to_take_its_characters_from() -> None:
    error = refusal(replace(SOUND, data=SftDataConfig(train="pairs.jsonl", max_prompt_tokens=16)))
    assert error.place == "model.path, data.task"


def test_a_warm_up_that_never_ends() -> None:
    assert refusal(replace(SOUND, optimizer=OptimizerConfig(warmup_steps=500))).place == "optimizer.warmup_steps, steps"


def test_a_row_that_fills_no_micro_batch() -> None:
    data = replace(SOUND.data, max_tokens=9000)
    assert refusal(replace(SOUND, data=data)).remedy == "set micro_batch_tokens=9000 or more"


def test_a_column_that_is_both_conversation_and_prompt() -> None:
    data = replace(SOUND.data, prompt_column="messages")
    assert refusal(replace(SOUND, data=data)).place == "data.messages_column, data.prompt_column"
    check_sft(replace(SOUND, data=replace(data, messages_column="")))


@pytest.mark.parametrize("parallel", [ParallelConfig(tp=2, dp=3), ParallelConfig(tp=8)])
def test_more_ranks_than_gpus(parallel: ParallelConfig) -> None:
    error = refusal(replace(SOUND, parallel=parallel, cluster=ClusterConfig(gpus_per_node=4)))
    assert error.remedy == "let tp · pp · cp · dp be 4 or less"


def test_experts_that_the_ranks_cannot_share() -> None:
    assert refusal(replace(SOUND, parallel=ParallelConfig(ep=2))).place == "parallel.ep, parallel.etp"
