"""Captioners through transformers, in miniature: batches, prompts by kind of model, and folders without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sd_scripts.options.captioning.text import CaptionTextOptions
from sd_scripts.tools.captioning.captioner import Captioner
from tests.support.captioning_models.tagging import caption, captions, write_colours
from tests.support.captioning_models.tiny_captioners import WRITERS, write_florence

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
SHORT = CaptionTextOptions(max_length=6, min_length=4)
PROMPTS = {"florence2": "<MORE_DETAILED_CAPTION>", "blip-2": "a red", "qwen3_vl": "red circle"}
RANDOM = np.random.default_rng(0)
IMAGES = [RANDOM.integers(0, 255, (40, width, 3), np.uint8) for width in (30, 90)]


@pytest.fixture(scope="module", params=WRITERS)
def captioner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captioner:
    folder = WRITERS[request.param](tmp_path_factory.mktemp("captioner"))
    return Captioner(folder, SHORT, None)


def test_a_batch_gets_the_texts_of_its_images_one_by_one(captioner: Captioner) -> None:
    prompts = [PROMPTS[captioner.kind], PROMPTS[captioner.kind]]
    alone = [captioner([image], prompts[:1])[0] for image in IMAGES]
    assert captioner(IMAGES, prompts) == alone
    assert all(alone)


def test_prompts_of_different_lengths_do_not_disturb_each_other(captioner: Captioner) -> None:
    if captioner.takes_tasks:
        pytest.skip("Florence-2 has tasks, not prompts")
    prompts = ["a", "a red circle a red"]
    alone = [captioner([IMAGES[0]], [prompt])[0] for prompt in prompts]
    assert captioner([IMAGES[0]] * 2, prompts) == alone


def test_the_cache_of_a_compiled_captioner_changes_no_text(
    captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [PROMPTS[captioner.kind]] * 2
    usual = captioner(IMAGES, prompts)
    monkeypatch.setattr(captioner, "_options", CaptionTextOptions(max_length=6, min_length=4, compile=True))
    assert captioner(IMAGES, prompts) == usual


def test_the_answer_has_no_prompt_of_a_chat(captioner: Captioner) -> None:
    text = captioner(IMAGES[:1], [PROMPTS[captioner.kind]])[0]
    assert "assistant" not in text
    assert captioner.completes == text.startswith("a red")


def test_a_folder_is_captioned_with_florence_and_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked: list[str] = []
    original = Captioner.__call__

    def call(self: Captioner, images: Any, prompts: Any) -> list[str]:
        asked.extend(prompts)
        return original(self, images, prompts)

    monkeypatch.setattr(Captioner, "__call__", call)
    images = write_colours(tmp_path / "images", "red", "blue")
    folder = write_florence(tmp_path / "florence")
    flags = ("--method", "captioner", "--model", folder, "--max_length", 5, "--min_length", 4)
    assert caption(images, *flags, "--family", "flux", "--trigger", "sks") == 0
    assert asked == ["<MORE_DETAILED_CAPTION>"] * 2
    assert all(text.startswith("sks, ") and len(text) > 6 for text in captions(images).values())
    asked.clear()
    caption(images, *flags, "--family", "sdxl", "--existing", "replace")
    assert asked == ["<DETAILED_CAPTION>"] * 2


def test_folders_without_a_captioner_are_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write_florence(tmp_path / "model")

    def refusal(**options: Any) -> str:
        with pytest.raises(ValueError, match=r"^(model|load_in_8bit|compile): ") as raised:
            Captioner(folder, CaptionTextOptions(**options), None)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    if not torch.cuda.is_available():
        assert refusal(load_in_8bit=True) == "load_in_8bit: bitsandbytes needs a GPU; turn it off"
        assert refusal(compile=True) == "compile: a captioner is compiled for a GPU only; turn it off"
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "cannot be loaded" in refusal()
    config = folder / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "model_type": "bert"}))
    assert "is a bert, which does not write captions" in refusal()
    config.write_text(json.dumps({**content, "model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    assert "cannot be loaded" in refusal()
    config.write_text("{")
    assert "cannot be loaded" in refusal()
