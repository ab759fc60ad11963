"""The config trees of a run and of a fine-tuning: which sections there are.

Owns the trees. What is in a section stands in the module that is named for it; rules that join options stand in
`rules`, composing from YAML in `compose`. Everybody else receives a part of a tree, already validated.
"""

from dataclasses import dataclass

from async_rl.config.data import DataConfig, SftDataConfig
from async_rl.config.generation import GenerationConfig
from async_rl.config.learner import CriticConfig, LearnerConfig, OptimizerConfig
from async_rl.config.loop import (
    ChannelConfig,
    CheckpointConfig,
    ClusterConfig,
    EvaluationConfig,
    LedgerConfig,
    TrackingConfig,
    WeightsConfig,
)
from async_rl.config.model import ModelConfig, NewModel
from async_rl.config.objective import AdvantageConfig, CorrectionConfig, KLConfig, LossConfig
from async_rl.config.option import option, section
from async_rl.config.parallel import ParallelConfig, Recompute
from async_rl.config.reward import RewardConfig
from async_rl.config.staleness import StalenessConfig


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
