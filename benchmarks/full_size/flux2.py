"""FLUX.2 klein 4B with random weights, and the runs that the benchmark times with it."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size.common.rows import image_rows, options_of
from benchmarks.full_size.common.weights import quieter, unknown, write_components
from benchmarks.preset_search.step_time import MeasuredSteps
from sd_scripts.families.flux2.card import CARD
from sd_scripts.families.flux2.full_size import modules as modules
from sd_scripts.library.files.state_dicts import State

OPTIONS = options_of({})
ROWS = image_rows(11)
MEASURED_STEPS = MeasuredSteps(eager=0.1757, compiled=0.1582, launching=0.2)


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels."""
    grid = height // 16, width // 16
    predicted: Tensor = denoiser(unknown(1, grid[0] * grid[1], 128), unknown(1, 512, 7680), unknown(1), grid)
    return predicted


def change(name: str, weights: State) -> State:
    """Make the modulations smaller, and the variances of the autoencoder's latents positive."""
    quiet = quieter("modulation")(name, weights)
    return {key: tensor.abs() if key.endswith("_var") else tensor for key, tensor in quiet.items()}


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 15 GB in bf16; return them by the options that name them."""
    return write_components(CARD, modules(), folder, change)
