"""Wan 2.2's two models: which of them predicts, and when the second one is in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import family_of
from sd_scripts.families.wan.card import HIGH_NOISE
from sd_scripts.families.wan.experts import Experts
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.training import settings_for, train


@pytest.fixture(scope="module")
def high_noise(wan_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a second model whose velocity is 0."""
    state = load_file(wan_miniature.checkpoint)
    state["head.head.weight"].zero_()
    state["head.head.bias"].zero_()
    path = tmp_path_factory.mktemp("experts") / "high.safetensors"
    save_file(state, path)
    return path


def test_the_model_for_high_noise_is_in_memory_for_its_steps_only(wan_miniature: Any, high_noise: Path) -> None:
    values = {name: value for name, value in settings_for(wan_miniature).items() if value is not None}
    settings = Settings(
        script_for("wan", "lora"),
        {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        | {"dit_high_noise": str(high_noise), "output_dir": "out", "train_data_dir": "images"},
    )
    components = family_of("wan").open(settings, torch.float32)
    used: list[str] = []
    experts = Experts(
        components,
        settings,
        lambda latents, t: used.append("low") or latents,  # type: ignore[func-returns-value]
        lambda model: lambda latents, t: used.append("high") or latents,  # type: ignore[func-returns-value]
    )
    loaded = []
    for t in (1.0, 0.875, 0.874, 0.1):
        experts(torch.zeros(1), torch.tensor(t))
        loaded.append(components.is_loaded(HIGH_NOISE))
    assert used == ["high", "high", "low", "low"]
    assert loaded == [True, True, False, False]


def test_a_model_does_not_contain_the_one_for_high_noise(wan_miniature: Any) -> None:
    assert describe(wan_miniature.checkpoint).parts == ()


@pytest.mark.run
def test_samples_use_both_models_and_training_one(wan_miniature: Any, high_noise: Path, tmp_path: Path) -> None:
    """With all steps at high noise the second model's velocity, 0, leaves the noise as it is."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --f 1 --s 2 --d 1 --l 1\n")
    values = {"sample_prompts": prompts, "sample_at_first": True, "max_train_steps": 1, "learning_rate": 1e-12}
    images = []
    for boundary in (1, 1000):
        more = {"dit_high_noise": high_noise, "timestep_boundary": boundary}
        run = train(wan_miniature, tmp_path / str(boundary), **values, **more)
        assert run.status == 0
        images.append(Path(run.events_of("sample")[0]["path"]).read_bytes())
    assert images[0] != images[1]
    wrong = train(wan_miniature, tmp_path / "wrong", dit_high_noise=wan_miniature.files["vae"])
    assert wrong.status == 2
