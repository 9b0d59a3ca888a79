"""SDXL modules from one checkpoint file: built on the meta device from its shapes, then filled."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families import loading
from sd_scripts.families.loading import Made, fill, make_empty, shapes_of, some
from sd_scripts.families.model_file import MODEL, Header, recognise
from sd_scripts.library import sdxl_model_util as sgm
from sd_scripts.library.model_reader import read_shapes, read_weights

VAE = "vae"
LOGIT_SCALE = 4.6055
"""OpenCLIP bigG's value, for files saved without it."""
MARKER_KEYS = ("v_pred", "ztsnr")
PREFIXES = (sgm.UNET_PREFIX, sgm.TEXT_ENCODER1_PREFIX, sgm.TEXT_ENCODER2_PREFIX, sgm.VAE_PREFIX)

ADVICE = {"LoRA": "; to continue training a LoRA, set network_weights", "VAE": "; set the option vae to a VAE file"}
"""Last word of a wrong file's description -> what to do with it."""


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """The dtype in which each component is loaded."""

    unet: torch.dtype
    text_encoders: torch.dtype
    vae: torch.dtype


@dataclass(kw_only=True)
class Modules:
    """The modules of an SDXL model."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL | None
    """None where another VAE replaces it."""
    text_encoder1: CLIPTextModel
    text_encoder2: CLIPTextModelWithProjection
    logit_scale: Tensor
    marker_tensors: dict[str, Tensor] = field(default_factory=dict)
    """Empty tensors whose keys tell programs what the model predicts."""

    def checkpoint(self) -> dict[str, Tensor]:
        """Return the tensors in the single-file layout."""
        vae = self.vae.state_dict() if self.vae else {}
        encoders = (self.text_encoder1.state_dict(), self.text_encoder2.state_dict())
        return sgm.checkpoint(self.unet.state_dict(), vae, *encoders, self.logit_scale)


def load_file(path: Path, dtypes: Dtypes, *, with_vae: bool, mmap: bool) -> Modules:
    """Load a checkpoint. Raises ValueError in one sentence if it is not a complete SDXL checkpoint."""
    file = read_weights(path, MODEL, mmap=mmap)
    modules = _empty_modules(shapes_of(file), path, with_vae=with_vae)
    require_matching_shapes(shapes_of(file), modules.checkpoint(), MODEL, path)
    fill(modules.unet, sgm.read_unet(file, modules.unet.state_dict()), dtypes.unet)
    fill(modules.text_encoder1, sgm.read_text_encoder1(file, modules.text_encoder1.state_dict()), dtypes.text_encoders)
    fill(modules.text_encoder2, sgm.read_text_encoder2(file, modules.text_encoder2.state_dict()), dtypes.text_encoders)
    if modules.vae:
        fill(modules.vae, sgm.read_vae(file, modules.vae.state_dict()), dtypes.vae)
    modules.logit_scale = file.get(sgm.LOGIT_SCALE, modules.logit_scale)
    modules.marker_tensors = {key: file[key] for key in MARKER_KEYS if key in file}
    return modules


def check_file(path: Path, *, with_vae: bool) -> None:
    """Check as load_file does, reading only the header of a .safetensors file and nothing of a .ckpt."""
    if path.suffix == ".safetensors":
        shapes = read_shapes(path, MODEL)
        require_matching_shapes(shapes, _empty_modules(shapes, path, with_vae=with_vae).checkpoint(), MODEL, path)


def load_vae_file(path: Path, dtype: torch.dtype, *, mmap: bool) -> AutoencoderKL:
    """Load a standalone VAE file: with a checkpoint's keys, the same without prefix, or diffusers' keys."""
    file = with_vae_prefix(read_weights(path, VAE, mmap=mmap))
    vae = _empty_vae(shapes_of(file), VAE, path)
    levels = len(vae.config["block_out_channels"])
    expected = {sgm.VAE_PREFIX + sgm.vae_key(name, levels): tensor for name, tensor in vae.state_dict().items()}
    require_matching_shapes(shapes_of(file), expected, VAE, path)
    return fill(vae, sgm.read_vae(file, vae.state_dict()), dtype)


def require_matching_shapes(shapes: sgm.Shapes, expected: dict[str, Tensor], option: str, path: Path) -> None:
    """As loading.require_matching_shapes; outside the expected components a file may contain anything."""
    parts = [prefix for prefix in PREFIXES if any(key.startswith(prefix) for key in expected)]
    loading.require_matching_shapes(shapes, expected, option, path, "SDXL model", parts)


def _empty_modules(shapes: sgm.Shapes, path: Path, *, with_vae: bool) -> Modules:
    _require_sdxl(shapes, path)
    if with_vae and not any(key.startswith(sgm.VAE_PREFIX) for key in shapes):
        raise ValueError(f"vae: '{path}' contains no VAE; set vae to an SDXL VAE file")

    def made(make: Callable[[], Made]) -> Made:
        return make_empty(make, MODEL, path)

    return Modules(
        unet=made(lambda: UNet2DConditionModel(**sgm.unet_config(shapes))),
        vae=_empty_vae(shapes, MODEL, path) if with_vae else None,
        text_encoder1=made(lambda: CLIPTextModel(CLIPTextConfig(**sgm.text_encoder1_config(shapes)))),
        text_encoder2=made(lambda: CLIPTextModelWithProjection(CLIPTextConfig(**sgm.text_encoder2_config(shapes)))),
        logit_scale=torch.tensor(LOGIT_SCALE),
    )


def _empty_vae(shapes: sgm.Shapes, option: str, path: Path) -> AutoencoderKL:
    return make_empty(lambda: AutoencoderKL(**sgm.vae_config(shapes)), option, path)


def _require_sdxl(shapes: sgm.Shapes, path: Path) -> None:
    if all(any(key.startswith(prefix) for key in shapes) for prefix in PREFIXES[:3]):
        return
    _, what = recognise(Header(metadata={}, shapes=dict(shapes), dtypes={}))
    what = what or f"something with keys such as {some(shapes)}"
    raise ValueError(f"{MODEL}: '{path}' is not an SDXL checkpoint but {what}{ADVICE.get(what.split()[-1], '')}")


def with_vae_prefix(file: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a VAE file's tensors under the keys of a full checkpoint."""
    if any(key.startswith(sgm.VAE_PREFIX) for key in file):
        return file
    if any("_blocks.0.resnets." in key for key in file):
        file = sgm.vae_from_diffusers(file)
    return {sgm.VAE_PREFIX + key: tensor for key, tensor in file.items()}
