"""Real models' sizes, and their configs as transformers knows them, made here without any download."""

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from async_rl.config.model_sizes import ModelSizes

QWEN3_8B = ModelSizes(
    num_layers=36,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    vocab_size=151936,
    qk_norm=True,
)
QWEN3_30B_A3B = ModelSizes(
    num_layers=48,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    intermediate_size=768,
    vocab_size=151936,
    num_experts=128,
    top_k=8,
    qk_norm=True,
)
LLAMA3_70B = ModelSizes(
    num_layers=80,
    hidden_size=8192,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=28672,
    vocab_size=128256,
)
TINY = ModelSizes(
    num_layers=4,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=160,
    vocab_size=200,
    qk_norm=True,
)


def hugging_face(sizes: ModelSizes) -> PretrainedConfig:
    """The config of the architecture that has such sizes: Qwen3, Qwen3-MoE, or Llama for those of 70B."""
    kind = Qwen3MoeConfig if sizes.num_experts else LlamaConfig if sizes == LLAMA3_70B else Qwen3Config
    experts = {
        "num_experts": sizes.num_experts,
        "num_experts_per_tok": sizes.top_k,
        "moe_intermediate_size": sizes.intermediate_size,
        "intermediate_size": 8 * sizes.intermediate_size,
    }
    dense = {"intermediate_size": sizes.intermediate_size}
    return kind(
        num_hidden_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        tie_word_embeddings=sizes.tie_embeddings,
        **(experts if sizes.num_experts else dense),
    )
