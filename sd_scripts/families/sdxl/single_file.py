"""SDXL modules from one checkpoint file: built on the meta device from its shapes, then filled."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families import loading
from sd_scripts.families.components import DENOISER, VAE, WeightSource
from sd_scripts.families.loading import Made, make_empty, shapes_of, some
from sd_scripts.families.model_file import MODEL, Header, recognise
from sd_scripts.families.sdxl import keys as sgm
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.library.model_reader import read_empty, read_shapes, read_weights

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
    """The modules of an SDXL model, on the meta device."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL | None
    """None where another VAE replaces it."""
    text_encoder1: CLIPTextModel
    text_encoder2: CLIPTextModelWithProjection

    def checkpoint(self, logit_scale: Tensor) -> dict[str, Tensor]:
        """Return the tensors in the single-file layout."""
        vae = self.vae.state_dict() if self.vae else {}
        encoders = (self.text_encoder1.state_dict(), self.text_encoder2.state_dict())
        return sgm.checkpoint(self.unet.state_dict(), vae, *encoders, logit_scale)


def open_file(
    path: Path, dtypes: Dtypes, device: torch.device | str, *, with_vae: bool, mmap: bool
) -> dict[str, WeightSource]:
    """Check a checkpoint and return its components. Raises ValueError in one sentence if it is not a complete SDXL
    checkpoint."""
    shapes = read_shapes(path, MODEL)
    modules = _empty_modules(shapes, path, with_vae=with_vae)
    require_matching_shapes(shapes, modules.checkpoint(torch.empty(())), MODEL, path)

    def source(
        empty: nn.Module, prefix: str, take: Callable[[sgm.State, Iterable[str]], sgm.State], dtype: torch.dtype
    ) -> WeightSource:
        def read() -> sgm.State:
            return take(read_weights(path, MODEL, mmap=mmap, prefix=prefix), empty.state_dict())

        return WeightSource(empty=empty, read=read, dtype=dtype, device=device)

    encoder1, encoder2, text = modules.text_encoder1, modules.text_encoder2, dtypes.text_encoders
    sources = {
        "text_encoder1": source(encoder1, sgm.TEXT_ENCODER1_PREFIX, sgm.read_text_encoder1, text),
        "text_encoder2": source(encoder2, sgm.TEXT_ENCODER2_PREFIX, sgm.read_text_encoder2, text),
        DENOISER: source(prepare_unet(modules.unet), sgm.UNET_PREFIX, sgm.read_unet, dtypes.unet),
    }
    return {VAE: source(modules.vae, sgm.VAE_PREFIX, sgm.read_vae, dtypes.vae), **sources} if modules.vae else sources


def read_extras(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds beside its components and saving must write unchanged."""
    file = read_weights(path, MODEL, prefix=(sgm.LOGIT_SCALE, *MARKER_KEYS))
    return {
        "logit_scale": file.get(sgm.LOGIT_SCALE, torch.tensor(LOGIT_SCALE)).clone(),
        "marks": {key: file[key].clone() for key in MARKER_KEYS if key in file},
    }


def check_file(path: Path, *, with_vae: bool) -> None:
    """Check as load_file does, reading only the header of a .safetensors file and nothing of a .ckpt."""
    if path.suffix == ".safetensors":
        shapes = read_shapes(path, MODEL)
        require_matching_shapes(
            shapes, _empty_modules(shapes, path, with_vae=with_vae).checkpoint(torch.empty(())), MODEL, path
        )


def open_vae_file(path: Path, dtype: torch.dtype, device: torch.device | str, *, mmap: bool) -> WeightSource:
    """A standalone VAE file: with a checkpoint's keys, the same without prefix, or diffusers' keys."""
    shapes = shapes_of(with_vae_prefix(read_empty(path, VAE)))
    vae = _empty_vae(shapes, VAE, path)
    levels = len(vae.config["block_out_channels"])
    expected = {sgm.VAE_PREFIX + sgm.vae_key(name, levels): tensor for name, tensor in vae.state_dict().items()}
    require_matching_shapes(shapes, expected, VAE, path)

    def read() -> sgm.State:
        return sgm.read_vae(with_vae_prefix(read_weights(path, VAE, mmap=mmap)), vae.state_dict())

    return WeightSource(empty=vae, read=read, dtype=dtype, device=device)


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
