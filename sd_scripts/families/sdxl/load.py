"""SDXL as a file, a diffusers folder or a Hugging Face id: checked by name and header first, then loaded."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families.family import Components
from sd_scripts.families.loading import download
from sd_scripts.families.model_file import MODEL, describe, is_hub_id, locate
from sd_scripts.families.sdxl.folder import load_component, vae_folder
from sd_scripts.families.sdxl.single_file import (
    LOGIT_SCALE,
    Dtypes,
    Modules,
    check_file,
    load_file,
    load_vae_file,
)
from sd_scripts.families.sdxl.tokenizer import load_tokenizers
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.options.loss import NoiseOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.settings import Settings


def check(settings: Settings) -> list[str]:
    """Return problems of the model and the VAE that names and headers reveal; quick, nothing is loaded."""
    options = settings[ModelOptions]
    problems = []
    try:
        where = locate(options.pretrained_model_name_or_path, "an SDXL file")
        if isinstance(where, Path):
            _check_folder(where) if where.is_dir() else check_file(where, with_vae=not options.vae)
    except ValueError as error:
        problems.append(str(error))
    if options.vae and not Path(options.vae).exists() and not is_hub_id(options.vae):
        problems.append(f"vae: there is no file or folder '{options.vae}'")
    return problems


def load(
    settings: Settings,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    denoiser_dtype: torch.dtype | None = None,
    encoder_dtype: torch.dtype | None = None,
) -> Components:
    """Load the base model, frozen, in eval mode and in `dtype`, or its U-Net and text encoders in other dtypes; with
    no_half_vae the VAE is in float32.

    Raises ValueError, one sentence that names the option, if the model is missing, incomplete or not SDXL.
    """
    options = settings[ModelOptions]
    dtypes = Dtypes(
        unet=denoiser_dtype or dtype,
        text_encoders=encoder_dtype or dtype,
        vae=torch.float32 if options.no_half_vae else dtype,
    )
    mmap = not options.disable_mmap_load_safetensors
    where = locate(options.pretrained_model_name_or_path, "an SDXL file")
    source = where if isinstance(where, Path) else download(where)
    if source.is_dir():
        modules = _load_folder(source, dtypes, with_vae=not options.vae)
    else:
        modules = load_file(source, dtypes, with_vae=not options.vae, mmap=mmap)
    prepare_unet(modules.unet)
    vae = modules.vae or _load_vae(str(options.vae), dtypes.vae, mmap=mmap)
    encoders = [modules.text_encoder1, modules.text_encoder2]
    for module in (modules.unet, vae, *encoders):
        module.eval().requires_grad_(False).to(device)
    return Components(
        denoiser=modules.unet,
        vae=vae,
        text_encoders=encoders,
        tokenizers=load_tokenizers(source, options.tokenizer_cache_dir, [e.config.vocab_size for e in encoders]),
        source=where,
        extras={
            "logit_scale": modules.logit_scale,
            "marks": modules.marker_tensors,
            "files": source,
            "vae_files": Path(options.vae) if options.vae else source,
            "schedule": {
                "velocity": options.v_parameterization,
                "zero_terminal_snr": settings[NoiseOptions].zero_terminal_snr,
            },
            "clip_skip": options.clip_skip,
        },
    )


def load_vae(settings: Settings, dtype: torch.dtype) -> AutoencoderKL:
    """Load only the VAE, frozen, in `dtype` or, with no_half_vae, in float32.

    Raises ValueError, one sentence that names the option, if it is missing or incomplete.
    """
    options = settings[ModelOptions]
    where = options.vae
    if not where:
        model = locate(options.pretrained_model_name_or_path, "an SDXL file")
        where = str(model if isinstance(model, Path) else download(model))
    vae_dtype = torch.float32 if options.no_half_vae else dtype
    vae = _load_vae(where, vae_dtype, mmap=not options.disable_mmap_load_safetensors)
    return vae.eval().requires_grad_(False)


def _check_folder(folder: Path) -> None:
    found = describe(folder)
    if found.family != "sdxl":
        problem = found.problem or f"'{folder}' is not SDXL but a {found.variant}"
        raise ValueError(f"{MODEL}: {problem}")


def _load_folder(folder: Path, dtypes: Dtypes, *, with_vae: bool) -> Modules:
    _check_folder(folder)
    return Modules(
        unet=load_component(UNet2DConditionModel, folder / "unet", MODEL, dtypes.unet),
        vae=load_component(AutoencoderKL, folder / "vae", MODEL, dtypes.vae) if with_vae else None,
        text_encoder1=load_component(CLIPTextModel, folder / "text_encoder", MODEL, dtypes.text_encoders),
        text_encoder2=load_component(
            CLIPTextModelWithProjection, folder / "text_encoder_2", MODEL, dtypes.text_encoders
        ),
        logit_scale=torch.tensor(LOGIT_SCALE),
    )


def _load_vae(vae: str, dtype: torch.dtype, *, mmap: bool) -> AutoencoderKL:
    """Load the VAE of the option `vae`: a file, a diffusers folder (VAE or full model) or a Hugging Face id."""
    path = Path(vae)
    if path.is_file():
        return load_vae_file(path, dtype, mmap=mmap)
    if path.is_dir():
        return load_component(AutoencoderKL, vae_folder(path), "vae", dtype)
    try:
        return AutoencoderKL.from_pretrained(vae).to(dtype)
    except (OSError, ValueError) as error:
        raise ValueError(f"vae: '{vae}' cannot be loaded: {str(error).strip().splitlines()[0].rstrip('.')}") from None
