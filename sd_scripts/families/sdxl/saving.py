"""A trained SDXL model as the single file that it came as."""

from torch import Tensor

from sd_scripts.families.family import Parts
from sd_scripts.library import sdxl_model_util as sgm


def checkpoint_tensors(parts: Parts) -> dict[str, Tensor]:
    """All 2,514 tensors of SDXL (fewer of a smaller cousin) under the keys and in the shapes of the single file."""
    first, second = parts.text_encoders
    return sgm.checkpoint(
        parts.denoiser.state_dict(),
        parts.vae.state_dict(),
        first.state_dict(),
        second.state_dict(),
        parts.facts["logit_scale"],
    )
