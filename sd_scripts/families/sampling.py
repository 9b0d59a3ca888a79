"""What sampling while training needs in every family: modules ready for one image, and left as they were."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from PIL import Image
from torch import Tensor, nn


@contextmanager
def eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """The modules in eval mode; afterwards each part is as it was."""
    training = [part for module in modules for part in module.modules() if part.training]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def on_device(module: nn.Module, device: torch.device) -> Iterator[None]:
    """The module on the device. Afterwards its weights are where they lay before: nothing is copied back."""
    away = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.device != device]
    homes = [tensor.data for tensor in away]
    try:
        for tensor in away:
            tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, host_copy in zip(away, homes, strict=True):
            tensor.data = host_copy


def as_image(image: Tensor) -> Image.Image:
    """(3, H, W) in 0..1."""
    return Image.fromarray((image * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy())
