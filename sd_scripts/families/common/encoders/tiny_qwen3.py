"""Qwen3 in miniature: its tokenizer with the words of the drawn images, and its sizes."""

from typing import Any

from transformers import Qwen2Tokenizer

from sd_scripts.families.common.encoders.qwen3 import config_of, shapes_of_sizes, with_qwen3_tokens
from sd_scripts.library.text.tokenizers import make_qwen_tokenizer
from sd_scripts.testing.miniature import caption_words, letter_merges

WIDTH = 32
TEMPLATE_WORDS = (
    *("system", "Describe", "the", "image", "by", "detailing", "color", "shape", "size", "texture", "quantity", "text"),
    *("spatial", "relationships", "of", "objects", "and", "background", "user", "assistant"),
)
"""Of the texts around captions, which would be hundreds of letters otherwise."""


def qwen3_tokenizer() -> Qwen2Tokenizer:
    """Make a byte-level tokenizer like Qwen3's that merges the letters of each caption word one by one."""
    merges = letter_merges((*caption_words(), *TEMPLATE_WORDS))
    return with_qwen3_tokens(make_qwen_tokenizer(merges))  # type: ignore[no-any-return]


def tiny_config(vocabulary: int, layers: int, rope_theta: float = 1e6) -> dict[str, Any]:
    """Return the arguments of transformers' Qwen3Config."""
    sizes = shapes_of_sizes(
        width=WIDTH, mlp_width=48, heads=2, key_heads=1, head_width=16, layers=layers, words=vocabulary
    )
    return config_of(sizes, rope_theta)
