"""CLIP's tokenizer, and its vocabulary as shipped with us."""

from pathlib import Path

from transformers import CLIPTokenizer

from sd_scripts.library.tokenizer_folders import TokenizerKind, unpacked

MERGES = 48894
"""Merges that CLIP uses of the 262,144 in the file: 49,408 tokens less 512 for bytes and 2 for start and end."""
LENGTH = 77
"""Tokens that the encoder reads at once, start and end among them."""


def shipped_tokenizer() -> CLIPTokenizer:
    """CLIP's own vocabulary, 49,408 tokens, with which every CLIP of the families was trained."""
    lines = unpacked("bpe_simple_vocab_16e6.txt.gz").split("\n")[1 : MERGES + 1]  # line 0 is a title
    return make_tokenizer([(left, right) for left, right in (line.split() for line in lines)])


def read_tokenizer(folder: Path) -> CLIPTokenizer:
    return CLIPTokenizer.from_pretrained(folder, local_files_only=True)


CLIP = TokenizerKind(read=read_tokenizer, shipped=shipped_tokenizer)


def make_tokenizer(merges: list[tuple[str, str]]) -> CLIPTokenizer:
    """CLIP's numbering: bytes, bytes that end a word, one token for each merge, start and end."""
    letters = byte_letters()
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=LENGTH)


def byte_letters() -> list[str]:
    """A printable letter for each byte, in CLIP's order: bytes that print as themselves come first."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]
