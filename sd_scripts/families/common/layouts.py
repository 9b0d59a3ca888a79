"""How components are made and filled from the tensors of files: what families state, and layouts that they share."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.common.encoders.outlines import CLIPTextOutline
from sd_scripts.library.files import ldm_layout
from sd_scripts.library.files.lean_diffusers import AutoencoderKL
from sd_scripts.library.files.state_dicts import Shapes, State
from sd_scripts.library.text.tokenizers import TokenizerKind


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a component is made and filled. Keys are the files' keys, without prefix."""

    make: Callable[[Shapes], nn.Module]
    """Shapes by key -> the module. Raises KeyError with the missing key, or ValueError."""
    outline: Callable[[Shapes], nn.Module] | None = None
    """The same for a module that has only the names, shapes and classes; None: `make` makes it."""
    unify: Callable[[State], State] = lambda file: file
    """Tensors in any layout that files have -> the same in the one that the other functions expect."""
    read: Callable[[State, Iterable[str]], State] = lambda file, names: file
    """Tensors by key, the module's names -> the tensors by name."""
    write: Callable[[State], State] = lambda state: state
    """The module's state dict -> the tensors of a complete file, by key."""
    finish: Callable[[Any], object] | None = None
    """Called with the loaded module."""
    library: str | None = None
    """Class of diffusers or transformers that reads the config.json of its folder, "transformers.CLIPTextModel"; None:
    shapes determine everything."""
    tokenizer: TokenizerKind | None = None
    """Of a text encoder."""
    quantizable: re.Pattern[str] | None = None
    """Names of the weights that can be quantized, all of Linears; None: none of them."""


def whole_file(card: FamilyCard, layouts: Mapping[str, Layout], states: Mapping[str, State]) -> State:
    """Return the tensors of a file that contains these components, given as state dicts by component."""
    return {
        component.prefixes[-1] + key: tensor
        for component in card.files.components
        for key, tensor in layouts[component.name].write(states[component.name]).items()
    }


CLIP_LINEAR = re.compile(r"(text_model\.)?encoder\.layers\..*\.weight")
"""Names of the weights of CLIP's text encoder that can be quantized."""


def make_text_encoder(name: str, config: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a text encoder of transformers by the names of its class and its configuration's, without drawing weights:
    to be called under accelerate's init_empty_weights."""
    transformers = importlib.import_module("transformers")  # its model classes take longer than PyTorch
    no_init_weights = importlib.import_module("transformers.initialization").no_init_weights
    with no_init_weights():
        return getattr(transformers, name)(getattr(transformers, config)(**arguments))  # type: ignore[no-any-return]


def _without_projection(file: State) -> State:
    return {key: tensor for key, tensor in file.items() if not key.startswith("text_projection.")}  # not read here


def clip_l(**more: Any) -> Layout:
    """CLIP-L under the names that transformers 5 gives it."""
    return Layout(
        make=lambda shapes: make_text_encoder("CLIPTextModel", "CLIPTextConfig", ldm_layout.clip_config(shapes)),
        outline=lambda shapes: CLIPTextOutline(**ldm_layout.clip_config(shapes)),
        unify=_without_projection,
        **more,
    )


def autoencoder(config: dict[str, Any], **more: Any) -> Layout:
    """diffusers' AutoencoderKL in the layout of latent diffusion; `config` has what shapes do not determine."""
    return Layout(
        make=lambda shapes: AutoencoderKL(**ldm_layout.vae_config(shapes), **config),
        unify=lambda file: ldm_layout.vae_from_diffusers(file) if _of_diffusers(file) else file,
        read=ldm_layout.read_vae,
        write=ldm_layout.vae_from_diffusers,
        **more,
    )


def _of_diffusers(file: State) -> bool:
    return any("_blocks.0.resnets." in key for key in file)


_SCALE = re.compile(r"(.+\.)(scale_weight|weight_scale)")
_BESIDE = re.compile(r"(^|\.)(scale_weight|weight_scale|scale_input|input_scale|scaled_fp8|comfy_quant)$")


def apply_scales(file: State, dtype: torch.dtype, keep: Callable[[str, Tensor], bool] | None = None) -> State:
    """Multiply the scales that fp8 files store next to weights into the weights, which get `dtype`.

    The scale of `a.weight` is `a.scale_weight` or `a.weight_scale`: one number, or one for each row. Raises ValueError
    if it is anything else. An e4m3 weight for which `keep(key, tensor)` is true keeps its values, and its scale as
    `a.weight_scale`. Tensors are taken out of `file`.
    """
    scales = {f"{found[1]}weight": tensor for key, tensor in file.items() if (found := _SCALE.fullmatch(key))}
    if not scales:
        return file
    ready: State = {}
    for key in list(file):
        tensor = file.pop(key)
        if _BESIDE.search(key):
            continue
        ready[key] = tensor
        if key not in scales:
            continue
        if scales[key].numel() not in (1, len(tensor)):
            raise ValueError(f"the scales of '{key}' are neither one nor one for each row; take the bf16 or fp16 file")
        if keep and tensor.dtype == torch.float8_e4m3fn and keep(key, tensor):
            ready[f"{key}_scale"] = scales[key]
        else:
            rows = scales[key].float().view(-1, *[1] * (tensor.ndim - 1))
            ready[key] = (tensor.float() * rows).to(dtype)
    return ready
