"""SDXL in memory, as tests compare it with files."""

from torch import Tensor

from sd_scripts.families.common.family import Components, ModelWeights
from sd_scripts.families.sdxl.saving import checkpoint


def checkpoint_tensors(components: Components) -> dict[str, Tensor]:
    """The loaded model in the single-file layout: 2,514 tensors for SDXL, fewer for smaller variants."""
    return checkpoint(components, ModelWeights(denoiser=components.denoiser.state_dict()))
