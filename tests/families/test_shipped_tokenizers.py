"""Cache keys that depend on a tokenizer are the same whether this package's is made for them or not."""

import json
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.qwen3 import QWEN3
from sd_scripts.families.common.family import TextOptions
from sd_scripts.families.common.opening import load_tokenizers
from sd_scripts.families.flux2 import text as flux2
from sd_scripts.families.krea2 import text as krea2
from sd_scripts.families.qwen_image import text as qwen_image
from sd_scripts.families.qwen_image.family import QWEN_IMAGE
from sd_scripts.families.qwen_image_edit import text as qwen_image_edit
from sd_scripts.families.qwen_image_edit.card import EDIT
from sd_scripts.families.z_image import text as z_image
from sd_scripts.library.text.tokenizers import QWEN, Tokenizers, are_shipped
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings

EXTRAS = {"layers": flux2.LAYERS, qwen_image_edit.VERSION: EDIT}
KEYS: dict[str, tuple[Any, Any]] = {
    "krea2": (QWEN3, krea2.TEMPLATE.cache_key),
    "qwen_image": (QWEN, qwen_image.TEMPLATE.cache_key),
    "z_image": (QWEN3, z_image.TEMPLATE.cache_key),
    "flux2": (QWEN3, flux2.text_cache_key),
    "qwen_image_edit": (QWEN, qwen_image_edit.text_cache_key),
}
MODEL = Path("qwen_image.safetensors")


def components(tokenizers: Any) -> Components:
    return Components.opened({}, tokenizers=tokenizers, source="", extras=EXTRAS)


def never() -> list[Any]:
    raise AssertionError("the tokenizer was made")


def test_keys_of_caches_are_the_same_without_making_the_shipped_tokenizer() -> None:
    made = {kind.cache_folder: kind.shipped() for kind in (QWEN, QWEN3)}
    options = TextOptions.of(Settings(script_for("flux2", "lora"), {}))
    keys = {
        family: (
            key(components(Tokenizers(never, shipped=True)), options),
            key(components([made[kind.cache_folder]]), options),
        )
        for family, (kind, key) in KEYS.items()
    }
    assert [family for family, (known, computed) in keys.items() if known != computed] == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_tokenizer_next_to_the_model_is_not_taken_for_the_shipped_one(tmp_path: Path, is_there: bool) -> None:
    (tmp_path / MODEL).touch()
    if is_there:
        (tmp_path / "tokenizer").mkdir()
        (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps({}))
    rows = {"text_encoder1": 152_064}
    tokenizers = load_tokenizers(QWEN_IMAGE.card, QWEN_IMAGE.layouts, rows, tmp_path / MODEL, None, late=True)
    assert are_shipped(tokenizers) == (not is_there)
