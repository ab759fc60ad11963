"""Chat templates of the kinds that are about, and a tokenizer with one of them."""

import string
from pathlib import Path

from transformers import AutoTokenizer

from async_rl.data.tokenizer import save_character_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    # As Qwen3's: the last turn shows what was thought, and no turn does once a user has gone on.
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content or '' }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_END = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
OTHER_PROMPT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "[{{ m.content }}]{% endfor %}"
)
TOOLS = "{% if tools %}({{ tools | map(attribute='name') | join(',') }}){% endif %}" + CHATML


def save_chat_tokenizer(folder: Path, template: str = CHATML) -> Path:
    """A token a character of ASCII, special ones for the ends of turns, and a template."""
    save_character_tokenizer(string.printable, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder
