"""Full training of a family with any number of text encoders, each at its own learning rate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sd_scripts.families.common.family import Components, Family, ModelWeights, Saving
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import Context, make_context
from sd_scripts.training.methods.full import Full

RATES = {"learning_rate": 1e-3, "learning_rate_te1": 1e-4, "learning_rate_te2": 0.0}


def saved(components: Components, weights: ModelWeights) -> dict[str, Tensor]:
    states = [weights.denoiser, *weights.text_encoders]
    return {f"{number}.{name}": each for number, state in enumerate(states) for name, each in (state or {}).items()}


def family(encoders: int) -> Family:
    return replace(
        SDXL,
        lora_text_encoders=SDXL.lora_text_encoders[:1] * encoders,
        blocks=replace(SDXL.blocks, denoiser=lambda denoiser: [list(denoiser)]),
        saving=Saving(tensors=saved),
    )


def components(encoders: int) -> Components:
    return Components(
        denoiser=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        vae=nn.Identity(),
        text_encoders=[nn.Linear(4, 4).requires_grad_(False) for _ in range(encoders)],
        tokenizers=[],
        source="nowhere",
    )


def context(folder: Path, **values: Any) -> Context:
    values = {"pretrained_model_name_or_path": "model", "seed": 1, "max_grad_norm": 0.0, **RATES, **values}
    settings = Settings(script_for("sdxl", "full"), {**values, "run_dir": str(folder)})
    return make_context(settings)


def values_of(components: Components) -> list[dict[str, Tensor]]:
    modules = [components.denoiser, *components.text_encoders]
    return [{name: tensor.clone() for name, tensor in module.state_dict().items()} for module in modules]


@pytest.mark.parametrize("encoders", [0, 1, 2, 3])
@pytest.mark.parametrize("fused", [False, True])
def test_each_text_encoder_is_trained_at_its_own_rate_and_saved(encoders: int, fused: bool, tmp_path: Path) -> None:
    """The first has 1e-4, the second is frozen, the third has the common rate."""
    model, given = components(encoders), context(tmp_path, train_text_encoder=True, fused_backward_pass=fused)
    learns = Full().trains_text_encoders(family(encoders), given)
    assert learns == (True, False, True)[:encoders]
    for name in ("denoiser", *model.encoder_names):
        Full().change_base(family(encoders), model, given, name)
    trainable = Full().prepare(family(encoders), model, given)
    rates = {group["name"]: group["lr"] for group in trainable.parameter_groups()}
    of_text = {"text_encoder1": 1e-4, "text_encoder3": 1e-3}
    assert rates == {"unet": 1e-3} | {name: rate for name, rate in of_text.items() if int(name[-1]) <= encoders}

    before = values_of(model)
    optimizer = trainable.make_optimizer(given.settings[OptimizerOptions])
    x = torch.ones(2, 4)
    model.denoiser(sum((encoder(x) for encoder in model.text_encoders), x)).sum().backward()
    trainable.gradients.collect()
    optimizer.step()
    trainable.updated()
    moved = [
        any(not torch.equal(old[name], new[name]) for name in old)
        for old, new in zip(before, values_of(model), strict=True)
    ]
    assert moved == [True, *learns]

    trainable.save(tmp_path / "file.safetensors", None, {})
    file = load_file(tmp_path / "file.safetensors")
    assert torch.equal(file["0.0.weight"], model.denoiser.state_dict()["0.weight"])
    assert [f"{number}.weight" in file for number in range(1, encoders + 1)] == list(learns)


def test_text_encoders_are_frozen_by_default(tmp_path: Path) -> None:
    model, given = components(3), context(tmp_path)
    assert Full().trains_text_encoders(family(3), given) == (False, False, False)
    trainable = Full().prepare(family(3), model, given)
    assert [group["name"] for group in trainable.parameter_groups()] == ["unet"]
