"""The tokenizers of CLIP and T5: from the model's folder, tokenizer_cache_dir or the vocabularies in this package."""

import base64
import gzip
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from transformers import CLIPTokenizer, T5Tokenizer

FILES = ("tokenizer.json", "vocab.json", "spiece.model")
"""A folder with one of these holds a tokenizer."""
CLIP_MERGES = 48894
"""Merges that CLIP uses of the 262,144 in the file: 49,408 tokens less 512 for bytes and 2 for start and end."""
CLIP_LENGTH = 77
"""Tokens that the encoder reads at once, start and end included."""
T5_SENTINELS = 100
"""T5's tokens <extra_id_0> to <extra_id_99>; they follow the 32,000 pieces, last first."""
T5_ROWS = 128
"""T5's embedding has a multiple of so many rows: 32,128 for 32,100 tokens."""


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    cls: Any
    """Its class in transformers."""
    shipped: Callable[[], Any] | None = None
    """Makes the tokenizer whose vocabulary is in this package; None: there is none."""
    cache_folder: str
    """Its folder in tokenizer_cache_dir, as sd-scripts names it."""
    pad_id: int | None = None
    """Id of the padding token, if it is not the tokenizer's own."""
    spare: int = 0
    """How many rows of the encoder's embedding may have no token."""

    def fits(self, tokenizer: Any, size: int) -> bool:
        return 0 <= size - len(tokenizer) <= self.spare


def find_tokenizer(kind: TokenizerKind, folder: str, source: Path, tokenizer_cache_dir: str | None, size: int) -> Any:
    """Return the tokenizer for a model at `source`, a file or a diffusers folder.

    `folder` is its name in a diffusers folder. `size` is the number of rows of the encoder's embedding: a tokenizer of
    another model is skipped. Raises ValueError if none fits.
    """
    for tokenizer in _candidates(kind, folder, source, tokenizer_cache_dir):
        if kind.fits(tokenizer, size):
            if kind.pad_id is not None:
                tokenizer.pad_token = tokenizer.convert_ids_to_tokens(kind.pad_id)
            return tokenizer
    raise ValueError(
        f"tokenizer_cache_dir: found no tokenizer with {size} tokens for '{source}'; "
        f"put it in a folder '{folder}' next to the model"
    )


def _candidates(kind: TokenizerKind, folder: str, source: Path, tokenizer_cache_dir: str | None) -> Iterator[Any]:
    places = [source / folder]
    if source.is_file():
        places = [source.parent / f"{source.stem}_tokenizers" / folder, source.parent / folder]
    if tokenizer_cache_dir:
        places.append(Path(tokenizer_cache_dir) / kind.cache_folder)
    for place in places:
        if any((place / file).is_file() for file in FILES):
            yield kind.cls.from_pretrained(place, local_files_only=True)
    if kind.shipped:
        yield kind.shipped()


def _unpacked(name: str) -> str:
    """Return the text of a packed vocabulary of this package."""
    packed = resources.files(__package__).joinpath("vocabulary", name).read_bytes()
    return gzip.decompress(packed).decode("utf-8")


def shipped_clip() -> CLIPTokenizer:
    """Return the tokenizer with CLIP's vocabulary of 49,408 tokens, which all CLIP encoders here were trained with."""
    lines = _unpacked("bpe_simple_vocab_16e6.txt.gz").split("\n")[1 : CLIP_MERGES + 1]  # line 0 is a title
    return make_clip_tokenizer([(left, right) for left, right in (line.split() for line in lines)])


def make_clip_tokenizer(merges: list[tuple[str, str]]) -> CLIPTokenizer:
    """Return a tokenizer with CLIP's numbering: bytes, bytes that end a word, a token for each merge, start and end."""
    # a printable letter for each byte: bytes that print as themselves come first
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=CLIP_LENGTH)


def shipped_t5() -> T5Tokenizer:
    """Return the tokenizer with the vocabulary of T5 v1.1, 32,100 tokens."""
    packed = json.loads(_unpacked("t5_v1_1.json.gz"))
    scores = array("f", packed["scores"])  # float32, as in the original
    sentinels = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(T5_SENTINELS))]
    return T5Tokenizer(
        vocab=[*zip(packed["pieces"], scores, strict=True), *sentinels],
        _spm_precompiled_charsmap=base64.b64decode(packed["charsmap"]),
        extra_ids=T5_SENTINELS,
    )


CLIP = TokenizerKind(cls=CLIPTokenizer, shipped=shipped_clip, cache_folder="openai_clip-vit-large-patch14")
OPEN_CLIP = replace(CLIP, pad_id=0, cache_folder="laion_CLIP-ViT-bigG-14-laion2B-39B-b160k")
T5 = TokenizerKind(cls=T5Tokenizer, shipped=shipped_t5, cache_folder="google_t5-v1_1-xxl", spare=T5_ROWS - 1)
