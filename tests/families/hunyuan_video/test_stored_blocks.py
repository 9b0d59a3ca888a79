"""Blocks of HunyuanVideo and FramePack that are swapped, checkpointed or quantized give the same results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.framepack import tiny as tiny_framepack
from sd_scripts.families.framepack.model import FramePackTransformer
from sd_scripts.families.framepack.sections import section_of
from sd_scripts.families.hunyuan_video import tiny
from sd_scripts.families.hunyuan_video.model import HunyuanVideoTransformer
from sd_scripts.library.quantization.quantized import format_of
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings

CPU = torch.device("cpu")
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "hunyuan_video": lambda: HunyuanVideoTransformer(tiny.PARAMS),
    "framepack": lambda: FramePackTransformer(tiny_framepack.PARAMS),
}
SWAPPED = {"blocks_to_swap": 2}
CHECKPOINTED = {"gradient_checkpointing": True}


def made(family: str) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family]().requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def results(family: str, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the velocity of two clips, one of whose captions is padded, and its gradient in the noisy latents."""
    model, record = made(family), family_of(family)
    settings = Settings(script_for(family, "lora"), options)
    components = Components(denoiser=model, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="")
    record.place(components, placement_of(settings), CPU)
    if options.get("gradient_checkpointing"):
        record.checkpoint_gradients(model, settings[TrainingOptions], settings.get(NetworkOptions))
    quantized = sum(format_of(layer) is not None for layer in model.modules())
    assert bool(quantized) is bool({"quantize_base", "fp8_base"} & options.keys())
    frames = 9 if family == "framepack" else 3
    noisy = torch.randn(2, 16, frames, 4, 6).requires_grad_()
    text, pooled = torch.randn(2, 5, tiny.WIDTH), torch.randn(2, tiny.WIDTH)
    times, guidance = torch.tensor([0.25, 0.75]), torch.ones(2)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    if family == "framepack":
        section = section_of(0, 2, CPU, f1=False)
        known = [(torch.randn(2, 16, len(at), 4, 6), at, by) for _, at, by in section.known]
        image = torch.randn(2, 4, tiny_framepack.PARAMS.image_width)
        out = model.train()(noisy, section.places, known, text, pooled, image, times, guidance, mask)
    else:
        out = model.train()(noisy, text, pooled, times, guidance, mask)
    out.square().mean().backward()
    assert noisy.grad is not None
    return out.detach(), noisy.grad


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("stored", "near"),
    [({}, 0.0), ({"quantize_base": "int8"}, 0.05), ({"fp8_base": True}, 0.15), ({"quantize_base": "nf4"}, 0.5)],
    ids=["plain", "int8", "fp8", "nf4"],
)
def test_swapped_and_checkpointed_blocks_equal_resident_ones_in_every_format(
    family: str, stored: dict[str, Any], near: float
) -> None:
    resident = results(family, **stored)
    for found in (results(family, **stored, **SWAPPED), results(family, **stored, **SWAPPED, **CHECKPOINTED)):
        assert all(torch.equal(one, other) for one, other in zip(found, resident, strict=True))
    if stored:
        for one, plain in zip(resident, results(family), strict=True):
            assert 0 < (one - plain).norm() < near * plain.norm()
