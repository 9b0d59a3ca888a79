"""FLUX.1's four components from files of any layout: built on the meta device from their headers, then filled."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel
from transformers.initialization import no_init_weights

from sd_scripts.families.flux import keys as flux
from sd_scripts.families.flux.card import TRANSFORMERS
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.loading import make_empty, require_matching_shapes, shapes_of, some
from sd_scripts.families.model_file import MODEL, Header, recognise
from sd_scripts.library import fp8
from sd_scripts.library.model_reader import read_empty, read_weights
from sd_scripts.library.state_dicts import State

LINEAR = re.compile(r"(double_blocks|single_blocks|encoder\.block)\.(?!.*relative_attention_bias).*\.weight")
"""Names of weights that can be held in fp8. T5's relative bias is a lookup table, not a matrix product."""


@dataclass(frozen=True, kw_only=True)
class ComponentSpec:
    """One of the four components and how to recognize its files."""

    option: str
    """The option that names its file."""
    title: str
    folder: str
    """Its subfolder in a diffusers folder."""
    prefixes: tuple[str, ...]
    """Key prefixes, in a file of its own and in one that holds all components."""
    signature_keys: tuple[str, ...]
    """Keys that identify it: each layout has one of them."""
    prepare: Callable[[State], tuple[Any, State]]
    """Tensors under the file's keys, without prefix -> the module, and the tensors under its names.
    Raises KeyError with the missing key, or ValueError."""

    def prefix(self, state: State) -> str | None:
        """Return the prefix of this component's keys in a file, or None if the file does not contain it."""
        return next((p for p in self.prefixes if any(p + mark in state for mark in self.signature_keys)), None)


@dataclass(frozen=True, kw_only=True)
class ComponentFile:
    """A component before it is loaded, complete as far as headers show."""

    spec: ComponentSpec
    option: str
    path: Path
    """As the user gave it."""
    files: tuple[Path, ...]
    module: Any
    """On the meta device."""

    def read(self, dtype: torch.dtype, *, mmap: bool, keep: Callable[[str, Tensor], bool] | None = None) -> State:
        """Return its tensors under the module's names; scales are multiplied out in `dtype` unless `keep` is true."""
        state: State = {}
        for file in self.files:
            state |= read_weights(file, self.option, mmap=mmap)
        return _prepared(self.spec, state, dtype, keep)[1]


def open_component(spec: ComponentSpec, option: str, path: Path, files: tuple[Path, ...]) -> ComponentFile:
    """Check the headers of a component's files. Raises ValueError, one sentence that names `option`, unless they hold a
    complete component."""
    empty: State = {}
    for file in files:
        empty |= read_empty(file, option)
    if spec.prefix(empty) is None:
        raise ValueError(f"{option}: '{path}' is not a {spec.title} but {_what_else(spec, empty)}")
    if spec is TRANSFORMER:
        _require_flux(empty, path)
    module, named = make_empty(lambda: _prepared(spec, empty, torch.float32), option, path)
    expected = module.state_dict()
    if packed := [name for name, tensor in named.items() if name in expected and not tensor.is_floating_point()]:
        raise ValueError(
            f"{option}: '{path}' contains packed integers instead of weights, such as {some(packed[:1])}; "
            "choose the bf16, fp16 or fp8 file"
        )
    require_matching_shapes(shapes_of(named), expected, option, path, spec.title)
    return ComponentFile(spec=spec, option=option, path=path, files=files, module=module)


def _prepared(
    spec: ComponentSpec, state: State, dtype: torch.dtype, keep: Callable[[str, Tensor], bool] | None = None
) -> tuple[Any, State]:
    """Build the module and its tensors. Scales are multiplied into the weights, except where `keep` is true of a weight
    in e4m3. In diffusers' layout all are, because q, k and v become one weight."""
    prefix = spec.prefix(state) or ""
    own = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
    apart = TRANSFORMERS[1] in own

    def stays(name: str, tensor: Tensor) -> bool:
        return bool(keep) and not apart and is_fp8(name, tensor)

    with init_empty_weights(), no_init_weights():  # drawing for tensors without storage takes a second
        return spec.prepare(flux.apply_scales(own, dtype, stays))


def _transformer(state: State) -> tuple[FluxTransformer, State]:
    if TRANSFORMERS[1] in state:
        state = flux.from_diffusers(state)
    return FluxTransformer(FluxParams.of(shapes_of(state))), state


def _clip(state: State) -> tuple[CLIPTextModel, State]:
    state = {key: tensor for key, tensor in state.items() if not key.startswith("text_projection.")}  # not read here
    return CLIPTextModel(CLIPTextConfig(**flux.clip_config(shapes_of(state)))), state


def _t5(state: State) -> tuple[T5EncoderModel, State]:
    """The token embeddings have either name or both; a decoder is ignored."""
    words = state.get("shared.weight", state.get("encoder.embed_tokens.weight"))
    state = {key: tensor for key, tensor in state.items() if key.startswith("encoder.")}
    if words is not None:
        state["shared.weight"] = state["encoder.embed_tokens.weight"] = words
    return T5EncoderModel(T5Config(**flux.t5_config(shapes_of(state)))), state


def _autoencoder(state: State) -> tuple[AutoencoderKL, State]:
    if any("_blocks.0.resnets." in key for key in state):
        state = flux.ae_to_bfl(state)
    vae = AutoencoderKL(**flux.ae_config(shapes_of(state)))
    return vae, flux.ae_from_bfl(state, vae.state_dict())


TRANSFORMER = ComponentSpec(
    option=MODEL,
    title="FLUX.1 transformer",
    folder="transformer",
    prefixes=("", "model.diffusion_model."),
    signature_keys=TRANSFORMERS,
    prepare=_transformer,
)
CLIP_L = ComponentSpec(
    option="clip_l",
    title="CLIP text encoder",
    folder="text_encoder",
    prefixes=("text_model.", "", "text_encoders.clip_l.transformer.text_model."),
    signature_keys=("encoder.layers.0.self_attn.q_proj.weight",),
    prepare=_clip,
)
T5XXL = ComponentSpec(
    option="t5xxl",
    title="T5 text encoder",
    folder="text_encoder_2",
    prefixes=("", "text_encoders.t5xxl.transformer."),
    signature_keys=("encoder.block.0.layer.0.SelfAttention.q.weight",),
    prepare=_t5,
)
AE = ComponentSpec(
    option="ae",
    title="autoencoder",
    folder="vae",
    prefixes=("", "vae."),
    signature_keys=("decoder.conv_in.weight",),
    prepare=_autoencoder,
)
SPECS = (TRANSFORMER, CLIP_L, T5XXL, AE)


def _require_flux(state: State, path: Path) -> None:
    """Raise ValueError for other models of the same architecture, which are recognized by their keys."""
    family, what = recognise(Header(metadata={}, shapes=shapes_of(state), dtypes={}))
    if family != "flux":
        raise ValueError(f"{MODEL}: '{path}' is {what}, which cannot be trained here; choose FLUX.1 dev or schnell")


def _what_else(spec: ComponentSpec, state: State) -> str:
    """Describe a file that is not this component, and what to do with it."""
    family, what = recognise(Header(metadata={}, shapes=shapes_of(state), dtypes={}))
    if what.endswith("LoRA"):
        return f"{what}; to continue training a LoRA, set network_weights"
    for other in SPECS:
        if other is not spec and other.prefix(state) in other.prefixes[:2]:
            return f"{what or other.title}; set {other.option} to it instead"
    if spec is TRANSFORMER and family == "sdxl":
        return f"{what}; train SDXL with sdxl_train_network.py"
    return what or (f"something with keys such as {some(state)}" if state else "empty")


def is_fp8(name: str, tensor: Tensor) -> bool:
    """Return whether a Linear's weight is already e4m3 and can stay so."""
    return tensor.dtype == torch.float8_e4m3fn and becomes_fp8(name, tensor)


def becomes_fp8(name: str, tensor: Tensor) -> bool:
    """Return whether a Linear's weight can be held in fp8; e5m2 must be widened first."""
    fits = tensor.ndim == 2 and not any(size % fp8.MULTIPLE for size in tensor.shape)
    return fits and tensor.dtype != torch.float8_e5m2 and bool(LINEAR.fullmatch(name))
