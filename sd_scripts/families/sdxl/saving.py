"""A trained SDXL model as other programs load it: the single file that it came as."""

from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.family import ModelWeights, Parts
from sd_scripts.families.loading import MODEL
from sd_scripts.library import sdxl_model_util as sgm
from sd_scripts.library.model_reader import read_weights
from sd_scripts.library.safetensors_io import save_model
from sd_scripts.library.sdxl_model_util import State


def saved_form(parts: Parts, save_model_as: str | None) -> str:
    return save_model_as or "safetensors"


def save(
    parts: Parts, weights: ModelWeights, path: Path, form: str, dtype: torch.dtype | None, metadata: dict[str, str]
) -> None:
    """As family.Family.save."""
    save_model(path, checkpoint_tensors(parts, weights), metadata, dtype)


def checkpoint_tensors(parts: Parts, weights: ModelWeights | None = None) -> State:
    """All 2,514 tensors of SDXL (fewer of a smaller cousin) under the keys and in the shapes of the single file.

    What did not learn is as fine as the base model's file has it.
    """
    weights = weights or ModelWeights(denoiser=parts.denoiser.state_dict())
    first, second = (
        {name: tensor.cpu() for name, tensor in (learned or module.state_dict()).items()}
        for learned, module in zip(weights.text_encoders, parts.text_encoders, strict=True)
    )
    state = sgm.checkpoint(dict(weights.denoiser), parts.vae.state_dict(), first, second, parts.facts["logit_scale"])
    still = {sgm.VAE_PREFIX, sgm.TEXT_ENCODER1_PREFIX, sgm.TEXT_ENCODER2_PREFIX}
    originals = _read_originals(parts.facts["files"])
    return {
        key: _unrounded(tensor, originals.get(key)) if key.startswith(tuple(still)) else tensor
        for key, tensor in state.items()
    }


def _read_originals(source: Path) -> State:
    """The base model's tensors as its file has them; none where that is not there any more."""
    try:
        return read_weights(source, MODEL) if source.is_file() else {}
    except (OSError, ValueError):
        return {}


def _unrounded(tensor: Tensor, original: Tensor | None) -> Tensor:
    """The original where `tensor` is it, rounded to the dtype of training: what did not learn loses nothing."""
    if original is None or original.shape != tensor.shape or original.element_size() < 2:
        return tensor
    return original if torch.equal(original.to(tensor.dtype), tensor.cpu()) else tensor
