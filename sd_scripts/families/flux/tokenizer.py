"""The tokenizers of CLIP-L and T5: those that lie beside the model, or the vocabularies shipped with us."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sd_scripts.library.tokenizers import CLIP, T5, find_tokenizer

KINDS = (CLIP, T5)
FOLDERS = ("tokenizer", "tokenizer_2")
"""As a diffusers folder names them."""
CACHE_FOLDERS = ("openai_clip-vit-large-patch14", "google_t5-v1_1-xxl")
"""As tokenizer_cache_dir of sd-scripts names them."""


def load_tokenizers(source: Path, tokenizer_cache_dir: str | None, sizes: Sequence[int]) -> list[Any]:
    """CLIP's and T5's tokenizer for the model at `source`: the transformer's file, or a diffusers folder.

    `sizes` are the rows of the encoders' embeddings: a tokenizer that belongs to another model is passed over.
    """
    return [
        find_tokenizer(kind, folder, cached, source, tokenizer_cache_dir, size)
        for kind, folder, cached, size in zip(KINDS, FOLDERS, CACHE_FOLDERS, sizes, strict=True)
    ]
