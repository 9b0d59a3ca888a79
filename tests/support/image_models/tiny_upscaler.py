"""An upscaler in miniature that spandrel recognises."""

from pathlib import Path

import torch
from safetensors.torch import save_file


def write_upscaler(file: Path) -> Path:
    """Write a model of the architecture Compact that repeats each pixel, twice in each direction."""
    width = 4
    shapes = {"0": (width, 3, 3, 3), "2": (width, width, 3, 3), "4": (12, width, 3, 3)}
    weights = {f"body.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    weights |= {f"body.{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    weights |= {f"body.{name}.weight": torch.zeros(width) for name in ("1", "3")}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, file)
    return file
