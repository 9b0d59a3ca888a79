"""SDXL as a file, a diffusers folder or a Hugging Face id: checked by name and header first, then loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from sd_scripts.families.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.loading import download
from sd_scripts.families.model_file import MODEL, describe, is_hub_id, locate
from sd_scripts.families.sdxl.folder import open_component, vae_folder
from sd_scripts.families.sdxl.single_file import LOGIT_SCALE, Dtypes, check_file, open_file, open_vae_file, read_extras
from sd_scripts.families.sdxl.tokenizer import load_tokenizers
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.library.state_dicts import State
from sd_scripts.options.loss import NoiseOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.settings import Settings

ENCODERS = ("text_encoder1", "text_encoder2")
NO_EXTRAS: dict[str, Any] = {"logit_scale": torch.tensor(LOGIT_SCALE), "marks": {}}
"""What a folder holds beside the components."""


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


def open_components(
    settings: Settings,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    denoiser_dtype: torch.dtype | None = None,
    encoder_dtype: torch.dtype | None = None,
) -> Components:
    """As family.Open; with no_half_vae the VAE is in float32."""
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
        sources, extras = _open_folder(source, dtypes, device, with_vae=not options.vae), NO_EXTRAS
    else:
        sources = open_file(source, dtypes, device, with_vae=not options.vae, mmap=mmap)
        extras = read_extras(source)
    if options.vae:
        sources[VAE] = _open_vae(options.vae, dtypes.vae, device, mmap=mmap)
    encoders: list[Any] = [sources[name].empty for name in ENCODERS]
    return Components.opened(
        sources,
        tokenizers=load_tokenizers(source, options.tokenizer_cache_dir, [each.config.vocab_size for each in encoders]),
        source=where,
        extras={
            **extras,
            "files": source,
            "vae_files": Path(options.vae) if options.vae else source,
            "schedule": {
                "velocity": options.v_parameterization,
                "zero_terminal_snr": settings[NoiseOptions].zero_terminal_snr,
            },
            "clip_skip": options.clip_skip,
        },
    )


def load_vae(settings: Settings, dtype: torch.dtype) -> nn.Module:
    """Load only the VAE, frozen, in `dtype` or, with no_half_vae, in float32.

    Raises ValueError, one sentence that names the option, if it is missing or incomplete.
    """
    options = settings[ModelOptions]
    where = options.vae
    if not where:
        model = locate(options.pretrained_model_name_or_path, "an SDXL file")
        where = str(model if isinstance(model, Path) else download(model))
    vae_dtype = torch.float32 if options.no_half_vae else dtype
    return _open_vae(where, vae_dtype, "cpu", mmap=not options.disable_mmap_load_safetensors).load()


def _check_folder(folder: Path) -> None:
    found = describe(folder)
    if found.family != "sdxl":
        problem = found.problem or f"'{folder}' is not SDXL but a {found.variant}"
        raise ValueError(f"{MODEL}: {problem}")


def _open_folder(
    folder: Path, dtypes: Dtypes, device: torch.device | str, *, with_vae: bool
) -> dict[str, WeightSource]:
    _check_folder(folder)
    kinds: dict[str, tuple[Any, str, torch.dtype]] = {
        VAE: (AutoencoderKL, "vae", dtypes.vae),
        "text_encoder1": (CLIPTextModel, "text_encoder", dtypes.text_encoders),
        "text_encoder2": (CLIPTextModelWithProjection, "text_encoder_2", dtypes.text_encoders),
        DENOISER: (UNet2DConditionModel, "unet", dtypes.unet),
    }
    sources = {
        name: open_component(kind, folder / part, MODEL, dtype, device)
        for name, (kind, part, dtype) in kinds.items()
        if with_vae or name != VAE
    }
    prepare_unet(sources[DENOISER].empty)
    return sources


def _open_vae(vae: str, dtype: torch.dtype, device: torch.device | str, *, mmap: bool) -> WeightSource:
    """The VAE of the option `vae`: a file, a diffusers folder (VAE or full model) or a Hugging Face id."""
    path = Path(vae)
    if path.is_file():
        return open_vae_file(path, dtype, device, mmap=mmap)
    if path.is_dir():
        return open_component(AutoencoderKL, vae_folder(path), VAE, dtype, device)
    with _told_as_not_loaded(vae), init_empty_weights():
        empty = AutoencoderKL.from_config(AutoencoderKL.load_config(vae))

    def read() -> State:
        with _told_as_not_loaded(vae):
            return AutoencoderKL.from_pretrained(vae).state_dict()

    return WeightSource(empty=empty, read=read, dtype=dtype, device=device)


@contextmanager
def _told_as_not_loaded(vae: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"vae: '{vae}' cannot be loaded: {str(error).strip().splitlines()[0].rstrip('.')}") from None
