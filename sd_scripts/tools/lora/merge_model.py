"""Merge LoRAs into a model file: each tensor is read, changed and written by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.common.family import Family, family_of
from sd_scripts.families.common.layer_rows import FoundModule, LayerRows, adapted_modules, find_modules
from sd_scripts.formats.disk import format_bytes, free_bytes
from sd_scripts.formats.words import printable, some
from sd_scripts.library.files.model_reader import DTYPES
from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.library.files.safetensors_stream import NAMES, TensorFile, TensorSpec, TensorWriter, tensor_writer
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import (
    ENCODER_FILES,
    BaseModelOptions,
    EncoderFileOptions,
    MergedOptions,
    ModelspecOptions,
    OutputOptions,
    PrecisionOptions,
)
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.files import (
    FLOATS,
    Merged,
    model_family,
    modelspec_of_result,
    open_loras,
    open_model,
    require_floats,
)

OPTION = "base_model"
NARROW = {"F8_E4M3", "F8_E5M2"}


@dataclass(frozen=True)
class Target:
    """A file that takes up LoRAs, and the one to write."""

    source: TensorFile
    save_to: Path
    found: dict[str, FoundModule]

    @classmethod
    def open(cls, family: Family, option: str, path: Path, save_to: Path) -> Target:
        """Raises ValueError, one sentence that names the option, if the file is not a plain one of its kind."""
        source = open_model(option, path)
        found = find_modules(family, source.header, option, path)
        if option != OPTION:
            found = {name: module for name, module in found.items() if module.component.option == option}
        if not found:
            raise ValueError(f"{option}: '{path}' has no layers that LoRAs change; choose another file")
        target = cls(source, save_to, found)
        require_floats(source, target.layers.values())
        return target

    @property
    def layers(self) -> dict[str, LayerRows]:
        return {layer.name: layer for module in self.found.values() for layer in module.layers}


@dataclass(frozen=True)
class Group:
    """Layers and tensors of the file that have rows in common."""

    layers: tuple[LayerRows, ...]
    keys: tuple[str, ...]


def merge_into_model(given: Given, reporter: Reporter) -> Path:
    """Write the model with the LoRAs merged into it. Raises ValueError, one sentence that names the option."""
    path = Path(given[BaseModelOptions].base_model)
    save_to = Path(given[OutputOptions].save_to)
    reporter.phase("reading headers")
    family = family_of(_family_name(path))
    targets = [Target.open(family, OPTION, path, save_to)]
    encoders = vars(given[EncoderFileOptions])
    for option in ENCODER_FILES:
        if encoders[option]:
            targets.append(Target.open(family, option, Path(encoders[option]), Path(encoders[f"{option}_save_to"])))
    reporter.phase("reading LoRAs")
    found = {name: module for target in targets for name, module in target.found.items()}
    modules = adapted_modules(family, found)
    merged = open_loras(given[MergedOptions], family, modules, reporter.warn)
    for each in merged:
        each.file.require_fit(modules)
    _require_layers(
        merged, {name: layer for target in targets for name, layer in target.layers.items()}, path, reporter
    )
    for target in targets:
        _write_target(target, merged, given, reporter)
    return save_to


def _write_target(target: Target, merged: Sequence[Merged], given: Given, reporter: Reporter) -> None:
    source, save_to = target.source, target.save_to
    specs = _specs(source, given[PrecisionOptions].save_precision)
    _require_space(save_to, specs)
    if narrow := {spec.dtype for spec in specs.values()} & NARROW:
        reporter.warn(f"save_precision: {narrow.pop()} rounds away most of a LoRA's change; set bf16 or fp16")
    changed = [layer for layer in target.layers.values() if any(layer.name in m.file.layers for m in merged)]
    metadata = dict(source.header.metadata)
    if not given[ModelspecOptions].no_metadata:
        sources = [(source.path, metadata), *((each.file.path, each.file.metadata) for each in merged)]
        metadata |= modelspec_of_result(save_to, sources)
    with tensor_writer(save_to, specs, metadata) as writer:
        _write(writer, source, list(_groups(changed)), merged, reporter)
    source.close()


def _family_name(path: Path) -> str:
    file = describe(path)
    if file.variant.endswith("LoRA") and not file.problem:
        raise ValueError(f"{OPTION}: '{path}' is itself a LoRA; choose a model, or leave it out to merge LoRAs")
    return model_family(OPTION, path)


def _require_layers(merged: Sequence[Merged], layers: Mapping[str, LayerRows], path: Path, reporter: Reporter) -> None:
    """Raise ValueError if a LoRA fits nothing in the model; warn of layers that the model does not have."""
    for each in merged:
        own = each.file.layers.keys()
        if not own & layers.keys():
            raise ValueError(
                f"models: no layer of '{each.file.path}' is in '{path}', which is a different kind of "
                f"model; the LoRA has {some(sorted(own))}"
            )
        if absent := sorted(own - layers.keys()):
            reporter.warn(f"models: {len(absent)} layers of '{each.file.path}' are not in the model: {some(absent)}")


def _specs(source: TensorFile, precision: str | None) -> dict[str, TensorSpec]:
    """Return the tensors of the result: the model's, floats in `precision`."""
    wanted = NAMES[PRECISIONS[precision]] if precision else None
    specs = {}
    for key in source.header.shapes:
        spec = source.spec(key)
        specs[key] = TensorSpec(wanted, spec.shape) if wanted and spec.dtype in FLOATS else spec
    return specs


def _require_space(save_to: Path, specs: Mapping[str, TensorSpec]) -> None:
    needed = sum(spec.nbytes for spec in specs.values())
    free = free_bytes(save_to.parent)
    if free is not None and free < needed:
        raise ValueError(
            f"save_to: the file needs {format_bytes(needed)}, but '{save_to.parent}' has {format_bytes(free)} free; "
            "choose another folder or free some space"
        )


def _groups(layers: Sequence[LayerRows]) -> Iterator[Group]:
    """Yield layers with the tensors that contain them, so that no two groups share one."""
    groups: list[tuple[list[LayerRows], set[str]]] = []
    at: dict[str, tuple[list[LayerRows], set[str]]] = {}
    for layer in layers:
        keys = {rows.key for rows in layer.rows}
        joined: tuple[list[LayerRows], set[str]] = ([layer], keys)
        for other in {id(at[key]): at[key] for key in keys if key in at}.values():
            joined[0][:0] = other[0]
            joined[1].update(other[1])
            groups.remove(other)
        groups.append(joined)
        at.update(dict.fromkeys(joined[1], joined))
    for members, keys in groups:
        yield Group(tuple(members), tuple(sorted(keys)))


@torch.no_grad()
def _write(
    writer: TensorWriter, source: TensorFile, groups: Sequence[Group], merged: Sequence[Merged], reporter: Reporter
) -> None:
    changed = {key for group in groups for key in group.keys}
    plain = [key for key in source.header.shapes if key not in changed]
    progress = start_phase(reporter, "merging tensors")
    done = 0
    for group in groups:
        tensors = {key: source.read(key) for key in group.keys}
        for layer in group.layers:
            _merge_layer(layer, tensors, merged)
        for key, tensor in tensors.items():
            _write_finite(writer, source, key, tensor)
        done += len(group.keys)
        progress(done, len(writer.specs))
    for key in plain:
        if writer.specs[key] == source.spec(key):
            writer.copy(key, source)
        else:
            _write_finite(writer, source, key, source.read(key))
        done += 1
        progress(done, len(writer.specs))


def _write_finite(writer: TensorWriter, source: TensorFile, key: str, tensor: Tensor) -> None:
    """Write a tensor. Raises ValueError, one sentence, if its values are not finite, or not in its precision."""
    dtype = writer.specs[key].dtype
    if not tensor.to(DTYPES[dtype]).float().isfinite().all():
        name = printable(key)
        if not source.read(key).float().isfinite().all():
            raise ValueError(f"{source.option}: '{source.path}' has NaN or infinity in {name}; choose another file")
        raise ValueError(f"save_precision: {name} has values too large for {dtype}; set bf16 or float, or lower ratios")
    writer.write(key, tensor)


def _merge_layer(layer: LayerRows, tensors: dict[str, Tensor], merged: Sequence[Merged]) -> None:
    """Add the LoRAs' changes of a layer to its rows. The tensors become float32, and are rounded when written."""
    for rows in layer.rows:
        tensors[rows.key] = tensors[rows.key].float()
    weight = layer.weight(tensors.__getitem__)
    for each in merged:
        strength = each.strength(layer.name)
        change = each.file.change(layer.name, weight, strength) if strength else None
        if change is not None:
            weight += change
    for rows in layer.rows:
        target = tensors[rows.key][rows.first : rows.first + rows.count]
        target.copy_(weight[rows.at : rows.at + rows.count].reshape(target.shape))
