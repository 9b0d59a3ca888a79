"""Z-Image with random weights, and the runs that the benchmark times with it."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size.common.rows import image_rows, options_of
from benchmarks.full_size.common.weights import unknown, write_components
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.z_image.card import CARD
from sd_scripts.families.z_image.card.memory_facts import CAPTION
from sd_scripts.families.z_image.card.speeds import SPEEDS
from sd_scripts.families.z_image.full_size import modules as modules

OPTIONS = options_of({})
ROWS = image_rows(20)
MEASURED_STEPS = MeasuredSteps.of(SPEEDS, launching=0.3)


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels, with a usual caption."""
    grid = height // 16, width // 16
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 64), unknown(1, CAPTION, 2560), unknown(1), grid)
    return predicted


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 20 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder)
