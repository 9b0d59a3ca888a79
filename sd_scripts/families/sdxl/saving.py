"""Save a trained SDXL model as other programs load it: a single file or a diffusers folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from sd_scripts.families.common.components import DENOISER, VAE
from sd_scripts.families.common.family import Components, ModelWeights
from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.load import LAYOUTS, MARKERS, single_file
from sd_scripts.formats.documents import read_json
from sd_scripts.library.files.lean_diffusers import ModelMixin
from sd_scripts.library.files.safetensors_io import on_cpu, write_tensors
from sd_scripts.library.files.state_dicts import State


def saved_form(components: Components, save_model_as: str | None) -> str:
    """As Saving.form. If unset, a folder stays a folder; a pickle is written only on request."""
    if save_model_as:
        return save_model_as.removesuffix("_safetensors")
    return "diffusers" if Path(components.source).is_dir() else "safetensors"


def checkpoint(components: Components, weights: ModelWeights) -> State:
    """Return the tensors of a single file, with marker tensors for the schedule that it was trained on."""
    extras = components.extras
    # programs choose how to sample by the keys alone; ComfyUI writes empty tensors too
    marks = {
        key: extras["marks"].get(key, torch.zeros(0)) for key, option in MARKERS.items() if extras["schedule"][option]
    }
    return single_file(_states(components, weights), extras["logit_scale"]) | marks


def write_folder(components: Components, weights: ModelWeights, folder: Path, dtype: torch.dtype | None) -> None:
    """Write a complete diffusers pipeline."""
    scheduler = _scheduler(components)
    index: dict[str, Any] = {
        "_class_name": "StableDiffusionXLPipeline",
        "_diffusers_version": diffusers.__version__,
        "force_zeros_for_empty_prompt": True,
        "scheduler": ["diffusers", scheduler["_class_name"]],
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
    }
    tokenizers = iter(components.tokenizers)
    states = _states(components, weights)
    for component in CARD.files.components:
        name = component.name
        library = str(LAYOUTS[component.name].library)
        state = states[name]
        index[component.folder] = library.split(".")
        if name == "text_encoder1":  # transformers 4 needs the prefix, transformers 5 accepts it
            state = {f"text_model.{key}": tensor for key, tensor in state.items()}
        _write_component(folder / component.folder, components.module(name), state, dtype)
        if component.tokenizer_folder != component.folder:
            index[component.tokenizer_folder] = ["transformers", "CLIPTokenizer"]
            _write_tokenizer(folder / component.tokenizer_folder, next(tokenizers))
    (folder / "scheduler").mkdir()
    _write_json(folder / "scheduler/scheduler_config.json", scheduler)
    _write_json(folder / "model_index.json", index)


def _states(components: Components, weights: ModelWeights) -> dict[str, State]:
    """Return the saved tensors of each component, under the module's own names."""
    trained = dict(zip(components.encoder_names, weights.text_encoders, strict=False))
    states = {DENOISER: dict(weights.denoiser)}
    if frozen := _frozen_tensors(states[DENOISER]):
        states[DENOISER] |= _with_original_precision(components, DENOISER, frozen)
    for name in (*components.encoder_names, VAE):
        learned = trained.get(name)
        held = components.module(name).state_dict()
        states[name] = _on_cpu(learned) if learned else _with_original_precision(components, name, held)
    return states


def _frozen_tensors(unet: State) -> State:
    """Return the half-precision tensors of a U-Net trained in float32: blocks frozen by block_lr = 0."""
    wide = any(tensor.dtype == torch.float32 for tensor in unet.values())
    return {name: tensor for name, tensor in unet.items() if wide and tensor.dtype != torch.float32}


def _on_cpu(state: Mapping[str, Tensor]) -> State:
    """Move to the CPU: saving a text encoder builds new matrices, for which the device may have no room."""
    return {name: on_cpu(tensor) for name, tensor in state.items()}


def _with_original_precision(components: Components, name: str, held: State) -> State:
    """Restore frozen tensors to the precision of the base model's file, since training keeps them rounded.

    An original that does not round to the stored value belongs to a different model and is ignored.
    """
    state = _on_cpu(held)
    originals = _originals(components, name)
    for key, tensor in state.items():
        original = originals.get(key)
        if original is None or original.shape != tensor.shape or original.element_size() == 1:  # fp8 is never written
            continue
        if torch.equal(original.to(tensor.dtype), tensor):
            state[key] = original
    return state


def _originals(components: Components, name: str) -> State:
    """Read the tensors of a component's file; none if it is gone."""
    try:
        return components.sources[name].read(torch.float32, lambda key, tensor: True)
    except (KeyError, OSError, ValueError):
        return {}


def _write_component(folder: Path, module: Any, state: State, dtype: torch.dtype | None) -> None:
    folder.mkdir()
    of_diffusers = isinstance(module, ModelMixin)
    file = "diffusion_pytorch_model.safetensors" if of_diffusers else "model.safetensors"
    write_tensors(folder / file, state, {"format": "pt"}, dtype)
    if of_diffusers:
        config = json.loads(module.to_json_string())
    else:
        saved = next(on_cpu(tensor[:0], dtype).dtype for tensor in state.values() if tensor.is_floating_point())
        config = module.config.to_dict() | {"architectures": [type(module).__name__], "dtype": str(saved)[6:]}
    config.pop("_name_or_path", None)  # a path on this machine
    _write_json(folder / "config.json", config)


def _write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """transformers 4 reads vocab.json and merges.txt, which transformers 5 does not write."""
    try:
        tokenizer.save_pretrained(folder)
        tokenizer.backend_tokenizer.model.save(str(folder))
    except Exception as error:  # tokenizers raises plain Exception, even on a full disk
        raise OSError(str(error)) from error


def _scheduler(components: Components) -> dict[str, Any]:
    """Return the base model's scheduler, or Euler as SDXL was published with, set to the trained objective."""
    from sd_scripts.families.sdxl.samplers import make_sampler  # which imports SciPy

    schedule = components.extras["schedule"]
    trained = json.loads(make_sampler("euler", **schedule).to_json_string())
    if not schedule["zero_terminal_snr"]:
        trained["timestep_spacing"] = "leading"
    try:
        config = dict(read_json(Path(components.source) / "scheduler/scheduler_config.json"))
    except (ValueError, TypeError):
        return trained
    changed = ["prediction_type"]
    if schedule["zero_terminal_snr"]:
        changed += ["rescale_betas_zero_snr", "timestep_spacing"]
    elif config.get("rescale_betas_zero_snr"):
        changed += ["rescale_betas_zero_snr"]
    return config | {name: trained[name] for name in changed}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
