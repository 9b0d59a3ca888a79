"""A trained FLUX.1 as other programs load it: its transformer in one file, under BFL's keys."""

from pathlib import Path

import torch

from sd_scripts.families.family import Components, ModelWeights
from sd_scripts.library.safetensors_io import save_model


def saved_form(components: Components, save_model_as: str | None) -> str:
    """The other parts do not learn and lie in files of their own: there is no whole folder to write."""
    return "safetensors"


def save(
    components: Components,
    weights: ModelWeights,
    path: Path,
    form: str,
    dtype: torch.dtype | None,
    metadata: dict[str, str],
) -> None:
    """As family.Family.save."""
    save_model(path, weights.denoiser, metadata, dtype)
