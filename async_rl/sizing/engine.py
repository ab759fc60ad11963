"""The memory of a generator's engine, on each of its GPUs.

Owns the sum, and how many tokens the keys and values hold. Tensor parallel ranks share heads, columns, experts and the
vocabulary; key and value heads that are fewer than ranks are there several times. Pure.
"""

from async_rl.config.generation import GenerationConfig
from async_rl.config.model import ModelConfig
from async_rl.config.model_sizes import ModelSizes
from async_rl.sizing.account import GIB, Account, Part
from async_rl.sizing.parameters import model_parameters
from async_rl.sizing.training import DTYPE_BYTES, runtime_bytes

_TOKENS_AT_ONCE = 8192
"""That an engine reads in one step, at most."""


def engine_account(sizes: ModelSizes, model: ModelConfig, generation: GenerationConfig, *, on_gpus: bool) -> Account:
    """One GPU of an engine, or on CPUs its process."""
    tp, width = generation.tp, DTYPE_BYTES[model.dtype]
    copies = max(tp // sizes.num_kv_heads, 1) - 1
    copied_heads = copies * 2 * sizes.num_layers * sizes.hidden_size * sizes.kv_size
    return Account(
        owner="engine" if tp == 1 else f"engine, each of {tp} GPUs",
        parts=(
            Part(name="weights", num_bytes=(model_parameters(sizes) + copied_heads) // tp * width),
            Part(name="keys and values", num_bytes=int(generation.kv_cache_gib * GIB)),
            Part(name="working memory", num_bytes=_working_bytes(sizes, generation, width)),
            Part(name="runtime", num_bytes=runtime_bytes(on_gpus)),
        ),
    )


def kv_token_bytes(sizes: ModelSizes, model: ModelConfig, generation: GenerationConfig) -> int:
    """Keys and values of a token in all layers, on each GPU of an engine."""
    heads = max(sizes.num_kv_heads // generation.tp, 1)
    return 2 * sizes.num_layers * heads * sizes.head_dim * DTYPE_BYTES[model.dtype]


def kv_tokens(sizes: ModelSizes, model: ModelConfig, generation: GenerationConfig) -> int:
    """Tokens whose keys and values an engine holds."""
    return int(generation.kv_cache_gib * GIB) // kv_token_bytes(sizes, model, generation)


def _working_bytes(sizes: ModelSizes, generation: GenerationConfig, width: int) -> int:
    """Of one step: a layer's activations of the tokens read, and logits with their log-probabilities in float32."""
    experts = max(sizes.top_k, 1)
    columns = 3 * experts * sizes.intermediate_size // generation.tp
    tokens = min(_TOKENS_AT_ONCE, generation.max_concurrent * generation.max_model_len)
    layer = tokens * width * (4 * sizes.hidden_size + columns)
    logits = 2 * 4 * generation.max_concurrent * sizes.vocab_size
    return layer + logits
