"""Save a trained SDXL model as other programs load it: a single file or a diffusers folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from sd_scripts.families.family import Components, ModelWeights
from sd_scripts.families.model_file import MODEL
from sd_scripts.families.sdxl import keys as sgm
from sd_scripts.families.sdxl.folder import read_component, vae_folder
from sd_scripts.families.sdxl.samplers import make_sampler
from sd_scripts.families.sdxl.single_file import with_vae_prefix
from sd_scripts.families.sdxl.tokenizer import FOLDERS
from sd_scripts.formats.atomic_files import atomic_file, atomic_folder
from sd_scripts.formats.disk import saving
from sd_scripts.formats.documents import read_json
from sd_scripts.library.model_reader import read_weights
from sd_scripts.library.safetensors_io import on_cpu, save_model, write_tensors
from sd_scripts.library.state_dicts import State

INDEX = "model_index.json"
COMPONENTS = {
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
}
"""Folder -> library and class, as diffusers' pipeline looks for them."""
OF_DIFFUSERS, OF_TRANSFORMERS = "diffusion_pytorch_model.safetensors", "model.safetensors"


def saved_form(components: Components, save_model_as: str | None) -> str:
    """As family.Family.saved_form. If unset, a folder stays a folder; a pickle is written only on request."""
    if save_model_as:
        return save_model_as.removesuffix("_safetensors")
    return "diffusers" if components.extras["files"].is_dir() else "safetensors"


def save(
    components: Components,
    weights: ModelWeights,
    path: Path,
    form: str,
    dtype: torch.dtype | None,
    metadata: dict[str, str],
) -> None:
    """As family.Family.save. A .ckpt and a folder hold no metadata."""
    states = _states(components, weights)
    if form == "diffusers":
        with saving(path), atomic_folder(path, INDEX) as folder:
            _write_folder(folder, components, states, dtype)
        return
    tensors = states.checkpoint(components)
    if form == "safetensors":
        save_model(path, tensors, metadata, dtype)
        return
    with saving(path), atomic_file(path) as part:  # clone: saving a view would write its whole storage
        torch.save({"state_dict": {key: on_cpu(tensor, dtype).clone() for key, tensor in tensors.items()}}, part)


@dataclass(frozen=True, kw_only=True)
class States:
    """State dicts of everything that is saved, under the modules' own names."""

    unet: State
    vae: State
    text_encoder1: State
    text_encoder2: State

    def checkpoint(self, components: Components) -> State:
        """Return the single-file keys and shapes, with the marker tensors of the base model."""
        encoders = (self.text_encoder1, self.text_encoder2)
        return (
            sgm.checkpoint(self.unet, self.vae, *encoders, components.extras["logit_scale"])
            | components.extras["marks"]
        )


def _states(components: Components, weights: ModelWeights) -> States:
    first, second = components.text_encoders
    unet, (trained1, trained2) = dict(weights.denoiser), weights.text_encoders or (None, None)
    original = _read_originals(components)
    return States(
        unet={**unet, **_with_original_precision(_frozen_tensors(unet), original.unet)},
        vae=_with_original_precision(components.vae.state_dict(), original.vae),
        text_encoder1=_on_cpu(trained1)
        if trained1
        else _with_original_precision(first.state_dict(), original.text_encoder1),
        text_encoder2=_on_cpu(trained2)
        if trained2
        else _with_original_precision(second.state_dict(), original.text_encoder2),
    )


def _frozen_tensors(unet: State) -> State:
    """Return the half-precision tensors of a U-Net trained in float32: blocks frozen by block_lr = 0."""
    wide = any(tensor.dtype == torch.float32 for tensor in unet.values())
    return {name: tensor for name, tensor in unet.items() if wide and tensor.dtype != torch.float32}


def _on_cpu(state: Mapping[str, Tensor]) -> State:
    """Move to the CPU: saving a text encoder builds new matrices, for which the device may have no room."""
    return {name: on_cpu(tensor) for name, tensor in state.items()}


def _with_original_precision(held: State, originals: State) -> State:
    """Restore frozen tensors to the precision of the base model's file, since training holds them rounded.

    An original that does not round to the held value belongs to another model and is ignored.
    """
    state = _on_cpu(held)
    for name, tensor in state.items():
        original = originals.get(name)
        if original is None or original.shape != tensor.shape or original.element_size() == 1:  # fp8 is never written
            continue
        if torch.equal(original.to(tensor.dtype), tensor):
            state[name] = original
    return state


def _read_originals(components: Components) -> States:
    """Read the tensors of the base model's and VAE's files; empty if the files are gone."""
    source, vae_source = components.extras["files"], components.extras["vae_files"]
    unet, first, second = (module.state_dict() for module in (components.denoiser, *components.text_encoders))
    vae = components.vae.state_dict()
    file = _read(source)
    return States(
        unet=sgm.read_unet(file, unet) or _read_component(source / "unet", unet),
        vae=sgm.read_vae(with_vae_prefix(_read(vae_source)), vae) or _read_component(vae_folder(vae_source), vae),
        text_encoder1=sgm.read_text_encoder1(file, first) or _read_component(source / "text_encoder", first),
        text_encoder2=sgm.read_text_encoder2(file, second) or _read_component(source / "text_encoder_2", second),
    )


def _read(file: Path) -> State:
    try:
        return read_weights(file, MODEL) if file.is_file() else {}
    except (OSError, ValueError):
        return {}


def _read_component(folder: Path, names: State) -> State:
    try:
        return read_component(folder, names, MODEL)
    except (OSError, ValueError):
        return {}


def _write_folder(folder: Path, components: Components, states: States, dtype: torch.dtype | None) -> None:
    """Write a complete diffusers pipeline. The first encoder's names get the prefix `text_model.`, which transformers 4
    needs and transformers 5 accepts."""
    first, second = components.text_encoders
    text_encoder1 = {sgm.text_encoder1_key(name): tensor for name, tensor in states.text_encoder1.items()}
    _write_component(folder / "unet" / OF_DIFFUSERS, components.denoiser, states.unet, dtype)
    _write_component(folder / "vae" / OF_DIFFUSERS, components.vae, states.vae, dtype)
    _write_component(folder / "text_encoder" / OF_TRANSFORMERS, first, text_encoder1, dtype)
    _write_component(folder / "text_encoder_2" / OF_TRANSFORMERS, second, states.text_encoder2, dtype)
    for name, tokenizer in zip(FOLDERS, components.tokenizers, strict=True):
        _write_tokenizer(folder / name, tokenizer)
    scheduler = _scheduler(components)
    (folder / "scheduler").mkdir()
    _write_json(folder / "scheduler/scheduler_config.json", scheduler)
    about = {"_class_name": "StableDiffusionXLPipeline", "_diffusers_version": diffusers.__version__}
    index_entries = COMPONENTS | {"scheduler": ["diffusers", scheduler["_class_name"]]}
    _write_json(folder / INDEX, {**about, "force_zeros_for_empty_prompt": True, **index_entries})


def _write_component(file: Path, module: Any, state: State, dtype: torch.dtype | None) -> None:
    file.parent.mkdir()
    write_tensors(file, state, {"format": "pt"}, dtype)
    saved = next(on_cpu(tensor[:0], dtype).dtype for tensor in state.values() if tensor.is_floating_point())
    if file.name == OF_DIFFUSERS:
        config = json.loads(module.to_json_string())
    else:
        config = module.config.to_dict() | {"architectures": [type(module).__name__], "dtype": str(saved)[6:]}
    config.pop("_name_or_path", None)  # a path on this machine
    _write_json(file.with_name("config.json"), config)


def _write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """transformers 4 reads vocab.json and merges.txt, which transformers 5 does not write."""
    try:
        tokenizer.save_pretrained(folder)
        tokenizer.backend_tokenizer.model.save(str(folder))
    except Exception as error:  # tokenizers raises plain Exception, even on a full disk
        raise OSError(str(error)) from error


def _scheduler(components: Components) -> dict[str, Any]:
    """Return the base model's scheduler, or Euler as SDXL was published with, set to the trained prediction type."""
    schedule = components.extras["schedule"]
    learned = json.loads(make_sampler("euler", **schedule).to_json_string())
    if not schedule["zero_terminal_snr"]:
        learned["timestep_spacing"] = "leading"
    try:
        own = dict(read_json(components.extras["files"] / "scheduler/scheduler_config.json"))
    except (ValueError, TypeError):
        return learned
    changed = ["prediction_type"] + ["rescale_betas_zero_snr", "timestep_spacing"] * schedule["zero_terminal_snr"]
    return own | {name: learned[name] for name in changed}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
