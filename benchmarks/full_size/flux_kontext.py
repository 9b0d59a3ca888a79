"""FLUX.1 Kontext with random weights, and the runs that the benchmark times with it, the same as FLUX.1's."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size.flux import OPTIONS as OPTIONS
from benchmarks.full_size.flux import ROWS as ROWS
from benchmarks.full_size.flux import predict as predict_controlled
from benchmarks.full_size.flux import write_files as write_model
from sd_scripts.families.flux_kontext.full_size import modules as modules


def predict(denoiser: nn.Module, width: int, height: int) -> Tensor:
    """Call the transformer on the meta device for one image of this size in pixels and its control image."""
    return predict_controlled(denoiser, width, height, controls=1)


def write_files(folder: Path) -> dict[str, Path]:
    """Write the model's files, 33 GB in bf16; return them by the options that name them. Each image of the benchmark is
    its own control image."""
    return {**write_model(folder), "control_directory": folder / "images"}
