"""Resize a LoRA: keep the strongest directions of each layer's update. Key names stay as they are in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.words import some
from sd_scripts.library.model_reader import read_weights
from sd_scripts.networks import svd
from sd_scripts.networks.adapters.lora import Pair
from sd_scripts.options.lora_tools import REPORT, LoraInputOptions, OutputOptions, PrecisionOptions, ResizeOptions
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import Shape, flat
from sd_scripts.tools.lora.files import metadata_of, save_lora

ENDINGS = ((".lora_down.weight", ".lora_up.weight"), (".lora_A.weight", ".lora_B.weight"))
"""Names of down and up: those of sd-scripts, and of peft."""

NOT_PLAIN = ("dora_scale", "lora_magnitude_vector", "lora_magnitude_vector.weight", "lora_mid.weight")
"""Ends of keys of DoRA and of Tucker form: what their layers do is more than a product of two factors."""


@dataclass(frozen=True)
class Resized:
    """A layer with a new rank, and what is left of it."""

    up: Tensor
    down: Tensor
    alpha: float
    kept: float
    """Share of the Frobenius norm."""

    @property
    def rank(self) -> int:
        return len(self.down)


@torch.no_grad()
@svd.one_thread()
def resize(given: Given, reporter: Reporter) -> Path:
    """Write the resized LoRA. Raises ValueError, one sentence that names the option."""
    options, path = given[ResizeOptions], Path(given[LoraInputOptions].model)
    svd.computing_device(options.device)
    tensors = read_weights(path, "model")
    layers = layer_keys(tensors)
    if other := next((key for key in tensors if key.endswith(NOT_PLAIN)), None):
        raise ValueError(f"model: '{path}' is no plain LoRA ({other}), and only these can be resized")
    if not layers:
        raise ValueError(f"model: '{path}' has no factors of a LoRA, but keys such as {some(list(tensors))}")
    progress, result, kept = start_phase(reporter, "resizing layers"), dict(tensors), list[Resized]()
    for done, (name, (down_key, up_key)) in enumerate(layers.items(), 1):
        own = {"lora_down.weight": tensors[down_key], "lora_up.weight": tensors[up_key]}
        alpha_key = f"{name}.alpha"
        pair = Pair.read(own | ({"alpha": tensors[alpha_key]} if alpha_key in tensors else {}))
        new = resize_layer(pair, options)
        shape = Shape.of(pair)
        result[down_key] = new.down.reshape(-1, *shape.into)
        result[up_key] = new.up.reshape(shape.out, -1, *pair.up.shape[2:])
        if alpha_key in tensors:
            result[alpha_key] = torch.tensor(new.alpha)
        kept.append(new)
        if options.verbose:
            print(f"{name}: rank {pair.rank} to {new.rank}, alpha {new.alpha:g}, {new.kept:.1%} of the norm kept")
        progress(done, len(layers))
    before = max(len(tensors[down]) for down, _ in layers.values())
    told = _summary(kept, before)
    print(told)
    if reporter.folder:
        write_whole(reporter.folder.path / REPORT, json.dumps({"note": told}))
    metadata = metadata_of(path) | _changed(metadata_of(path), options, before, kept)
    dtype = tensors[next(iter(layers.values()))[0]].dtype
    precision = given[PrecisionOptions].save_precision
    return save_lora(Path(given[OutputOptions].save_to), result, metadata, precision, dtype)


def _summary(kept: Sequence[Resized], before: int) -> str:
    low, high = min(each.rank for each in kept), max(each.rank for each in kept)
    ranks = f"Rank {low}" if low == high else f"Ranks {low} to {high}"
    share = sum(each.kept for each in kept) / len(kept)
    return f"{ranks}, before {before}; {share:.1%} of the norm of a layer is kept on average"


def layer_keys(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
    """Return the keys of down and up by the name of the layer."""
    found: dict[str, tuple[str, str]] = {}
    for down, up in ENDINGS:
        names = [key.removesuffix(down) for key in tensors if key.endswith(down)]
        found |= {name: (name + down, name + up) for name in names if name + up in tensors}
    return found


def resize_layer(pair: Pair, options: ResizeOptions) -> Resized:
    """Return a layer at its new rank. alpha / rank stays; a rank never grows beyond that of the update."""
    up, down = (each.to(options.device or "cpu") for each in flat(pair))
    singular = svd.of_product(up, down)
    conv_rank = options.new_conv_rank or options.new_rank
    most = conv_rank if Shape.of(pair).has_kernel else options.new_rank
    rank = svd.choose_rank(singular.values, options.dynamic_method, options.dynamic_param or 0.0, most)
    up, down = (each.cpu() for each in singular.factors(rank))
    norm = float(singular.values.norm())
    kept = float(singular.values[:rank].norm()) / norm if norm else 1.0
    return Resized(up, down, pair.alpha / pair.rank * rank, kept)


def _changed(
    metadata: Mapping[str, str], options: ResizeOptions, before: int, kept: Sequence[Resized]
) -> dict[str, str]:
    """Return the entries that sd-scripts changes."""
    comment = metadata.get("ss_training_comment", "")
    if options.dynamic_method:
        told = f"Dynamic resize with {options.dynamic_method}: {options.dynamic_param} from {before}; {comment}"
        return {"ss_training_comment": told, "ss_network_dim": "Dynamic", "ss_network_alpha": "Dynamic"}
    conv = options.new_conv_rank
    more = f" (conv: {conv})" if conv not in (None, options.new_rank) else ""
    return {
        "ss_training_comment": f"dimension is resized from {before} to {options.new_rank}{more}; {comment}",
        "ss_network_dim": str(max(each.rank for each in kept)),
        "ss_network_alpha": str(max(each.alpha for each in kept)),
    }
