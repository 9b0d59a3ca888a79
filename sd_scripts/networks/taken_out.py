"""A LoRA that is merged into the layers of a model, taken out of their outputs for a while.

A training adapter is merged into a distilled model so that training does not undo the distillation; samples show the
model without it. Its weights may be quantized or swapped by then, so that only outputs can be changed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sd_scripts.networks.files.lora_files import LoraFile
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import readable


class MergedLora:
    """Layers of a model, and the factors of the LoRA that is merged into each."""

    def __init__(self, each: AdaptedModule, file: LoraFile):
        """Raises ValueError, one sentence, unless the file is a plain LoRA of Linears."""
        self._model = each.module
        pairs = file.pairs()
        paths = {each.target.name(path): path for path, _ in readable(each.module)}
        self._pairs = {paths[name]: pair for name, pair in pairs.items() if name in paths}
        if any(pair.down.ndim > 2 for pair in self._pairs.values()):
            raise ValueError(f"{file.option}: '{file.path}' adapts convolutions, which cannot be taken out for samples")

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        """Subtract the LoRA's part of each layer's output, while nothing is compiled."""
        with ExitStack() as hooks:
            for path, pair in self._pairs.items():
                layer = self._model.get_submodule(path)
                down, up = pair.down, pair.up * (pair.alpha / pair.rank)
                hooks.callback(layer.register_forward_hook(partial(_subtract, down, up)).remove)
            yield


def _subtract(down: Tensor, up: Tensor, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    (x,) = inputs
    down, up = (factor.to(x.device, x.dtype) for factor in (down, up))
    return output - F.linear(F.linear(x, down), up)
