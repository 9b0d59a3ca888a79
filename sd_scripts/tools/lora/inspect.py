"""Look into a LoRA: which blocks it changes and how much, how many of its ranks it uses, its training settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.disk import format_bytes
from sd_scripts.formats.models.lora_header import LoraSummary, summarize
from sd_scripts.formats.models.lora_keys import DOWN, UP
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.formats.words import printable, some
from sd_scripts.library.files.model_reader import read_weights
from sd_scripts.networks.adapters.lora import Pair
from sd_scripts.networks.files.lora_files import LoraFile
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import LoraBlocks, readable
from sd_scripts.runs.reporter import Progress, Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import REPORT, InspectOptions, LoraInputOptions
from sd_scripts.tools.lora import svd
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import flat
from sd_scripts.tools.lora.files import full_size_modules, metadata_of, open_lora

MOST_LAYERS, MOST_TAGS, MOST_POINTS = 30, 30, 256
FACTORS = {DOWN, UP, "alpha", "dora_scale"}
"""Tensors of a layer whose low-rank part can be measured. The norms of DoRA need the base weight and are left out."""
SHARES = (0.9, 0.95, 0.99)
"""Shares of a layer's norm for which the ranks are counted that it takes."""


@dataclass(frozen=True)
class LayerReport:
    """The effect of a LoRA layer at strength 1."""

    name: str
    block: str
    norm: float
    """Frobenius norm of the update."""
    rank: int
    values: tuple[float, ...] = ()
    """Singular values of the update; empty if its kind has no factors."""

    def needed(self, share: float) -> int:
        """Return how many ranks have this share of the norm."""
        return svd.choose_rank(torch.tensor(self.values), "sv_fro", share, len(self.values)) if self.values else 0


def inspect(given: Given, reporter: Reporter) -> None:
    """Print the contents of a LoRA, and write them into the run folder. Raises ValueError, one sentence."""
    options = given[InspectOptions]
    path = Path(given[LoraInputOptions].model)
    file = describe(path)
    if file.problem:
        raise ValueError(f"model: {file.problem}")
    reporter.phase("reading the LoRA")
    known = family_of(str(file.family)) if file.family in names() else None
    modules = full_size_modules(known) if known else ()
    opened = open_lora("model", str(path), modules, reporter.warn)
    if opened.unknown and known:
        title = known.card.title
        reporter.warn(f"model: {len(opened.unknown)} layers are not layers of {title}: {some(opened.unknown)}")
    begin = reporter.cancellable_phase if options.json else partial(start_phase, reporter)
    blocks = known.lora_blocks if known else LoraBlocks()
    layers = _layers(opened, blocks, _shapes(modules), begin("measuring layers"))
    title = card_of(known.card.name).title if known else file.variant.removesuffix("LoRA").strip()
    report = _report(path, title, layers, blocks)
    if reporter.folder:
        write_whole(reporter.folder.path / REPORT, json.dumps(report))
    if options.json:
        print(json.dumps(report))
    else:
        _print(read_weights(path, "model"), report, options.show_all_keys)


def _shapes(modules: Sequence[AdaptedModule]) -> dict[str, torch.Size]:
    """Return the shape of each layer's weight, by its name in files."""
    return {each.target.name(path): layer.weight.shape for each in modules for path, layer in readable(each.module)}


@torch.no_grad()
@svd.one_thread()
def _layers(
    file: LoraFile, blocks: LoraBlocks, shapes: Mapping[str, torch.Size], progress: Progress
) -> list[LayerReport]:
    found = []
    for done, (name, (kind, own)) in enumerate(file.layers.items(), 1):
        if {DOWN, UP} <= own.keys() <= FACTORS:
            pair = Pair.read(own)
            values = svd.of_product(*flat(pair)).values * (pair.alpha / pair.rank)
            values = values[: pair.rank].abs()
            found.append(LayerReport(name, blocks.label(name), float(values.norm()), pair.rank, tuple(values.tolist())))
        elif name in shapes and file.fits(name, shapes[name]) and not any(ending.startswith("dora") for ending in own):
            rank, _ = kind.rank_in_file(own, ())
            update = kind.delta(own, torch.zeros(()).expand(*shapes[name]))
            found.append(LayerReport(name, blocks.label(name), float(update.norm()), rank.dim))
        progress(done, len(file.layers))
    return found


def _report(path: Path, title: str, layers: Sequence[LayerReport], blocks: LoraBlocks) -> dict[str, Any]:
    metadata = metadata_of(path)
    summary = summarize(read_header(path)) if path.suffix in SAFETENSORS else None
    strongest = sorted(layers, key=lambda layer: -layer.norm)[:MOST_LAYERS]
    return {
        "file": str(path),
        "facts": _facts(path, title, summary, layers),
        "trained": list((summary.trained if summary else {}).items()),
        "blocks": _blocks(layers, blocks),
        "spectrum": _spectrum(layers),
        "layers": [
            {"name": each.name, "norm": each.norm, "rank": each.rank, "needed": each.needed(0.95)} for each in strongest
        ],
        "tags": _tags(metadata),
        "metadata": dict(sorted(metadata.items())),
    }


def _facts(path: Path, title: str, summary: LoraSummary | None, layers: Sequence[LayerReport]) -> list[tuple[str, str]]:
    facts = [("Kind", f"{title} {summary.kind if summary else 'LoRA'}".strip())]
    if summary:
        facts += [
            ("Ranks", summary.rank_text.partition(" ")[2]),
            ("Alpha", summary.alpha),
            ("Precision", summary.precision),
        ]
    facts += [("Layers", f"{len(layers):,}"), ("Size", format_bytes(path.stat().st_size))]
    with_values = [layer for layer in layers if layer.values]
    if with_values:
        means = {share: sum(layer.needed(share) for layer in with_values) / len(with_values) for share in SHARES}
        ranks = ", ".join(f"{share:.0%}: {mean:.1f}" for share, mean in means.items())
        facts.append(("Ranks in use for shares of the norm", ranks))
    return [(name, text) for name, text in facts if text]


def _blocks(layers: Sequence[LayerReport], blocks: LoraBlocks) -> list[dict[str, Any]]:
    """Return the norm of a LoRA's change of each block, in the order of the model, text encoders first."""
    squares: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    text = {layer.block for layer in layers if blocks.is_text(layer.name)}
    for layer in layers:
        squares[layer.block] += layer.norm**2  # type: ignore[assignment]
        counts[layer.block] += 1
    known = max(blocks.lists.values(), key=len, default=())

    def place(block: str) -> tuple[Any, ...]:
        numbered = [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", block)]
        return (block not in text, known.index(block) if block in known else -1, numbered)

    return [
        {"block": block, "norm": squares[block] ** 0.5, "layers": counts[block], "text": block in text}
        for block in sorted(squares, key=place)
    ]


def _spectrum(layers: Sequence[LayerReport]) -> dict[str, list[float]]:
    """Return the singular values by their place, as shares of each layer's largest: mean, and from the 10th to the 90th
    percentile of the layers."""
    rows = [torch.tensor(layer.values) / layer.values[0] for layer in layers if layer.values and layer.values[0] > 0]
    if not rows:
        return {}
    longest = min(max(map(len, rows)), MOST_POINTS)
    columns = [torch.tensor([float(row[place]) for row in rows if place < len(row)]) for place in range(longest)]
    low, high = ([float(column.quantile(q)) for column in columns] for q in (0.1, 0.9))
    return {"mean": [float(column.mean()) for column in columns], "low": low, "high": high}


def _tags(metadata: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the most frequent tags of the captions."""
    try:
        folders = json.loads(metadata.get("ss_tag_frequency", "{}"))
        counts: Counter[str] = Counter()
        for tags in folders.values():
            counts.update({str(tag).strip(): int(count) for tag, count in tags.items()})
    except (ValueError, AttributeError, TypeError):
        return []
    return counts.most_common(MOST_TAGS)


def _print(tensors: Mapping[str, Tensor], report: Mapping[str, Any], everything: bool) -> None:
    for name, text in [*report["facts"], *report["trained"]]:
        print(f"{name}: {printable(text)}")
    for block in report["blocks"]:
        print(f"block {printable(block['block'])}: norm {block['norm']:.4g} in {block['layers']} layers")
    factors = [key for key in tensors if everything or tensors[key].ndim > 1]
    print(f"number of tensors: {len(factors)}")
    for key in factors:  # as sd-scripts prints them
        size = tensors[key].float().abs()
        print(f"{printable(key)},{str(tuple(size.shape)).replace(', ', '-')},{size.mean():.8g},{size.min():.8g}")
