"""Contradictions in the config of a fine-tuning.

Owns the rules that join options of `async-rl sft`; must not look at the machine or at any file.
"""

from async_rl.config.data import DataConfig
from async_rl.config.model import NewModel
from async_rl.config.parallel_rules import check_experts, check_layout, check_layout_sizes, check_sizes
from async_rl.config.part_rules import check_data, check_name, check_optimizer, refuse
from async_rl.config.ranks import num_sft_ranks
from async_rl.config.schema import SftConfig

MODEL_FAMILIES = ("llama", "mixtral", "qwen3", "qwen3_moe")


def check_sft(config: SftConfig) -> None:
    """Raises a `ConfigError` for the first contradiction."""
    check_name(config.name, config.runs_dir)
    _check_output(config)
    if not config.model.path:
        _check_new_model(config.new_model, config.data)
    check_data(config.data)
    _check_sft_lengths(config)
    check_layout(config.parallel, "parallel")
    _check_ranks(config)
    check_sizes(config.model.sizes, "model.sizes")
    if config.model.sizes.is_given:
        check_layout_sizes(config.parallel, config.model.sizes, "parallel")
    check_optimizer(config.optimizer, "optimizer", config.steps)


def _check_output(config: SftConfig) -> None:
    refuse(not config.output, "output is empty", place="output", remedy="name the folder to write, output=models/sft")


def _check_new_model(model: NewModel, data: DataConfig) -> None:
    refuse(
        not data.task,
        "a new model has a token for each character of its task, and data.task is empty",
        place="model.path, data.task",
        remedy="name a Hugging Face folder, model.path=…, to start from, or a task",
    )
    refuse(
        model.family not in MODEL_FAMILIES,
        f"new_model.family={model.family} is not known",
        place="new_model.family",
        remedy=f"give one of {', '.join(MODEL_FAMILIES)}",
    )
    refuse(
        model.num_heads % model.num_kv_heads != 0,
        f"new_model.num_kv_heads={model.num_kv_heads} does not divide new_model.num_heads={model.num_heads}",
        place="new_model.num_kv_heads, new_model.num_heads",
        remedy="give a divisor of new_model.num_heads",
    )
    refuse(
        model.top_k > model.num_experts,
        f"new_model.top_k={model.top_k} is more than new_model.num_experts={model.num_experts}",
        place="new_model.top_k, new_model.num_experts",
        remedy=f"set new_model.top_k to {model.num_experts} or less",
    )
    refuse(
        data.max_prompt_tokens >= model.max_positions,
        f"a prompt of data.max_prompt_tokens={data.max_prompt_tokens} leaves no room for an answer in "
        f"new_model.max_positions={model.max_positions}",
        place="data.max_prompt_tokens, new_model.max_positions",
        remedy=f"set new_model.max_positions above {data.max_prompt_tokens}",
    )


def _check_ranks(config: SftConfig) -> None:
    cluster, ranks = config.cluster, num_sft_ranks(config)
    gpus = cluster.num_nodes * cluster.gpus_per_node
    refuse(
        gpus > 0 and not 0 < ranks <= gpus,
        f"parallel asks for {ranks or config.parallel.ranks_of_copy} ranks, and the cluster has {gpus} GPUs",
        place="parallel, cluster.num_nodes, cluster.gpus_per_node",
        remedy=f"let tp · pp · cp · dp be {gpus} or less",
    )
    check_experts(config.parallel, ranks // config.parallel.ranks_of_copy, "parallel")


def _check_sft_lengths(config: SftConfig) -> None:
    prompt, whole, budget = config.data.max_prompt_tokens, config.data.max_tokens, config.micro_batch_tokens
    refuse(
        whole > budget,
        f"a row of data.max_tokens={whole} does not fit in micro_batch_tokens={budget}",
        place="micro_batch_tokens, data.max_tokens",
        remedy=f"set micro_batch_tokens={whole} or more",
    )
    refuse(
        prompt >= budget,
        f"a prompt of {prompt} tokens and its answer do not fit in micro_batch_tokens={budget}",
        place="micro_batch_tokens, data.max_prompt_tokens",
        remedy=f"set micro_batch_tokens above {prompt}",
    )
    refuse(
        bool(config.data.messages_column) and config.data.messages_column == config.data.prompt_column,
        f"data.messages_column and data.prompt_column are both {config.data.prompt_column!r}",
        place="data.messages_column, data.prompt_column",
        remedy="set data.messages_column= where the column holds prompts, and the answers are in another",
    )
