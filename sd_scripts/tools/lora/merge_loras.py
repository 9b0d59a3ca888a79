"""Merge LoRAs with each other: average or join their factors as sd-scripts does, or add up their effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.families.common.family import Family
from sd_scripts.formats.words import printable
from sd_scripts.networks.adapter import Tensors
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.tools.lora_tools import (
    MergedOptions,
    ModelspecOptions,
    OutputOptions,
    PrecisionOptions,
    SvdMergeOptions,
    WeightedMergeOptions,
)
from sd_scripts.tools.lora import svd
from sd_scripts.tools.lora.command import Given
from sd_scripts.tools.lora.factors import Shape, file_tensors, flat, ranks_of
from sd_scripts.tools.lora.files import (
    Merged,
    common_family,
    full_size_modules,
    lora_metadata,
    modelspec_of_result,
    open_loras,
    save_lora,
    warn_of_unknown_layers,
)


def merge_by_weight(given: Given, reporter: Reporter) -> Path:
    """Average or join the factors. Raises ValueError, one sentence that names the option."""
    options = given[WeightedMergeOptions]
    family, sources = _open(given[MergedOptions], reporter)
    names = sorted({name for source in sources for name in source.pairs})
    progress = start_phase(reporter, "merging layers")
    tensors = Tensors()
    for done, name in enumerate(names, 1):
        tensors |= weighted(name, sources, concat=options.concat, shuffle=options.shuffle)
        progress(done, len(names))
    return _save(given, family, sources, tensors)


def weighted(name: str, sources: Sequence[Merged], *, concat: bool, shuffle: bool) -> Tensors:
    """Return a layer of the result. Each factor is scaled by ratio · sqrt(alpha / first alpha), so that the product has
    the square of the ratio; down has the sign of the ratio. The result has the first alpha.

    Raises ValueError if factors are to be averaged that differ in rank.
    """
    owners = [(source, source.pairs[name]) for source in sources if name in source.pairs]
    first = owners[0][1]
    shape = Shape.of(first)
    ups, downs = [], []
    for source, pair in owners:
        _require(Shape.of(pair) == shape, name, source)
        if pair.rank != first.rank and not concat:
            raise ValueError(
                f"models: {printable(name)} has rank {pair.rank} in '{source.file.path}' and {first.rank} in "
                f"'{owners[0][0].file.path}'; factors of different rank cannot be averaged: turn on concat, or merge "
                "by SVD"
            )
        relative = pair.alpha / first.alpha
        scale = math.copysign(math.sqrt(abs(relative)), relative) * source.ratio
        block = source.weigh(name)
        up, down = flat(pair)
        ups.append(up * abs(scale) * block)
        downs.append(down * scale * block)
    up = torch.cat(ups, dim=1) if concat else torch.stack(ups).sum(0)
    down = torch.cat(downs) if concat else torch.stack(downs).sum(0)
    if shuffle:
        order = torch.randperm(len(down))
        up, down = up[:, order], down[order]
    return file_tensors(name, up, down, first.alpha, shape)


@torch.no_grad()
@svd.one_thread()
def merge_by_svd(given: Given, reporter: Reporter) -> Path:
    """Approximate the sum of the updates. Raises ValueError, one sentence that names the option."""
    options = given[SvdMergeOptions]
    device = svd.computing_device(options.device)
    family, sources = _open(given[MergedOptions], reporter)
    names = sorted({name for source in sources for name in source.pairs})
    conv_rank = options.new_rank if options.new_conv_rank is None else options.new_conv_rank
    progress = start_phase(reporter, "merging layers")
    tensors = Tensors()
    for done, name in enumerate(names, 1):
        up, down, shape = summed(name, sources)
        rank = conv_rank if shape.has_kernel else options.new_rank
        if rank:
            up, down = (each.cpu() for each in svd.of_product(up.to(device), down.to(device)).factors(rank))
            up, down = svd.clamp(up, down, options.clamp_quantile)
        tensors |= file_tensors(name, up, down, float(len(down)), shape)
        progress(done, len(names))
    return _save(given, family, sources, tensors)


def summed(name: str, sources: Sequence[Merged]) -> tuple[Tensor, Tensor, Shape]:
    """Return factors of the exact sum of the LoRAs' changes of a layer: their ranks joined."""
    owners = [(source, source.pairs[name]) for source in sources if name in source.pairs]
    shape = Shape.of(owners[0][1])
    ups, downs = [], []
    for source, pair in owners:
        _require(Shape.of(pair) == shape, name, source)
        up, down = flat(pair)
        ups.append(up * (source.strength(name) * pair.alpha / pair.rank))
        downs.append(down)
    return torch.cat(ups, dim=1), torch.cat(downs), shape


def _require(fits: bool, name: str, source: Merged) -> None:
    if not fits:
        raise ValueError(
            f"models: {printable(name)} has a different shape in '{source.file.path}' than in the first LoRA; choose "
            "LoRAs for one kind of model"
        )


def _open(options: MergedOptions, reporter: Reporter) -> tuple[Family, list[Merged]]:
    family = common_family("models", options.models)
    reporter.phase("reading LoRAs")
    modules = full_size_modules(family)
    merged = open_loras(options, family, modules, reporter.warn)
    for each in merged:
        warn_of_unknown_layers(each.file, family, reporter.warn)
    return family, merged


def _save(given: Given, family: Family, sources: Sequence[Merged], tensors: Tensors) -> Path:
    files = [source.file for source in sources]
    save_to = Path(given[OutputOptions].save_to)
    metadata = lora_metadata(family, files, ranks_of(tensors))
    if not given[ModelspecOptions].no_metadata:
        metadata |= modelspec_of_result(save_to, [(file.path, file.metadata) for file in files])
    return save_lora(save_to, tensors, metadata, given[PrecisionOptions].save_precision, files[0].dtype)
