"""Which layers of a model are adapted, and what files call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import nn


def block_label(name: str) -> str:
    """Return the block of a layer by its name in files: `lora_unet_double_blocks_3_img_mlp_0` -> `double_blocks 3`."""
    if encoder := re.match(r"lora_(te\d*)_", name):
        return encoder[1].upper()
    inner = re.sub(r"^lora_[a-z]+_", "", name)
    block = re.match(r"(.*?)_(\d+)(?:_|$)", inner)
    return f"{block[1]} {block[2]}" if block else inner


@dataclass(frozen=True, kw_only=True)
class LoraBlocks:
    """The blocks of a family's model, for tools that weigh or list the layers of a LoRA by block."""

    label: Callable[[str], str] = block_label
    """Name of a layer in files -> the name of its block, short enough for a chart: `IN04`."""
    lists: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Length of a list of block weights -> the blocks that it weighs; BASE is all text encoders."""

    @staticmethod
    def is_text(name: str) -> bool:
        """Return whether a layer belongs to a text encoder."""
        return name.startswith("lora_te")


@dataclass(frozen=True, kw_only=True)
class LoraTarget:
    """Which layers of a module are adapted, and their names in files."""

    classes: tuple[str, ...]
    """Every Linear and 1x1 convolution inside modules of these classes."""
    attention_classes: tuple[str, ...] = ()
    """The attention modules among them, which some presets adapt alone."""
    conv_classes: tuple[str, ...] = ()
    """With conv_dim, also every layer inside modules of these classes."""
    name: Callable[[str], str]
    """Module path -> name in the file: `lora_unet_input_blocks_4_1_proj_in`."""
    alias: Callable[[str], str] | None = None
    """Module path -> its name in other programs: `lora_unet_down_blocks_1_attentions_0_proj_in`."""
    diffusers_paths: Callable[[str], tuple[str, ...]] | None = None
    """Module path -> its diffusers modules, in the order of its rows."""
    diffusers_components: tuple[str, ...] = ()
    """Beginnings of diffusers' paths that are components of their own there, not parts of the denoiser."""
    part_of: Callable[[str], tuple[str, int, int]] | None = None
    """Module path -> the layer of a related model, whose LoRAs fit too, that has its rows among others: path there,
    number of the part, number of parts. Each part but the last has one row per input."""
    swaps_halves: Callable[[str], bool] = lambda path: False
    """Module path -> whether diffusers has the two halves of its rows in the opposite order."""
    comfyui: Callable[[str], str] = lambda path: f"diffusion_model.{path}"
    """Module path -> ComfyUI's own name of the layer."""
    folds: tuple[str, ...] = ()
    """Kinds of adapters that compute in one product with the base weights (see folding.py), where that is faster."""
    together: tuple[tuple[str, ...], ...] = ()
    """Ends of the paths of layers that project_together applies to one input: `attn1.to_q`, `attn1.to_k`."""
    after_attention: tuple[str, ...] = ()
    """Ends of the paths of layers whose input is attention's output, which its backward pass keeps: `to_out.0`."""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    """Class of a module -> its name in external networks, which select modules by class name."""
    group: str = "unet"
    """Name of the module's learning rate in logs: `unet`, `textencoder 1`."""
    extra_modules: tuple[str, ...] = ()
    """Paths of further modules, outside `classes`, whose layers can be adapted."""

    def inside(self, kinds: Collection[str]) -> LoraTarget:
        """Return the target with only the layers of some kinds of modules: `blocks`, `attention`, `convolutions`."""
        classes = {"blocks": self.classes, "attention": self.attention_classes, "convolutions": self.conv_classes}
        chosen = tuple(name for kind in kinds for name in classes[kind])
        extra = self.extra_modules if "blocks" in kinds else ()
        return replace(self, classes=chosen, conv_classes=(), extra_modules=extra)


def adaptable(model: nn.Module, target: LoraTarget, *, conv: bool) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """Yield path and layer of everything that can be adapted in `model`, in module order, each once."""
    seen = set()
    for inside, block in model.named_modules():
        kind = type(block).__name__
        if kind not in target.classes and not (conv and kind in target.conv_classes):
            continue
        for path, layer in block.named_modules(prefix=inside):
            if path in seen or not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            if not is_conv(layer) or conv:
                seen.add(path)
                yield path, layer
    for outside in target.extra_modules:
        for path, layer in model.named_modules():
            if f"{path}.".startswith(f"{outside}.") and isinstance(layer, nn.Linear):
                yield path, layer


def readable(model: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """Yield path and layer of everything in `model` that a file may change, including layers not trained by default."""
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            yield path, layer


def projected_together(model: nn.Module, target: LoraTarget) -> list[list[nn.Module]]:
    """Return the groups of layers in `model` that read the same input."""
    modules = dict(model.named_modules())
    return [
        [modules[path.removesuffix(first) + ending] for ending in (first, *others)]
        for first, *others in target.together
        for path in modules
        if f".{path}".endswith(f".{first}")
    ]


def layers_after_attention(model: nn.Module, target: LoraTarget) -> list[nn.Module]:
    """Return the layers in `model` whose input is attention's output."""
    endings = tuple(f".{ending}" for ending in target.after_attention)
    if not endings:
        return []
    return [module for path, module in model.named_modules() if f".{path}".endswith(endings)]


def is_conv(layer: nn.Module) -> bool:
    """Return whether it is a convolution with a kernel above 1x1; a 1x1 convolution counts as a Linear."""
    return isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1)
