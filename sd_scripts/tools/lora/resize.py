"""Resize a LoRA: keep the strongest directions of each layer's update. Key names of the file stay unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import names
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.models.lora_keys import ALPHA, DOWN, UP, group_keys
from sd_scripts.formats.models.peft_header import without_alpha
from sd_scripts.formats.words import printable
from sd_scripts.library.files.model_reader import read_weights
from sd_scripts.networks.adapters.lora import Pair
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import (
    REPORT,
    LoraInputOptions,
    OutputOptions,
    PrecisionOptions,
    ResizeOptions,
)
from sd_scripts.tools.lora import svd
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import Shape, flat
from sd_scripts.tools.lora.files import save_lora, warn_of_unknown_layers


@dataclass(frozen=True)
class Resized:
    """A layer with a new rank, and the share of its norm that is kept."""

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
    options = given[ResizeOptions]
    path = Path(given[LoraInputOptions].model)
    svd.computing_device(options.device)
    file = read_lora("model", path)
    if (family := describe(path).family) in names():  # others are resized by their factors alone
        warn_of_unknown_layers(file, family_of(str(family)), reporter.warn)
    pairs = file.pairs()
    result = read_weights(path, "model")
    keys = group_keys(result).layers
    progress = start_phase(reporter, "resizing layers")
    kept: list[Resized] = []
    for done, (name, pair) in enumerate(pairs.items(), 1):
        new = resize_layer(pair, options)
        shape = Shape.of(pair)
        own = keys[name]
        up = new.up
        if ALPHA in own:
            result[own[ALPHA]] = torch.tensor(new.alpha)
        else:  # only the header states it, which does not have the new rank
            up = up * (new.alpha / new.rank)
        result[own[DOWN]] = new.down.reshape(-1, *shape.into)
        result[own[UP]] = up.reshape(shape.out, -1, *pair.up.shape[2:])
        kept.append(new)
        if options.verbose:
            ranks = f"rank {pair.rank} to {new.rank}"
            print(f"{printable(name)}: {ranks}, alpha {new.alpha:g}, {new.kept:.1%} of the norm kept")
        progress(done, len(pairs))
    before = max(pair.rank for pair in pairs.values())
    summary = _summary(kept, before)
    print(summary)
    if reporter.folder:
        write_whole(reporter.folder.path / REPORT, json.dumps({"note": summary}))
    metadata = without_alpha(file.metadata) | _changed(file.metadata, options, before, kept)
    precision = given[PrecisionOptions].save_precision
    return save_lora(Path(given[OutputOptions].save_to), result, metadata, precision, file.dtype)


def _summary(kept: Sequence[Resized], before: int) -> str:
    low = min(each.rank for each in kept)
    high = max(each.rank for each in kept)
    ranks = f"Rank {low}" if low == high else f"Ranks {low} to {high}"
    share = sum(each.kept for each in kept) / len(kept)
    return f"{ranks}, before {before}; {share:.1%} of the norm of a layer is kept on average"


def resize_layer(pair: Pair, options: ResizeOptions) -> Resized:
    """Return a layer at its new rank. alpha / rank stays; a rank never exceeds the update's."""
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
        comment = f"Dynamic resize with {options.dynamic_method}: {options.dynamic_param} from {before}; {comment}"
        return {"ss_training_comment": comment, "ss_network_dim": "Dynamic", "ss_network_alpha": "Dynamic"}
    conv = options.new_conv_rank
    more = f" (conv: {conv})" if conv not in (None, options.new_rank) else ""
    return {
        "ss_training_comment": f"dimension is resized from {before} to {options.new_rank}{more}; {comment}",
        "ss_network_dim": str(max(each.rank for each in kept)),
        "ss_network_alpha": str(max(each.alpha for each in kept)),
    }
