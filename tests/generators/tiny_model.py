"""A tiny Qwen3 with a character tokenizer, its sets of weights, and the log-probabilities that transformers finds.

Shapes: P prompt tokens, R response tokens, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from async_rl.protocol import VersionSpan

VOCAB_SIZE = 96
EOS = 1


def build_model(seed: int, *, tie: bool) -> Qwen3ForCausalLM:
    """Random weights, large enough that other weights or other keys change log-probabilities visibly."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """A model folder that vLLM reads; token n > 1 is one character."""
    model.save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<eos>": EOS} | {chr(ord(" ") + n): n for n in range(2, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)


@torch.no_grad()
def logprobs_recomputed(
    models_by_version: dict[int, Qwen3ForCausalLM],
    prompt: Sequence[int],
    response: Sequence[int],
    spans: Sequence[VersionSpan],
    temperature: float,
) -> torch.Tensor:
    """[R] log p of each response token by the weights of its span, over keys and values of those same weights."""
    ids = torch.tensor([[*prompt, *response]])
    parts = []
    for span in spans:
        logits = models_by_version[span.version](ids).logits[0]  # [P+R, V]
        parts.append(_pick(logits[len(prompt) - 1 :], response, span, temperature))
    return torch.cat(parts)


@torch.no_grad()
def logprobs_over_old_keys(
    models_by_version: dict[int, Qwen3ForCausalLM],
    prompt: Sequence[int],
    response: Sequence[int],
    spans: Sequence[VersionSpan],
    temperature: float,
) -> torch.Tensor:
    """[R] log p of each response token by the weights of its span, over the keys and values of earlier spans.

    The token that a span begins with is sampled after its weights have read the one before it.
    """
    ids = torch.tensor([[*prompt, *response]])
    cache = DynamicCache()
    parts, num_read = [], 0
    for span in spans:
        end = len(prompt) + span.end - 1
        new = ids[:, num_read:end]
        logits = models_by_version[span.version](new, past_key_values=cache, use_cache=True).logits[0]
        logits = logits[len(logits) - (span.end - span.start) :]
        local = VersionSpan(version=span.version, start=0, end=span.end - span.start)
        parts.append(_pick(logits, response[span.start : span.end], local, temperature))
        num_read = end
    return torch.cat(parts)


def _pick(logits: torch.Tensor, response: Sequence[int], span: VersionSpan, temperature: float) -> torch.Tensor:
    rows = torch.log_softmax(logits[span.start : span.end].float() / temperature, dim=-1)
    chosen = torch.tensor(list(response[span.start : span.end]))
    return rows.gather(1, chosen[:, None])[:, 0]
