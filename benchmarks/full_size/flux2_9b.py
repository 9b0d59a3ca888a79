"""FLUX.2 klein 9B with random weights; the benchmark times the same runs as with 4B."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size.common.rows import image_rows
from benchmarks.full_size.common.weights import unknown, write_components
from benchmarks.full_size.flux2 import OPTIONS as OPTIONS
from benchmarks.full_size.flux2 import change
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.flux2.card import CARD
from sd_scripts.families.flux2.full_size import modules_9b as modules

ROWS = image_rows(14)
MEASURED_STEPS = MeasuredSteps(eager=0.3348, compiled=0.3044, launching=0.25)


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels."""
    grid = height // 16, width // 16
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 128), unknown(1, 512, 12288), unknown(1), grid)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 33 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder, change)
