"""Wan 2.2 5B with random weights, and the runs that the benchmark times with it: Wan's that fit its 30 blocks."""

from pathlib import Path

from torch import Tensor, nn

from benchmarks.full_size import wan
from benchmarks.full_size.common.weights import unknown
from benchmarks.full_size.wan import LAYERS
from benchmarks.full_size.wan import OPTIONS as OPTIONS
from benchmarks.full_size.wan import SHORT_ENCODER as SHORT_ENCODER
from sd_scripts.families.cards.shared_components import UMT5_TOKENS
from sd_scripts.families.wan.full_size import UMT5
from sd_scripts.families.wan_5b.full_size import PARAMS, modules

ROWS = {
    method: {name: row for name, row in rows.items() if row.get("blocks_to_swap", 0) < PARAMS.blocks - 1}
    for method, rows in wan.ROWS.items()
}
"""Rows of the benchmark by training method and name: the options that distinguish each."""


def predict(denoiser: nn.Module, width: int, height: int, frames: int = 1) -> Tensor:
    """Call the transformer on the meta device for one image or clip of this size in pixels."""
    latents = unknown(1, PARAMS.channels, 1 + frames // 4, height // 16, width // 16)
    predicted: Tensor = denoiser(latents, unknown(1, UMT5_TOKENS, UMT5["d_model"]), unknown(1))
    return predicted


def write_files(folder: Path, layers: int = LAYERS) -> dict[str, Path]:
    """Write the model's files, 23 GB in bf16 with all `layers` of the text encoder; return them by the options that
    name them."""
    return wan.write_parts(folder, "wan_5b", modules(layers))
