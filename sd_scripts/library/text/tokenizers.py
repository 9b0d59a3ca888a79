"""The tokenizers of CLIP, T5 and Qwen2.5: from the model folder, tokenizer_cache_dir or this package's vocabularies."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import CLIPTokenizer, Qwen2Tokenizer, T5Tokenizer

FILES = ("tokenizer.json", "vocab.json", "spiece.model")
"""A folder with one of these contains a tokenizer."""
CLIP_MERGES = 48894
"""Merges that CLIP uses of the 262,144 in the file: 49,408 tokens less 512 for bytes and 2 for start and end."""
CLIP_LENGTH = 77
"""Tokens that the encoder reads at a time, start and end included."""
T5_SENTINELS = 100
"""T5's tokens <extra_id_0> to <extra_id_99>; they follow the 32,000 pieces, last first."""
T5_ROWS = 128
"""T5's embedding has a multiple of this many rows: 32,128 for 32,100 tokens."""
QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
QWEN_ADDED = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>"),
)
"""Tokens of Qwen2.5 after its 151,643 pieces, in order; only the former are skipped when it writes text."""


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    name: str
    """Of its class in transformers."""
    size: int
    """Tokens of the usual one."""
    cache_folder: str
    """Its folder in tokenizer_cache_dir, as sd-scripts names it."""
    shipped: Callable[[], Any] | None = None
    """Makes the tokenizer whose vocabulary is in this package; None: it is not."""
    hub: str = ""
    """Id on the Hugging Face Hub of a tokenizer that is not in this package."""
    folders: tuple[str, ...] = ()
    """Other names of its folder next to a model."""
    pad_id: int | None = None
    """Id of the padding token, if it is not the tokenizer's own."""
    spare: int = 0
    """How many rows of the encoder's embedding may have no token."""

    @property
    def cls(self) -> Any:
        import transformers

        return getattr(transformers, self.name)

    def fits(self, tokens: int, rows: int) -> bool:
        """Return whether a tokenizer with `tokens` tokens suits an encoder whose embedding has `rows` rows."""
        return 0 <= rows - tokens <= self.spare


class Tokenizers(Sequence[Any]):
    """Tokenizers that are made when the first one is needed: captions in a cache need none."""

    def __init__(self, make: Callable[[], list[Any]], *, shipped: bool = False):
        """`shipped`: whether all of them will be this package's own, whose tokens are known before."""
        self._make = make
        self.shipped = shipped

    @cached_property
    def _made(self) -> list[Any]:
        return self._make()

    def __getitem__(self, place: Any) -> Any:
        return self._made[place]

    def __len__(self) -> int:
        return len(self._made)


def are_shipped(tokenizers: Sequence[Any]) -> bool:
    """Return whether all of them are known to be this package's own."""
    return isinstance(tokenizers, Tokenizers) and tokenizers.shipped


def find_tokenizer(kind: TokenizerKind, folder: str, source: Path, tokenizer_cache_dir: str | None, size: int) -> Any:
    """Return the tokenizer for a model at `source`, a file or a diffusers folder.

    `folder` is its name in a diffusers folder. `size` is the number of rows of the encoder's embedding: a tokenizer of
    a different model is skipped. Raises ValueError if none fits.
    """
    for tokenizer in _candidates(kind, folder, source, tokenizer_cache_dir):
        if kind.fits(len(tokenizer), size):
            if kind.pad_id is not None:
                tokenizer.pad_token = tokenizer.convert_ids_to_tokens(kind.pad_id)
            return tokenizer
    from_hub = f", such as that of https://huggingface.co/{kind.hub}" if kind.hub else ""
    raise ValueError(
        f"tokenizer_cache_dir: found no tokenizer with {size} tokens for '{source}'; "
        f"put it{from_hub} in a folder '{folder}' next to the model"
    )


def tokenizer_folders(kind: TokenizerKind, folder: str, source: Path, tokenizer_cache_dir: str | None) -> list[Path]:
    """Return the folders with a tokenizer of the user's for a model at `source`, in order of preference."""
    places = [source / folder]
    if source.is_file():
        names = (f"{source.stem}_tokenizers/{folder}", folder, *kind.folders)
        places = [source.parent / name for name in names]
    if tokenizer_cache_dir:
        places.append(Path(tokenizer_cache_dir) / kind.cache_folder)
    return [place for place in places if any((place / file).is_file() for file in FILES)]


def _candidates(kind: TokenizerKind, folder: str, source: Path, tokenizer_cache_dir: str | None) -> Iterator[Any]:
    for place in tokenizer_folders(kind, folder, source, tokenizer_cache_dir):
        yield kind.cls.from_pretrained(place, local_files_only=True)
    if kind.shipped:
        yield kind.shipped()
    elif kind.hub:
        with suppress(OSError, ValueError):  # neither in its cache nor within reach
            yield kind.cls.from_pretrained(kind.hub)


def _unpacked(name: str) -> str:
    """Return the text of a packed vocabulary of this package."""
    packed = resources.files(__package__).joinpath("vocabulary", name).read_bytes()
    return (lzma if name.endswith(".xz") else gzip).decompress(packed).decode("utf-8")


def shipped_clip() -> CLIPTokenizer:
    """Return the tokenizer with CLIP's vocabulary of 49,408 tokens, which all CLIP encoders here were trained with."""
    lines = _unpacked("bpe_simple_vocab_16e6.txt.gz").split("\n")[1 : CLIP_MERGES + 1]  # line 0 is a title
    return make_clip_tokenizer([(left, right) for left, right in (line.split() for line in lines)])


def make_clip_tokenizer(merges: list[tuple[str, str]]) -> CLIPTokenizer:
    """Return a tokenizer with CLIP's numbering: bytes, bytes that end a word, a token for each merge, start and end."""
    letters = _byte_letters()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(tokens)}
    from transformers import CLIPTokenizer

    return CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=CLIP_LENGTH)


def _byte_letters() -> list[str]:
    """Return a printable letter for each byte: bytes that print as themselves come first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]


def shipped_t5() -> T5Tokenizer:
    """Return the tokenizer with the vocabulary of T5 v1.1, 32,100 tokens."""
    from transformers import T5Tokenizer

    packed = json.loads(_unpacked("t5_v1_1.json.gz"))
    scores = array("f", packed["scores"])  # float32, as in the original
    sentinels = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(T5_SENTINELS))]
    return T5Tokenizer(
        vocab=[*zip(packed["pieces"], scores, strict=True), *sentinels],
        _spm_precompiled_charsmap=base64.b64decode(packed["charsmap"]),
        extra_ids=T5_SENTINELS,
    )


def shipped_qwen() -> Qwen2Tokenizer:
    """Return the tokenizer of Qwen2.5 and Qwen2.5-VL, 151,665 tokens."""
    lines = _unpacked("qwen2_5_merges.txt.xz").split("\n")
    return make_qwen_tokenizer([(left, right) for left, right in (line.split() for line in lines)])


def make_qwen_tokenizer(merges: list[tuple[str, str]]) -> Qwen2Tokenizer:
    """Return a tokenizer with Qwen's numbering: bytes, a token for each merge, and those that text cannot contain."""
    from transformers import AddedToken, Qwen2Tokenizer

    tokens = dict.fromkeys([*_byte_letters(), *(left + right for left, right in merges)])
    tokenizer = Qwen2Tokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN_SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN_ADDED])
    return tokenizer


CLIP = TokenizerKind(
    name="CLIPTokenizer", shipped=shipped_clip, size=49408, cache_folder="openai_clip-vit-large-patch14"
)
OPEN_CLIP = replace(CLIP, pad_id=0, cache_folder="laion_CLIP-ViT-bigG-14-laion2B-39B-b160k")
T5 = TokenizerKind(
    name="T5Tokenizer", shipped=shipped_t5, size=32100, cache_folder="google_t5-v1_1-xxl", spare=T5_ROWS - 1
)
QWEN = TokenizerKind(
    name="Qwen2Tokenizer",
    shipped=shipped_qwen,
    size=151665,
    cache_folder="Qwen_Qwen2.5-VL-7B-Instruct",
    spare=511,
)
LLAMA = TokenizerKind(
    name="PreTrainedTokenizerFast",  # as its tokenizer.json has it; its licence keeps it out of this package
    size=128256,
    cache_folder="xtuner_llava-llama-3-8b-v1_1-transformers",
    hub="xtuner/llava-llama-3-8b-v1_1-transformers",
    spare=127,
)
