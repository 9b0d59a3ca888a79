"""CLIP's tokenizers for both text encoders: those that lie beside the model, or the vocabulary shipped with us."""

from collections.abc import Sequence
from pathlib import Path

from transformers import CLIPTokenizer

from sd_scripts.library.tokenizers import CLIP, find_tokenizer

FOLDERS = ("tokenizer", "tokenizer_2")
"""As a diffusers folder names them."""
CACHE_FOLDERS = ("openai_clip-vit-large-patch14", "laion_CLIP-ViT-bigG-14-laion2B-39B-b160k")
"""As tokenizer_cache_dir of sd-scripts names them."""


def load_tokenizers(source: Path, tokenizer_cache_dir: str | None, sizes: Sequence[int]) -> list[CLIPTokenizer]:
    """Both tokenizers for the model at `source`, a file or a diffusers folder.

    `sizes` are the vocabularies that the encoders know: a tokenizer that belongs to another model is passed over.
    """
    first, second = (
        find_tokenizer(CLIP, folder, cached, source, tokenizer_cache_dir, size)
        for folder, cached, size in zip(FOLDERS, CACHE_FOLDERS, sizes, strict=True)
    )
    second.pad_token = second.convert_ids_to_tokens(0)  # OpenCLIP pads with 0, CLIP with its end token
    return [first, second]
