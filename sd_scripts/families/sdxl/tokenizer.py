"""CLIP's tokenizers for both text encoders: those that lie beside the model, or the vocabulary shipped with us."""

import gzip
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from transformers import CLIPTokenizer

FOLDERS = ("tokenizer", "tokenizer_2")
"""As a diffusers folder names them."""
CACHE_FOLDERS = ("openai_clip-vit-large-patch14", "laion_CLIP-ViT-bigG-14-laion2B-39B-b160k")
"""As tokenizer_cache_dir of sd-scripts names them."""
MERGES = 48894
"""Merges that CLIP uses of the 262,144 in the file: 49,408 tokens less 512 for bytes and 2 for start and end."""


def load_tokenizers(source: Path, tokenizer_cache_dir: str | None, sizes: Sequence[int]) -> list[CLIPTokenizer]:
    """Both tokenizers for the model at `source`, a file or a diffusers folder.

    `sizes` are the vocabularies that the encoders know: a tokenizer that belongs to another model is passed over.
    """
    first, second = (_find(index, source, tokenizer_cache_dir, size) for index, size in enumerate(sizes))
    second.pad_token = second.convert_ids_to_tokens(0)  # OpenCLIP pads with 0, CLIP with its end token
    return [first, second]


def _find(index: int, source: Path, tokenizer_cache_dir: str | None, size: int) -> CLIPTokenizer:
    for tokenizer in _candidates(index, source, tokenizer_cache_dir):
        if len(tokenizer) == size:
            return tokenizer
    raise ValueError(
        f"tokenizer_cache_dir: no tokenizer of {size} tokens for '{source}'; "
        f"put it into a folder '{FOLDERS[index]}' beside the model"
    )


def _candidates(index: int, source: Path, tokenizer_cache_dir: str | None) -> Iterator[CLIPTokenizer]:
    places = [source / FOLDERS[index]]
    if source.is_file():
        places = [source.parent / f"{source.stem}_tokenizers" / FOLDERS[index], source.parent / FOLDERS[index]]
    if tokenizer_cache_dir:
        places.append(Path(tokenizer_cache_dir) / CACHE_FOLDERS[index])
    for folder in places:
        if any((folder / file).is_file() for file in ("tokenizer.json", "vocab.json")):
            yield CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    yield shipped_tokenizer()


def shipped_tokenizer() -> CLIPTokenizer:
    """CLIP's own vocabulary, 49,408 tokens; both encoders of SDXL were trained with it."""
    packed = resources.files(__package__).joinpath("vocabulary/bpe_simple_vocab_16e6.txt.gz").read_bytes()
    lines = gzip.decompress(packed).decode("utf-8").split("\n")[1 : MERGES + 1]  # line 0 is a title
    return make_tokenizer([(left, right) for left, right in (line.split() for line in lines)])


def make_tokenizer(merges: list[tuple[str, str]]) -> CLIPTokenizer:
    """CLIP's numbering: bytes, bytes that end a word, one token for each merge, start and end."""
    letters = byte_letters()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=77)


def byte_letters() -> list[str]:
    """A printable letter for each byte, in CLIP's order: bytes that print as themselves come first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
