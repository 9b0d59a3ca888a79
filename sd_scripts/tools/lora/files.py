"""LoRA files as the tools read and write them: tensors under sd-scripts' names, metadata, family."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.cards import registry
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import card_of, module_of, names
from sd_scripts.families.common.family import Family, family_of
from sd_scripts.families.common.layer_rows import LayerRows, adapted_components
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.formats.words import counted, printable, some
from sd_scripts.library.files.model_reader import DTYPES
from sd_scripts.library.files.safetensors_io import PRECISIONS, save_model, with_hashes
from sd_scripts.library.files.safetensors_stream import TensorFile
from sd_scripts.networks.adapter import Tensors
from sd_scripts.networks.adapters.lora import Pair
from sd_scripts.networks.files.lora_files import LoraFile, read_lora
from sd_scripts.networks.files.lora_names import with_our_names
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.settings.tools.lora_tools import MergedOptions
from sd_scripts.tools.lora.block_weights import Weigh, weigher

Texts = dict[str, str]
SCALES = ("scale_weight", "weight_scale", "scaled_fp8", "comfy_quant")
"""Ends of keys that only quantized files have."""
FLOATS = {name for name, dtype in DTYPES.items() if dtype.is_floating_point}


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
            if file.variant:
                raise ValueError(f"{option}: '{path}' is not a LoRA but {file.is_a}")
            raise ValueError(f"{option}: '{path}' is not a LoRA")
        if file.family not in names():
            known = " or ".join(card_of(name).title for name in sorted(names()))
            raise ValueError(f"{option}: '{path}' is {file.is_a}, not a LoRA for {known}")
        found.setdefault(str(file.family), path)
    if not (common := registry.common_family(found)):
        (one, first), (other, second), *_ = found.items()
        raise ValueError(
            f"{option}: '{first}' is a LoRA for {card_of(one).title} and '{second}' one for {card_of(other).title}; "
            "choose LoRAs for one kind of model"
        )
    return family_of(common)


def model_family(option: str, path: Path) -> str:
    """Return the family of a model's file. Raises ValueError, one sentence, if it is unknown or the file a LoRA."""
    file = describe(path)
    if file.problem:
        raise ValueError(f"{option}: {file.problem}")
    if file.family not in names() or file.variant.endswith("LoRA"):
        known = " or ".join(card_of(name).files.base_model for name in sorted(names()))
        raise ValueError(f"{option}: '{path}' is {file.is_a or 'no known model'}; choose {known}")
    return str(file.family)


def full_size_modules(family: Family) -> tuple[AdaptedModule, ...]:
    """Return the modules that adapters change, at full size and without weights: they have the names of all layers."""
    return _full_size(family.card.name)


@functools.cache
def _full_size(name: str) -> tuple[AdaptedModule, ...]:
    modules = module_of(name, "full_size").modules()
    targets = adapted_components(family_of(name))
    return tuple(AdaptedModule(module=modules[each], target=target, lr=0.0) for each, target in targets.items())


def open_lora(option: str, path: str, modules: Iterable[AdaptedModule], warn: Callable[[str], None]) -> LoraFile:
    """Read a LoRA under sd-scripts' names; warn of tensors that belong to no layer.

    Raises ValueError, one sentence that names the option.
    """
    file = read_lora(option, Path(path), modules)
    for sentence in file.left_out():
        warn(sentence)
    return file


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A LoRA to merge, how strong it is, and how its blocks are weighed."""

    file: LoraFile
    ratio: float
    weigh: Weigh

    def strength(self, name: str) -> float:
        return self.ratio * self.weigh(name)

    @functools.cached_property
    def pairs(self) -> dict[str, Pair]:
        return self.file.pairs()


def open_loras(
    options: MergedOptions, family: Family, modules: Sequence[AdaptedModule], warn: Callable[[str], None]
) -> list[Merged]:
    """Read the LoRAs to merge, as `open_lora` does."""
    ratios = options.ratios or [1.0] * len(options.models)
    lbws = options.lbws or [""] * len(options.models)
    return [
        Merged(file=open_lora("models", path, modules, warn), ratio=ratio, weigh=weigher(family.lora_blocks, lbw))
        for path, ratio, lbw in zip(options.models, ratios, lbws, strict=True)
    ]


def warn_of_unknown_layers(file: LoraFile, family: Family, warn: Callable[[str], None]) -> None:
    """Warn of layers that models of the family do not have, and that a LoRA made from the file keeps.

    The file may have been read under its own names.
    """
    layers = {name: tensors for name, (_, tensors) in file.layers.items()}
    with contextlib.suppress(ValueError):  # rows that cannot be joined are a matter of what joins them
        if unknown := sorted(with_our_names(layers, full_size_modules(family))[1]):
            warn(
                f"{file.option}: {family.card.title} does not have {counted(len(unknown), 'layer')} of '{file.path}', "
                f"kept unchecked: {some(unknown)}"
            )


def open_model(option: str, path: Path) -> TensorFile:
    """Open a model's file. Raises ValueError, one sentence that names the option, if its weights have scales."""
    file = TensorFile(path, option)
    if scales := [key for key in file.header.shapes if key.endswith(SCALES)]:
        raise ValueError(
            f"{option}: '{path}' is quantized with scales, such as {printable(scales[0])}; choose the bf16, fp16 or "
            "plain fp8 file"
        )
    return file


def require_floats(file: TensorFile, layers: Iterable[LayerRows]) -> None:
    """Raise ValueError, one sentence that names the option, if weights of these layers are whole numbers."""
    for rows in (rows for layer in layers for rows in layer.rows):
        if file.header.dtypes[rows.key] not in FLOATS:
            raise ValueError(
                f"{file.option}: '{file.path}' has whole numbers without scales in {printable(rows.key)}; choose the "
                "bf16, fp16 or plain fp8 file"
            )


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
    """Return the modelspec entries of a file made from others: the first's, with a new title and date."""
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
    """Write a LoRA with its hashes, in `precision`, or else in `dtype`. Raises ValueError if that does not suffice."""
    ready = in_precision(tensors, PRECISIONS[precision] if precision else dtype)
    save_model(path, ready, with_hashes(ready, metadata))
    return path


def in_precision(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> Tensors:
    """Return tensors with floats in `dtype` (None: unchanged). Raises ValueError if one is not finite then."""
    ready = {key: each.to(dtype) if dtype and each.is_floating_point() else each for key, each in tensors.items()}
    if wrong := next((key for key, each in ready.items() if not each.float().isfinite().all()), None):
        raise ValueError(
            f"save_precision: {printable(wrong)} has values too large for this precision; set bf16 or float"
        )
    return ready
