"""Extract a LoRA from two models: the difference of each layer, approximated by a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.cards.registry import card_of, common_family
from sd_scripts.families.common.family import Family, family_of
from sd_scripts.families.common.layer_rows import LayerRows, find_modules
from sd_scripts.library.files.safetensors_stream import TensorFile
from sd_scripts.networks.adapter import Tensors
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import ExtractOptions, ModelspecOptions, OutputOptions, PrecisionOptions
from sd_scripts.tools.lora import svd
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import Shape, file_tensors, ranks_of
from sd_scripts.tools.lora.files import (
    lora_metadata,
    metadata_of,
    model_family,
    modelspec_of_result,
    open_model,
    require_floats,
    save_lora,
)


@dataclass(frozen=True)
class Model:
    """One of the two models, with its layers by name."""

    file: TensorFile
    layers: Mapping[str, LayerRows]

    @classmethod
    def open(cls, family: Family, option: str, path: Path) -> Model:
        file = open_model(option, path)
        found = find_modules(family, file.header, option, path)
        layers = {layer.name: layer for module in found.values() for layer in module.trained_layers}
        require_floats(file, layers.values())
        return cls(file, layers)

    def weight(self, name: str) -> Tensor:
        """Return a layer's weight in float32. Raises ValueError, one sentence, if it is not finite."""
        weight = self.layers[name].weight(self.file.read)
        if not weight.isfinite().all():
            raise ValueError(
                f"{self.file.option}: '{self.file.path}' has NaN or infinity in the layer {name}; choose another file"
            )
        return weight


@torch.no_grad()
def extract(given: Given, reporter: Reporter) -> Path:
    """Write the LoRA. Raises ValueError, one sentence that names the option."""
    options = given[ExtractOptions]
    save_to = Path(given[OutputOptions].save_to)
    svd.computing_device(options.device)
    reporter.phase("reading headers")
    model_org = Path(options.model_org)
    model_tuned = Path(options.model_tuned)
    family = _common_family(model_org, model_tuned)
    original = Model.open(family, "model_org", model_org)
    tuned = Model.open(family, "model_tuned", model_tuned)
    chosen = [name for name in original.layers if name in tuned.layers]
    if not options.conv_dim:
        chosen = [name for name in chosen if not _shape(original.layers[name]).has_kernel]
    for name in chosen:
        if original.layers[name].shape != tuned.layers[name].shape:
            raise ValueError(f"model_tuned: {name} has a different shape from the original; choose models of one kind")
    chosen = _without_equal_encoders(chosen, original, tuned, options, reporter)
    progress = start_phase(reporter, "decomposing layers")
    tensors = Tensors()
    for done, name in enumerate(chosen, 1):
        change = (tuned.weight(name) - original.weight(name)).flatten(1)
        tensors |= _layer(name, change, _shape(original.layers[name]), options)
        progress(done, len(chosen))
    metadata = lora_metadata(family, (), ranks_of(tensors))
    if not given[ModelspecOptions].no_metadata:
        metadata |= modelspec_of_result(save_to, [(tuned.file.path, metadata_of(tuned.file.path))])
        metadata.pop("modelspec.merged_from")
        if "modelspec.architecture" in metadata:
            metadata["modelspec.architecture"] += "/lora"
    return save_lora(save_to, tensors, metadata, given[PrecisionOptions].save_precision, torch.float32)


def _layer(name: str, change: Tensor, shape: Shape, options: ExtractOptions) -> Tensors:
    """Return the factors of a change (out, in) as a file has them, with an alpha equal to their rank."""
    rank = (options.conv_dim or 1) if shape.has_kernel else options.dim
    rank = min(rank, *change.shape)
    singular = svd.of_matrix(change.to(options.device or "cpu"), rank, options.svd_lowrank_niter)
    up, down = (each.cpu() for each in singular.factors(rank))
    up, down = svd.clamp(up, down, options.clamp_quantile)
    return file_tensors(name, up, down, float(len(down)), shape)


def _shape(layer: LayerRows) -> Shape:
    return Shape(layer.shape[0], layer.shape[1:])


def _common_family(model_org: Path, model_tuned: Path) -> Family:
    original = model_family("model_org", model_org)
    tuned = model_family("model_tuned", model_tuned)
    if not (common := common_family([original, tuned])):
        raise ValueError(
            f"model_tuned: it is {card_of(tuned).title}, but the original is {card_of(original).title}; choose models "
            "of one kind"
        )
    return family_of(common)


def _without_equal_encoders(
    chosen: list[str], original: Model, tuned: Model, options: ExtractOptions, reporter: Reporter
) -> list[str]:
    """Leave out the text encoders unless a weight of one differs by more than min_diff."""
    text = [name for name in chosen if name.startswith("lora_te")]
    if not text:
        return chosen
    progress = start_phase(reporter, "comparing text encoders")
    for done, name in enumerate(text, 1):
        if float((tuned.weight(name) - original.weight(name)).abs().max()) > options.min_diff:
            return chosen
        progress(done, len(text))
    reporter.warn("min_diff: the text encoders of both models are equal, so the LoRA has no layers of them")
    return [name for name in chosen if name not in set(text)]
