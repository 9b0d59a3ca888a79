"""Tokenizers for text encoders whose vocabulary is not in the package: only the number of tokens matters."""

import json
from pathlib import Path
from typing import Any


def save_tokenizer(tokenizer: Any, folder: Path, size: int) -> None:
    """Save a small tokenizer with tokens that no text has, `size` in all."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text(encoding="utf-8"))
    unused = {f"<unused {number}>": number for number in range(len(tokenizer), size)}
    vocabulary = saved["model"]["vocab"]
    if isinstance(vocabulary, dict):  # special tokens would move behind the unused ones
        vocabulary |= {token["content"]: token["id"] for token in saved["added_tokens"]} | unused
    else:
        vocabulary += [[name, -99.0] for name in unused]
    file.write_text(json.dumps(saved), encoding="utf-8")
