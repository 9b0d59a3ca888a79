"""Chroma with random weights, and the runs that the benchmark times with it, the same as FLUX.1's."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size.common.weights import quieter, unknown, write_components
from benchmarks.full_size.flux import OPTIONS as FLUX_OPTIONS
from benchmarks.full_size.flux import ROWS as ROWS
from sd_scripts.families.chroma.card import CARD
from sd_scripts.families.chroma.full_size import modules as modules

OPTIONS = {
    method: {name: value for name, value in options.items() if name != "guidance_scale"}
    for method, options in FLUX_OPTIONS.items()
}
"""Options of all rows, by training method."""


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels."""
    grid = height // 16, width // 16
    img, txt = unknown(1, grid[0] * grid[1], 64), unknown(1, 128, 4096)
    predicted: Tensor = denoiser(img, txt, None, unknown(1), None, grid)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 27 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder, quieter("distilled_guidance_layer.out_proj.weight"))
