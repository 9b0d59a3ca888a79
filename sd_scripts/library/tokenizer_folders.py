"""Tokenizers as people have them: in a diffusers folder, beside the model file, in tokenizer_cache_dir, or ours."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "vocab.json", "spiece.model")
"""One of these makes a folder that of a tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    read: Callable[[Path], Any]
    """A tokenizer of transformers from its folder."""
    shipped: Callable[[], Any]
    """The vocabulary that lies in this package."""
    spare: int = 0
    """How many rows of the encoder's embedding may have no token."""

    def fits(self, tokenizer: Any, size: int) -> bool:
        return 0 <= size - len(tokenizer) <= self.spare


def find_tokenizer(
    kind: TokenizerKind, folder: str, cache_folder: str, source: Path, tokenizer_cache_dir: str | None, size: int
) -> Any:
    """The tokenizer for a model at `source`, a file or a diffusers folder.

    `folder` is its name in a diffusers folder, `cache_folder` that in tokenizer_cache_dir. `size` are the rows of the
    encoder's embedding: a tokenizer that belongs to another model is passed over. ValueError where none fits.
    """
    for tokenizer in _candidates(kind, folder, cache_folder, source, tokenizer_cache_dir):
        if kind.fits(tokenizer, size):
            return tokenizer
    raise ValueError(
        f"tokenizer_cache_dir: found no tokenizer with {size} tokens for '{source}'; "
        f"put it in a folder '{folder}' next to the model"
    )


def _candidates(
    kind: TokenizerKind, folder: str, cache_folder: str, source: Path, tokenizer_cache_dir: str | None
) -> Iterator[Any]:
    places = [source / folder]
    if source.is_file():
        places = [source.parent / f"{source.stem}_tokenizers" / folder, source.parent / folder]
    if tokenizer_cache_dir:
        places.append(Path(tokenizer_cache_dir) / cache_folder)
    for place in places:
        if any((place / file).is_file() for file in FILES):
            yield kind.read(place)
    yield kind.shipped()


def unpacked(name: str) -> str:
    """The text of a packed vocabulary of this package."""
    packed = resources.files(__package__).joinpath("vocabulary", name).read_bytes()
    return gzip.decompress(packed).decode("utf-8")
