"""T5's tokenizer, and its vocabulary as shipped with us."""

import base64
import json
from array import array
from pathlib import Path

from transformers import T5Tokenizer

from sd_scripts.library.tokenizer_folders import TokenizerKind, unpacked

BLANKS = 100
"""Tokens that T5 was trained to fill in, <extra_id_0> to <extra_id_99>; they follow the 32,000 pieces, last first."""
ROWS = 128
"""Embeddings have a multiple of so many rows: 32,128 for 32,100 tokens."""


def shipped_tokenizer() -> T5Tokenizer:
    """The vocabulary of T5 v1.1, 32,100 tokens."""
    packed = json.loads(unpacked("t5_v1_1.json.gz"))
    scores = array("f", packed["scores"])  # the very numbers of the original, which are float32
    blanks = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(BLANKS))]
    return T5Tokenizer(
        vocab=[*zip(packed["pieces"], scores, strict=True), *blanks],
        _spm_precompiled_charsmap=base64.b64decode(packed["charsmap"]),
        extra_ids=BLANKS,
    )


def read_tokenizer(folder: Path) -> T5Tokenizer:
    return T5Tokenizer.from_pretrained(folder, local_files_only=True)


T5 = TokenizerKind(read=read_tokenizer, shipped=shipped_tokenizer, spare=ROWS - 1)
