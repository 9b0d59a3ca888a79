"""The LoRA method on the miniature SDXL, without a trainer: prepare, one loss, its warnings."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.common.family import Components, StepInputs, TextOptions
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.context import Context, make_context
from sd_scripts.training.methods.lora import Lora, LoraTrainable
from sd_scripts.training.methods.method import Trainable
from tests.support.miniatures import sdxl_settings

LOADED = (DENOISER, "text_encoder1", "text_encoder2")
"""All but the VAE, which no loss reads here."""
CAPTIONS = ["a red circle on a white background", "a blue square"]
WITH_CONV = ["conv_dim=2", "conv_alpha=2"]


@dataclass
class Prepared:
    """A base model that is trained."""

    context: Context
    components: Components
    trainable: Trainable

    @property
    def network(self) -> Any:
        assert isinstance(self.trainable, LoraTrainable)
        return self.trainable.network

    @property
    def warnings(self) -> list[str]:
        return [e["text"] for e in RunFolder(self.context.run_dir).events() if e["kind"] == "warning"]


def context(model: Path, folder: Path, **values: Any) -> Context:
    values = {"network_dim": 4, "network_alpha": 2.0, "learning_rate": 1e-3, "run_dir": str(folder), **values}
    settings = sdxl_settings(model, seed=1, **values)
    return make_context(settings)


@cache
def _opened(model: Path) -> Components:
    return SDXL.open(sdxl_settings(model), torch.float32, torch.device("cpu"))


def opened(model: Path) -> Components:
    """Components that are not loaded; the file is checked once in a process."""
    once = _opened(model)
    return replace(once, text_encoders=[*once.text_encoders], extras={**once.extras})


def base(model: Path) -> Components:
    return opened(model).load(*LOADED)


def prepare(model: Path, folder: Path, **values: Any) -> Prepared:
    """As the trainer does it, up to the first step."""
    given, method = context(model, folder, **values), Lora()
    assert method.check(given.settings[NetworkOptions]) == []
    components = opened(model)
    components.on_load = partial(method.change_base, SDXL, components, given)
    components.load(*LOADED)
    return Prepared(given, components, method.prepare(SDXL, components, given))


def say_something(prepared: Prepared) -> None:
    """Give every up random numbers, as if training had been."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in prepared.network.layers:
            layer.up.copy_(torch.randn(layer.up.shape, generator=generator) * 0.1)
    prepared.network.refresh()


def losses(components: Components) -> Tensor:
    """(2,) of two captions and fixed noise, differentiable in all trained weights."""
    settings, generator = sdxl_settings("model"), torch.Generator().manual_seed(3)
    inputs = {
        "noisy": torch.randn(2, 4, 8, 8, generator=generator),
        "target": torch.randn(2, 4, 8, 8, generator=generator),
        "timesteps": torch.tensor([200, 700]),
        "sizes": torch.full((2, 6), 64.0),
        "loss_weight": torch.ones(2),
    }
    text = SDXL.text.encode(
        components, SDXL.text.tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings))
    )
    return SDXL.loss(components, StepInputs(model=inputs, text=text), SDXL.objective_options(settings))


def save(prepared: Prepared, path: Path) -> Path:
    prepared.trainable.save(path, None, {})
    return path
