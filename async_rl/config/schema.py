"""The config tree: every option, its default, its effect and its range.

Owns names and meanings. Cross-option rules stand in `rules`, composing from YAML in `compose`.
Everybody else receives a part of this tree, already validated.
"""

from dataclasses import dataclass
from enum import StrEnum

from async_rl.config.lora import LoraConfig
from async_rl.config.model_sizes import ModelSizes
from async_rl.config.objective import AdvantageConfig, CorrectionConfig, KLConfig, LossConfig
from async_rl.config.option import option, section
from async_rl.config.parallel import ParallelConfig, Recompute

# Enum members are named like their values, since Hydra reads enums by name.


class Dtype(StrEnum):
    """Number format of weights and activations."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class OverBound(StrEnum):
    """What happens where a group would pass `staleness.max`."""

    wait = "wait"
    drop = "drop"
    requeue = "requeue"
    mask = "mask"
    train = "train"


class KvOnUpdate(StrEnum):
    """What happens to the keys and values of running requests when weights change."""

    recompute = "recompute"
    keep = "keep"


class Schedule(StrEnum):
    """How the learning rate moves after its warm-up."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    wsd = "wsd"


class LearnTurns(StrEnum):
    """Which of the assistant's turns of a conversation are learned."""

    all = "all"
    last = "last"


class Transport(StrEnum):
    """How weights travel from the learner to the generators."""

    shm = "shm"
    file = "file"


@dataclass(frozen=True)
class NewModel:
    """A model made from scratch: its shape."""

    family: str = option("qwen3", "Architecture: `llama`, `mixtral`, `qwen3` or `qwen3_moe`.")
    hidden_size: int = option(128, "Width.", minimum=32)
    num_layers: int = option(4, "Depth.", minimum=1)
    num_heads: int = option(4, "Query heads; head size is `head_dim`.", minimum=1)
    num_kv_heads: int = option(2, "Key and value heads; divides `num_heads`.", minimum=1)
    head_dim: int = option(32, "Head size; on CPU the engine takes 32, 64, 80, 96, 112, 128.", minimum=32)
    intermediate_size: int = option(
        512,
        "Width of the feed-forward layer, or of each expert; on CPU the engine takes experts in multiples of 32.",
        minimum=32,
    )
    num_experts: int = option(8, "Experts of a layer, of `mixtral` and `qwen3_moe`.", minimum=2)
    top_k: int = option(2, "Experts that each token is sent to; at most `num_experts`.", minimum=2)
    max_positions: int = option(256, "Longest sequence.", minimum=8)
    tie_embeddings: bool = option(True, "Input and output embeddings share their weights.")


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: str = option("", "Hugging Face folder with config, weights (safetensors) and tokenizer.")
    dtype: Dtype = option(Dtype.float32, "Number format of the learner and of the engines.")
    sizes: ModelSizes = section(
        ModelSizes,
        "The model's sizes, for a dry run where its folder is not at hand; all 0: read from its `config.json`.",
    )


@dataclass(frozen=True)
class DataConfig:
    """Prompts."""

    task: str = option(
        "", "A procedural task, `module:Class` or `file.py:Class` (docs/data.md). Excludes `train` and `evaluate`."
    )
    train: str = option("", "JSONL or parquet file with training rows.")
    evaluate: str = option("", "JSONL or parquet file with held-out rows.")
    prompt_column: str = option("prompt", "Column with the prompt: text, or a list of chat messages.")
    answer_column: str = option("answer", "Column with the answer that the reward function compares with.")
    task_column: str = option(
        "", "Column whose value names the row's task in the metrics of `async-rl launch`; empty: one task."
    )
    max_prompt_tokens: int = option(
        128, "Longer prompts are left out, and counted in a message at the start.", minimum=1
    )
    num_train: int = option(
        4096, "Rows that a procedural task makes for training; with files, 0 takes all and n the first n.", minimum=0
    )
    num_evaluate: int = option(256, "The same for the held-out rows.", minimum=0)
    shuffle: bool = option(True, "A new order in every epoch, from `seed`.")


@dataclass(frozen=True)
class SftDataConfig(DataConfig):
    """What `async-rl sft` learns from."""

    messages_column: str = option(
        "messages",
        "Column with a conversation, a list of messages: a file whose first row has it is of conversations. Empty: no "
        "file is.",
    )
    tools_column: str = option("tools", "Column with a conversation's tools, for the chat template; may be missing.")
    learn_turns: LearnTurns = option(
        LearnTurns.all, "Which of the assistant's turns of a conversation are learned: `all`, or the `last`."
    )
    max_tokens: int = option(
        0,
        "Longer rows, prompt and answers together, are left out, and counted in a message at the start; 0: what the "
        "model reads and a micro-batch holds.",
        minimum=0,
    )


@dataclass(frozen=True)
class RewardModelConfig:
    """A sequence classifier that rewards whole responses, in a process of its own."""

    path: str = option("", "Hugging Face folder of a sequence classifier with one label; empty: no reward model.")
    dtype: Dtype = option(Dtype.float32, "Number format of the classifier.")
    weight: float = option(1.0, "Its score, times this, is added to what `reward.function` says.")
    ending: str = option(
        "", "Text put behind each response before it is scored: the end of turn that the classifier was trained with."
    )
    batch_tokens: int = option(8192, "Tokens, padding included, of one forward pass.", minimum=1)
    max_restarts: int = option(3, "How often its process is started again after it has died.", minimum=0)


@dataclass(frozen=True)
class RewardConfig:
    """Who says what a trajectory is worth: a function, a reward model, or both together."""

    function: str = option(
        "", "`module:function` or `file.py:function`, plain or async (docs/rewards.md); empty: the reward model alone."
    )
    model: RewardModelConfig = section(RewardModelConfig, "The reward model.")
    timeout_s: float = option(10.0, "A call that takes longer has failed; its process is ended.", exclusive_minimum=0)
    num_workers: int = option(
        1, "Processes, per generator, that run a plain function beside the generation.", minimum=1, maximum=64
    )
    max_concurrent: int = option(64, "Calls at once, per generator, of an async function.", minimum=1)
    max_retries: int = option(
        2, "How often a sample whose reward failed is generated again before its group goes back.", minimum=0
    )
    overlong_buffer: int = option(
        0,
        "Tokens before `generation.max_new_tokens` over which a response loses reward, linearly (DAPO); 0 turns it "
        "off.",
        minimum=0,
    )
    overlong_penalty: float = option(1.0, "What a response of full length loses.", minimum=0)


@dataclass(frozen=True)
class GenerationConfig:
    """The generators: one vLLM engine each."""

    num_generators: int = option(1, "How many; each has a core (CPU) or `tp` GPUs.", minimum=1)
    tp: int = option(1, "GPUs that share an engine's matrices; 1 on CPUs.", minimum=1)
    group_size: int = option(8, "Samples of one prompt.", minimum=1)
    max_new_tokens: int = option(64, "A response that reaches this ends with finish reason `length`.", minimum=1)
    temperature: float = option(
        1.0, "Sampling temperature; learner and engine both apply it to log-probabilities.", exclusive_minimum=0
    )
    top_p: float = option(
        1.0,
        "Sample among the likeliest tokens that together have this probability; learner and engine both leave out "
        "the others.",
        exclusive_minimum=0,
        maximum=1,
    )
    top_k: int = option(0, "Sample among the k likeliest tokens, on learner and engine alike; 0: all.", minimum=0)
    max_concurrent: int = option(
        64, "Requests at once in an engine; more are faster and staler. At least `group_size`.", minimum=1
    )
    max_model_len: int = option(256, "Longest prompt and response together.", minimum=2)
    kv_cache_gib: float = option(
        1.0, "Memory for keys and values, per engine; on GPUs, on each that the engine has.", exclusive_minimum=0
    )
    kv_on_update: KvOnUpdate = option(
        KvOnUpdate.recompute,
        "Running requests, when weights change: `recompute` their keys and values under the new weights, "
        "or `keep` the old ones (faster; μ is then of new weights over old keys).",
    )
    max_restarts: int = option(10, "How often a dead generator is started again.", minimum=0)


@dataclass(frozen=True)
class StalenessConfig:
    """How old a token may be when it trains. Staleness 0 everywhere is synchronous RL."""

    max: int = option(4, "Hard bound per token, in versions.", minimum=0)
    depth: int = option(
        1, "How many batches generation may run ahead: the usual lag. More is faster; at most `max`.", minimum=0
    )
    over_bound: OverBound = option(
        OverBound.wait,
        "Where a group would pass the bound: `wait` for it, `drop` it, `requeue` its prompt, `mask` its old tokens, "
        "or `train` it all the same.",
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    lr: float = option(3e-4, "Peak learning rate.", exclusive_minimum=0)
    schedule: Schedule = option(
        Schedule.constant,
        "After the warm-up: `constant`, `linear` or `cosine` to `min_lr`, or `wsd`: constant, then linear to `min_lr` "
        "in the last `decay_share` of all steps.",
    )
    warmup_steps: int = option(0, "Steps from 0 to `lr`.", minimum=0)
    warmup_share: float = option(
        0.0, "The same as a share of all steps, in the place of a number.", minimum=0, maximum=1
    )
    decay_share: float = option(0.2, "Of all steps, in which `wsd` falls.", exclusive_minimum=0, maximum=1)
    min_lr: float = option(0.0, "Where the schedule ends.", minimum=0)
    weight_decay: float = option(0.0, "Decoupled weight decay.", minimum=0)
    beta1: float = option(0.9, "Adam's first decay.", minimum=0, maximum=1)
    beta2: float = option(0.95, "Adam's second decay.", minimum=0, maximum=1)
    eps: float = option(1e-8, "Adam's epsilon.", exclusive_minimum=0)
    clip_grad_norm: float = option(1.0, "Gradients are scaled down to this norm; 0 turns it off.", minimum=0)

    def warmup(self, num_steps: int) -> int:
        """Steps of the warm-up, of so many in all."""
        return self.warmup_steps or round(self.warmup_share * num_steps)

    def decay(self, num_steps: int) -> int:
        """Steps in which `wsd` falls, of so many in all; at least one."""
        return max(1, round(self.decay_share * num_steps))


@dataclass(frozen=True)
class CriticConfig:
    """The value model of `advantage.estimator=gae` and `vtrace`: the policy's architecture with one output."""

    path: str = option("", "Hugging Face folder that its body starts from; empty: `model.path`.")
    clip: float = option(
        0.2, "A value is clipped this far around the one before the batch's steps; 0 turns it off.", minimum=0
    )
    warmup: int = option(
        0, "Batches at the start that train the critic alone: the policy waits until values mean something.", minimum=0
    )
    offload: bool = option(
        False,
        "Keep the critic (weights, gradients, optimizer) in the host's memory between its uses, each of which costs "
        "the way to the GPU and back: the same numbers in less memory there. Only on GPUs.",
    )
    optimizer: OptimizerConfig = section(OptimizerConfig, "The critic's optimizer.")


@dataclass(frozen=True)
class LearnerConfig:
    """One step of the learner."""

    groups_per_step: int = option(16, "Groups in a batch.", minimum=1)
    mini_batches: int = option(1, "Optimizer steps that share a batch, each on its part of the groups.", minimum=1)
    epochs: int = option(1, "How often a batch is gone through.", minimum=1)
    micro_batch_tokens: int = option(
        8192, "Tokens packed into one forward pass: memory against speed, never the result.", minimum=1
    )
    share_prefixes: bool = option(
        True, "Compute a group's prompt once for all its responses that share a micro-batch: the same numbers, sooner."
    )
    parallel: ParallelConfig = section(ParallelConfig, "How the models are spread over ranks.")
    recompute: Recompute = option(
        Recompute.none,
        "Activations computed again in the backward pass: `none`, `selective` (those of attention) or `full` (all but "
        "each layer's input). Less memory for more time, the same numbers.",
    )
    lora: LoraConfig = section(LoraConfig, "Adapters of low rank that train in the place of all weights.")
    optimizer: OptimizerConfig = section(OptimizerConfig, "The optimizer.")
    max_skipped: int = option(
        5, "Steps skipped in a row for loss or gradients that are not finite, before the run stops.", minimum=0
    )
    num_threads: int = option(1, "CPU threads of each rank; ignored on GPUs.", minimum=1)
    max_restarts: int = option(
        3, "How often the learner is started again from its last checkpoint after a rank has died.", minimum=0
    )


@dataclass(frozen=True)
class WeightsConfig:
    """How new weights reach the generators."""

    publish_every: int = option(1, "Batches between two published versions; adds to the lag.", minimum=1)
    transport: Transport = option(
        Transport.shm, "`shm`: shared memory of one machine; `file`: files of a folder that all machines see."
    )
    folder: str = option("", "`file`: that folder; each run has its own in it. Empty: `weights` in the run's folder.")
    deadline_s: float = option(
        60.0,
        "A generator that has not activated a version by then is named, and gets no leases until it has.",
        exclusive_minimum=0,
    )


@dataclass(frozen=True)
class LedgerConfig:
    """How groups are kept account of."""

    lease_timeout_s: float = option(120.0, "A group not delivered by then is leased again.", exclusive_minimum=0)
    max_attempts: int = option(3, "After so many leases that ended without delivery, a group has failed.", minimum=1)
    max_failed: int = option(32, "After so many groups in a row that failed, the run stops and says why.", minimum=1)


@dataclass(frozen=True)
class ChannelConfig:
    """ZeroMQ between controller, generators and learner."""

    host: str = option("127.0.0.1", "Interface that the controller binds; other machines need to reach it.")
    port: int = option(0, "Port; 0 takes a free one.", minimum=0, maximum=65535)
    max_message_mib: int = option(64, "Larger frames are refused.", minimum=1, maximum=2047)
    heartbeat_s: float = option(1.0, "How often a generator says that it lives.", exclusive_minimum=0)
    dead_after_s: float = option(
        30.0, "A generator silent for so long has lost its leases (its death is seen at once).", exclusive_minimum=0
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run can be resumed from."""

    every: int = option(50, "Batches between two checkpoints; 0: only at the end, on Ctrl-C and SIGUSR1.", minimum=0)
    keep: int = option(2, "The newest so many are kept.", minimum=1)
    keep_best: int = option(
        0,
        "Besides them the best so many, by the reward of sampled held-out answers at their version (`async-rl sft`: by "
        "the validation loss); `checkpoints/best` points at the first.",
        minimum=0,
    )
    walltime_s: float = option(
        0.0,
        "The run stops by itself, with a checkpoint, before it is so old; 0: never. It keeps back the longest step and "
        "the longest checkpoint so far.",
        minimum=0,
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out prompts, sampled and greedy, on the generators."""

    every: int = option(0, "Batches between two evaluations; 0: only at start and end.", minimum=0)
    samples_per_prompt: int = option(1, "Samples of each held-out prompt for the sampled reward.", minimum=1)


@dataclass(frozen=True)
class TrackingConfig:
    """Where metrics go, beside `metrics.jsonl`."""

    aim: bool = option(True, "Write an Aim run.")
    aim_repo: str = option("", "Folder of the Aim repository; empty: `runs_dir`.")
    interval_s: float = option(
        1.0, "How often the system metrics of `async-rl launch` (idle, queues, leases) are written.", minimum=0.1
    )


@dataclass(frozen=True)
class ClusterConfig:
    """Where processes run."""

    address: str = option("", "Ray cluster to join; empty starts one on this machine.")
    num_nodes: int = option(1, "Machines of the cluster.", minimum=1)
    gpus_per_node: int = option(0, "GPUs of each; 0: a run on CPUs.", minimum=0)
    gpu_memory_gib: float = option(
        0.0, "Memory of a GPU: a run that cannot fit is refused before it starts; 0: not known.", minimum=0
    )
    peak_tflops: float = option(
        0.0,
        "What a rank's device can do at most, in 10¹² floating-point operations a second: MFU is a share of it. 0: "
        "measured at the start, by large matrix products.",
        minimum=0,
    )
    pin_cores: bool = option(True, "On CPU, pin each generator to a core of its own and the learner to what is left.")


@dataclass(frozen=True)
class RunConfig:
    """`async-rl launch`."""

    name: str = option("run", "The run's folder is `runs_dir`/`name`.")
    runs_dir: str = option("runs", "Where runs are kept.")
    seed: int = option(0, "Seed of data order and initial weights.", minimum=0, maximum=2**31 - 1)
    steps: int = option(100, "Batches to train.", minimum=1)
    model: ModelConfig = section(ModelConfig, "The policy.")
    data: DataConfig = section(DataConfig, "Prompts.")
    reward: RewardConfig = section(RewardConfig, "Rewards.")
    generation: GenerationConfig = section(GenerationConfig, "The generators.")
    staleness: StalenessConfig = section(StalenessConfig, "How old a token may be.")
    advantage: AdvantageConfig = section(AdvantageConfig, "From rewards to advantages.")
    loss: LossConfig = section(LossConfig, "What the policy minimises.")
    kl: KLConfig = section(KLConfig, "KL to the reference.")
    correction: CorrectionConfig = section(CorrectionConfig, "Importance weights and rejection.")
    critic: CriticConfig = section(CriticConfig, "The value model.")
    learner: LearnerConfig = section(LearnerConfig, "The learner.")
    weights: WeightsConfig = section(WeightsConfig, "Weight delivery.")
    ledger: LedgerConfig = section(LedgerConfig, "Accounting.")
    channel: ChannelConfig = section(ChannelConfig, "ZeroMQ.")
    checkpoint: CheckpointConfig = section(CheckpointConfig, "Checkpoints.")
    evaluation: EvaluationConfig = section(EvaluationConfig, "Held-out prompts.")
    tracking: TrackingConfig = section(TrackingConfig, "Metrics.")
    cluster: ClusterConfig = section(ClusterConfig, "Placement.")


@dataclass(frozen=True)
class SftConfig:
    """`async-rl sft`: conversations, or prompt and answer pairs; loss on the answers only."""

    output: str = option("models/sft", "Hugging Face folder to write.")
    runs_dir: str = option("runs", "Where the run's folder is kept.")
    name: str = option("sft", "The run's folder is `runs_dir`/`name`.")
    seed: int = option(0, "Seed of data order and initial weights.", minimum=0, maximum=2**31 - 1)
    steps: int = option(500, "Optimizer steps.", minimum=1)
    batch_size: int = option(64, "Rows a step.", minimum=1)
    micro_batch_tokens: int = option(8192, "Tokens packed into one forward pass.", minimum=1)
    validate_every: int = option(100, "Steps between two validation losses.", minimum=1)
    num_threads: int = option(2, "CPU threads of each rank; ignored on GPUs.", minimum=1)
    parallel: ParallelConfig = section(ParallelConfig, "How the model is spread over ranks.")
    recompute: Recompute = option(Recompute.none, "As `learner.recompute` of `async-rl launch`.")
    model: ModelConfig = section(ModelConfig, "The model to start from; without a path, `new_model` is made.")
    new_model: NewModel = section(NewModel, "Shape of a model made from scratch (`model.path` empty).")
    data: SftDataConfig = section(SftDataConfig, "Conversations or pairs.")
    optimizer: OptimizerConfig = section(OptimizerConfig, "The optimizer.")
    checkpoint: CheckpointConfig = section(CheckpointConfig, "Checkpoints.")
    tracking: TrackingConfig = section(TrackingConfig, "Metrics.")
    cluster: ClusterConfig = section(ClusterConfig, "Placement.")
