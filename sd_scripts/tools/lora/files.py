"""LoRA files as the tools read and write them: tensors under sd-scripts' names, metadata, family."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families import registry
from sd_scripts.families.family import Family
from sd_scripts.families.layer_rows import adapted_components
from sd_scripts.families.model_file import SAFETENSORS, describe
from sd_scripts.families.registry import card_of, family_of, module_of, names
from sd_scripts.formats.safetensors_header import read_header
from sd_scripts.formats.words import some
from sd_scripts.library.safetensors_io import PRECISIONS, save_model, with_hashes
from sd_scripts.networks.adapter import Adapter, Tensors, layer_names, read_layer
from sd_scripts.networks.adapters.lora import Lora, Pair
from sd_scripts.networks.lora_files import read_plain_lora
from sd_scripts.networks.plan import AdaptedModule

Texts = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class LoraFile:
    """An opened LoRA file."""

    path: Path
    option: str
    tensors: Tensors
    """Under sd-scripts' names, on the CPU, in the dtype of the file."""
    metadata: Mapping[str, str]

    def layers(self) -> dict[str, tuple[type[Adapter], Tensors]]:
        """Return kind and tensors of each layer, by name, in the order of the names."""
        found = {name: read_layer(self.tensors, name) for name in sorted(layer_names(self.tensors))}
        return {name: layer for name, layer in found.items() if layer}

    def pairs(self) -> dict[str, Pair]:
        """Return the factors of each layer. Raises ValueError if the file is no plain LoRA."""
        layers = self.layers()
        if others := {kind.kind for kind, _ in layers.values() if kind is not Lora}:
            raise ValueError(
                f"{self.option}: '{self.path}' is {' and '.join(sorted(others))}, not a plain LoRA; merge it into a "
                "model instead"
            )
        return {name: Pair.read(tensors) for name, (_, tensors) in layers.items()}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of most of its factors."""
        counts = Counter(tensor.dtype for tensor in self.tensors.values() if tensor.ndim > 1)
        return counts.most_common(1)[0][0] if counts else torch.float32


def metadata_of(path: Path) -> Texts:
    return dict(read_header(path).metadata) if path.suffix in SAFETENSORS else {}


def common_family(option: str, paths: Sequence[str]) -> Family:
    """Return the family of LoRA files. Raises ValueError, one sentence, if it is unknown or they differ."""
    found: dict[str, str] = {}
    for path in paths:
        file = describe(Path(path))
        if file.problem:
            raise ValueError(f"{option}: {file.problem}")
        if not file.variant.endswith("LoRA"):
            raise ValueError(f"{option}: '{path}' is no LoRA" + (f" but {file.is_a}" if file.variant else ""))
        if file.family not in names():
            known = " or ".join(card_of(name).title for name in sorted(names()))
            raise ValueError(f"{option}: '{path}' is a LoRA for another model than {known}: {file.variant}")
        found.setdefault(str(file.family), path)
    if not (common := registry.common_family(found)):
        (one, first), (other, second), *_ = found.items()
        raise ValueError(
            f"{option}: '{first}' is a LoRA for {card_of(one).title} and '{second}' one for {card_of(other).title}; "
            "choose LoRAs for one kind of model"
        )
    return family_of(common)


def full_size_modules(family: Family) -> tuple[AdaptedModule, ...]:
    """Return the modules that adapters change, at full size and without weights: they tell the names of all layers."""
    return _full_size(family.card.name)


@functools.cache
def _full_size(name: str) -> tuple[AdaptedModule, ...]:
    modules, targets = module_of(name, "full_size").modules(), adapted_components(family_of(name))
    return tuple(AdaptedModule(module=modules[each], target=target, lr=0.0) for each, target in targets.items())


def open_lora(option: str, path: str, modules: Iterable[AdaptedModule], warn: Callable[[str], None]) -> LoraFile:
    """Read a LoRA under sd-scripts' names; warn of tensors that belong to no layer.

    Raises ValueError, one sentence that names the option.
    """
    place = Path(path)
    tensors = read_plain_lora(option, place, modules)
    layers = layer_names(tensors)
    if not layers:
        raise ValueError(f"{option}: '{path}' contains no layers of a LoRA, but keys such as {some(list(tensors))}")
    if unknown := [key for key in tensors if key.partition(".")[0] not in layers]:
        warn(f"{option}: {len(unknown)} tensors of '{path}' are unknown and left out: {some(unknown)}")
    return LoraFile(path=place, option=option, tensors=tensors, metadata=metadata_of(place))


def lora_metadata(family: Family, sources: Sequence[LoraFile], ranks: Mapping[str, tuple[int, float]]) -> Texts:
    """Return the entries that programs need, for a LoRA made from `sources` with these ranks and alphas by layer."""
    known = next((source.metadata for source in sources if source.metadata.get("ss_base_model_version")), {})
    dims, alphas = ({pair[index] for pair in ranks.values()} for index in (0, 1))
    return {
        "ss_v2": known.get("ss_v2", "False"),
        "ss_base_model_version": known.get("ss_base_model_version", family.identity.base_model_version),
        "ss_network_module": family.card.network_modules[-1],
        "ss_network_dim": str(dims.pop()) if len(dims) == 1 else "Dynamic",
        "ss_network_alpha": str(alphas.pop()) if len(alphas) == 1 else "Dynamic",
        "ss_network_args": json.dumps({}),
    }


def modelspec_of_result(save_to: Path, sources: Sequence[tuple[Path, Mapping[str, str]]]) -> Texts:
    """Return the modelspec entries of a file made from others: what the first says, with a new title and date."""
    first = {key: text for key, text in sources[0][1].items() if key.startswith("modelspec.")} if sources else {}
    first.pop("modelspec.hash_sha256", None)
    titles = [metadata.get("modelspec.title") or path.stem for path, metadata in sources]
    return {
        **first,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.title": save_to.stem,
        "modelspec.date": datetime.fromtimestamp(int(time.time())).isoformat(),
        "modelspec.merged_from": ", ".join(titles),
    }


def save_lora(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], precision: str | None, dtype: torch.dtype
) -> Path:
    """Write a LoRA with its hashes, in `precision`, or else in `dtype`."""
    wanted = PRECISIONS[precision] if precision else dtype
    ready = {key: tensor.to(wanted) if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    save_model(path, ready, with_hashes(ready, metadata))
    return path
