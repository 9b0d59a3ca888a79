"""Save a trained FLUX.1 as other programs load it: its transformer in one file, under BFL's keys."""

from pathlib import Path

import torch

from sd_scripts.families.family import Components, ModelWeights
from sd_scripts.library.safetensors_io import save_model


def saved_form(components: Components, save_model_as: str | None) -> str:
    """Return safetensors: the other components are not trained and have their own files, so no folder is written."""
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
