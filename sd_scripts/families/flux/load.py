"""FLUX.1 as files, a diffusers folder or a Hugging Face id: checked by name and header first, then loaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.components import DENOISER, VAE, Components, WeightSource
from sd_scripts.families.flux import lora
from sd_scripts.families.flux.files import (
    AE,
    CLIP_L,
    SPECS,
    T5XXL,
    TRANSFORMER,
    ComponentFile,
    ComponentSpec,
    becomes_fp8,
    is_fp8,
    open_component,
)
from sd_scripts.families.flux.memory import holds_in_fp8, holds_t5_in_fp8, quantize_t5
from sd_scripts.families.flux.model import FluxParams
from sd_scripts.families.flux.options import RECOMMENDED, FluxModelOptions
from sd_scripts.families.flux.tokenizer import load_tokenizers
from sd_scripts.families.loading import download, files_in
from sd_scripts.families.model_file import MODEL, describe, locate
from sd_scripts.library.block_swap import max_blocks_to_swap
from sd_scripts.library.model_reader import read_empty
from sd_scripts.networks.plan import AdaptedModule, plan_layers, read_args
from sd_scripts.options.flow import FlowOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.settings import Settings
from sd_scripts.options.spec import WrongValue

T5_LENGTHS = {"dev": 512, "schnell": 256}

ComponentFiles = dict[str, ComponentFile]
"""Option -> the component that it names."""


def check(settings: Settings) -> list[str]:
    """Return problems of the files and of options that the model limits; only headers are read."""
    try:
        where = locate(settings[ModelOptions].pretrained_model_name_or_path, "a FLUX.1 file")
    except ValueError as error:
        return [str(error)]
    component_files, problems = _open(settings[FluxModelOptions], where)
    if MODEL in component_files:
        problems += _limit_problems(component_files[MODEL].module.shape, settings)
        problems += _network_problems(component_files[MODEL], settings)
    return problems


def open_components(
    settings: Settings,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    denoiser_dtype: torch.dtype | None = None,
    encoder_dtype: torch.dtype | None = None,
) -> Components:
    """As family.Open. e4m3 weights stay so where the options hold weights in fp8. A transformer with swapped blocks is
    loaded to the CPU: it may not fit on the device."""
    options, flux = settings[ModelOptions], settings[FluxModelOptions]
    where = locate(options.pretrained_model_name_or_path, "a FLUX.1 file")
    source = where if isinstance(where, Path) else download(where)
    component_files, problems = _open(flux, source)
    if problems:
        raise ValueError(problems[0])

    sizes = [component_files[spec.option].module.config.vocab_size for spec in (CLIP_L, T5XXL)]
    tokenizers = load_tokenizers(source, options.tokenizer_cache_dir, sizes)
    mmap = not options.disable_mmap_load_safetensors
    text, swaps = encoder_dtype or dtype, settings[MemoryOptions].blocks_to_swap
    finish = partial(_finish_t5, dtype=text, in_fp8=holds_t5_in_fp8(settings))
    keep = is_fp8 if holds_in_fp8(settings) else None
    keep_t5 = becomes_fp8 if holds_t5_in_fp8(settings) else None

    def weights(spec: ComponentSpec, dtype: torch.dtype, **more: Any) -> WeightSource:
        return _weights(component_files[spec.option], dtype, mmap=mmap, **{"device": device, **more})

    shape: FluxParams = component_files[MODEL].module.shape
    variant = "dev" if shape.guidance else "schnell"
    return Components.opened(
        {
            VAE: weights(AE, dtype),
            "text_encoder1": weights(CLIP_L, text),
            "text_encoder2": weights(T5XXL, text, keep=keep_t5, finish=finish),
            DENOISER: weights(TRANSFORMER, denoiser_dtype or dtype, keep=keep, device="cpu" if swaps else device),
        },
        tokenizers=tokenizers,
        source=where,
        extras={
            "variant": variant,
            "guidance": shape.guidance,
            "t5_length": flux.t5xxl_max_token_length or T5_LENGTHS[variant],
            "apply_t5_attn_mask": flux.apply_t5_attn_mask,
        },
    )


def load_vae(settings: Settings, dtype: torch.dtype) -> Any:
    """Load only the autoencoder, frozen, in `dtype`.

    Raises ValueError, one sentence that names the option, if it is missing or incomplete.
    """
    options, given = settings[ModelOptions], settings[FluxModelOptions].ae
    if given:
        component_file = _open_file(AE, Path(given))
    else:
        where = locate(options.pretrained_model_name_or_path, "a FLUX.1 file")
        component_file = _open_own(AE, where if isinstance(where, Path) else download(where))
    return _weights(component_file, dtype, mmap=not options.disable_mmap_load_safetensors).load()


def remarks(components: Components, settings: Settings) -> list[str]:
    """Return warnings about settings for FLUX.1 dev that schnell ignores."""
    told = settings[FlowOptions].guidance_scale != FlowOptions.guidance_scale
    return (
        ["guidance_scale: has no effect on FLUX.1 schnell, which takes no guidance"]
        if told and not components.extras["guidance"]
        else []
    )


def _weights(
    file: ComponentFile,
    dtype: torch.dtype,
    *,
    mmap: bool,
    keep: Callable[[str, Tensor], bool] | None = None,
    **more: Any,
) -> WeightSource:
    read = partial(file.read, dtype, mmap=mmap, keep=keep)
    return WeightSource(empty=file.module, read=read, dtype=dtype, keep=keep, **more)


def _finish_t5(t5: Any, dtype: torch.dtype, *, in_fp8: bool) -> None:
    t5.encoder.embed_tokens.weight = t5.shared.weight
    if in_fp8:
        quantize_t5(t5, dtype)
    elif dtype == torch.float16:
        for block in t5.encoder.block:
            block.layer[1].DenseReluDense.wo.float()  # its output overflows in fp16


def _open(options: FluxModelOptions, where: Path | str) -> tuple[ComponentFiles, list[str]]:
    """Return the complete components and the problems of the others. Of a model that has yet to be downloaded, only
    components with files of their own are checked."""
    component_files: ComponentFiles = {}
    problems: list[str] = []
    for spec in SPECS:
        try:
            given = None if spec is TRANSFORMER else getattr(options, spec.option)
            if not given and (isinstance(where, str) or (problems and MODEL not in component_files)):
                continue  # a wrong model says nothing about its other components
            component_files[spec.option] = _open_file(spec, Path(given)) if given else _open_own(spec, Path(where))
        except WrongValue:
            continue  # its file was found to be wrong
        except ValueError as error:
            problems.append(str(error))
    return component_files, problems or _width_problems(component_files)


def _open_file(spec: ComponentSpec, path: Path) -> ComponentFile:
    """Open a component named by its own option: a file, its folder, or the folder of a complete model."""
    if not path.exists():
        raise ValueError(f"{spec.option}: there is no file or folder '{path}'")
    if path.is_file():
        return open_component(spec, spec.option, path, (path,))
    folder = path / spec.folder if (path / spec.folder).is_dir() else path
    return open_component(spec, spec.option, path, files_in(folder, spec.option))


def _open_own(spec: ComponentSpec, model: Path) -> ComponentFile:
    """Open a component of the base model: from its folder, or from a file that may hold all of them."""
    if model.is_file():
        if spec is not TRANSFORMER and spec.prefix(read_empty(model, MODEL)) is None:
            raise ValueError(f"{spec.option}: '{model}' contains no {spec.title}; set {spec.option} to its file")
        return open_component(spec, MODEL, model, (model,))
    whole = (model / "model_index.json").is_file()
    if whole and (found := describe(model)).family != "flux":
        problem = found.problem or f"'{model}' is not FLUX.1 but a {found.variant}"
        raise ValueError(f"{MODEL}: {problem}")
    if whole or (model / spec.folder).is_dir():
        return open_component(spec, MODEL, model, files_in(model / spec.folder, MODEL))
    if spec is TRANSFORMER:  # a folder of the transformer alone
        return open_component(spec, MODEL, model, files_in(model, MODEL))
    raise ValueError(f"{spec.option}: '{model}' contains no {spec.title}; set {spec.option} to its file")


def _width_problems(component_files: ComponentFiles) -> list[str]:
    """Return a problem for each component whose width is not what the transformer expects."""
    if MODEL not in component_files:
        return []
    shape: FluxParams = component_files[MODEL].module.shape
    wanted = {
        CLIP_L.option: ("hidden_size", shape.pooled_width, "vectors of {} values"),
        T5XXL.option: ("d_model", shape.text_width, "vectors of {} values"),
        AE.option: ("latent_channels", shape.channels // 4, "latents of {} channels"),
    }
    problems = []
    for option, (number, size, what) in wanted.items():
        if option in component_files and (given := getattr(component_files[option].module.config, number)) != size:
            problems.append(
                f"{option}: '{component_files[option].path}' produces {what.format(given)}, but the "
                f"transformer expects {size}; choose the {component_files[option].spec.title} of FLUX.1"
            )
    return problems


def _limit_problems(shape: FluxParams, settings: Settings) -> list[str]:
    problems = []
    swap, most = (
        settings[MemoryOptions].blocks_to_swap or 0,
        max_blocks_to_swap(shape.double_blocks, shape.single_blocks),
    )
    if swap > most:
        problems.append(
            f"blocks_to_swap: {swap} exceeds {most}, the most that a model with {shape.double_blocks} double and "
            f"{shape.single_blocks} single blocks can swap; " + (f"set {most} or less" if most else "leave it unset")
        )
    default, guidance = FlowOptions.guidance_scale, settings[FlowOptions].guidance_scale
    if not shape.guidance and guidance not in (
        default,
        RECOMMENDED["guidance_scale"],
    ):  # which settings for dev contain, too
        problems.append(
            f"guidance_scale: FLUX.1 schnell ignores guidance, so {guidance:g} has no meaning; leave it at its default "
            f"{default}"
        )
    return problems


def _network_problems(transformer: ComponentFile, settings: Settings) -> list[str]:
    """Return problems of a built-in LoRA: block numbers beyond the last one, or nothing left to train."""
    network = settings.get(NetworkOptions)
    if not network or not network.is_ours:
        return []
    try:
        args = read_args(settings, lora.TRANSFORMER, lambda _: None)
    except ValueError:
        return []  # reported by the network's own check
    try:
        args.rules.check(transformer.module)
        if network.network_train_unet_only and not network.dim_from_weights:
            plan_layers([AdaptedModule(module=transformer.module, target=lora.TRANSFORMER, lr=1.0)], args)
    except ValueError as error:
        return [str(error)]
    return []
