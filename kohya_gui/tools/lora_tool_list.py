"""The tools of the tab LoRA tools: the title of each, its options, and which of them have no control there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sd_scripts.settings.settings import Groups
from sd_scripts.settings.tools.lora_tools import (
    SAVING,
    BaseModelOptions,
    ConvertOptions,
    EditMetadataOptions,
    ExtractOptions,
    LoraInputOptions,
    MergedOptions,
    OutputOptions,
    PrecisionOptions,
    ResizeOptions,
    SvdMergeOptions,
    WeightedMergeOptions,
)


@dataclass(frozen=True, kw_only=True)
class LoraTool:
    """A tool for LoRA files: its names and its options."""

    name: str
    title: str
    about: str
    script: str
    """Its module in `sd_scripts.tools`."""
    groups: Groups
    inputs: tuple[str, ...]
    """Options that name the files to read."""
    output: str = "save_to"
    """The option that names the file to write; empty if there is none."""
    hidden: tuple[str, ...] = ()
    """Options without a control on the page."""
    required: tuple[str, ...] = ()
    """Options that the page requires in addition to those that the groups check."""
    suffix: Callable[[Mapping[str, Any]], str] = lambda values: "-new"
    """Values -> the suffix that the page appends to the first input's name to name the output."""
    suggest: Callable[[Sequence[int]], Mapping[str, Any]] = lambda ranks: {}
    """Ranks in the chosen LoRAs -> values that the page fills in where the defaults, sd-scripts' own, are small."""


def _rank(values: Mapping[str, Any]) -> str:
    method = values.get("dynamic_method")
    target = values.get("dynamic_param")
    return f"-{method}{target:g}" if method and target else f"-rank{values.get('new_rank')}"


LORA_TOOLS = (
    LoraTool(
        name="merge-model",
        title="Merge into a model",
        about="Add LoRAs to a checkpoint, tensor by tensor: a model of any size needs little memory.",
        script="merge_lora",
        groups=(BaseModelOptions, MergedOptions, *SAVING),
        inputs=("base_model", "models"),
        required=("base_model",),
        suffix=lambda values: "-merged",
    ),
    LoraTool(
        name="merge-svd",
        title="Merge LoRAs",
        about="One LoRA with the combined effect of several, approximated at the rank you choose; rank 0 is exact.",
        script="svd_merge_lora",
        groups=(MergedOptions, SvdMergeOptions, *SAVING),
        inputs=("models",),
        hidden=("device",),
        suffix=lambda values: "-merged",
        suggest=lambda ranks: {"new_rank": max(ranks)} if ranks else {},
    ),
    LoraTool(
        name="merge-weights",
        title="Average LoRAs",
        about="Average or join the factors of LoRAs as sd-scripts does. Averaging needs LoRAs of one rank; the result "
        "is not the sum of their effects, which Merge LoRAs gives.",
        script="merge_lora",
        groups=(MergedOptions, WeightedMergeOptions, *SAVING),
        inputs=("models",),
        hidden=("precision",),
        suffix=lambda values: "-concat" if values.get("concat") else "-average",
    ),
    LoraTool(
        name="resize",
        title="Resize",
        about="A smaller LoRA that does nearly the same: the strongest directions of each layer are kept.",
        script="resize_lora",
        groups=(LoraInputOptions, ResizeOptions, OutputOptions, PrecisionOptions),
        inputs=("model",),
        hidden=("device", "verbose", "svd_lowrank_niter"),
        suffix=_rank,
        suggest=lambda ranks: {"new_rank": max(max(ranks) // 2, 1)} if ranks else {},
    ),
    LoraTool(
        name="extract",
        title="Extract",
        about="Extract a LoRA from a trained model: its difference from the original, approximated at a rank.",
        script="extract_lora_from_models",
        groups=(ExtractOptions, *SAVING),
        inputs=("model_org", "model_tuned"),
        hidden=("device",),
        suffix=lambda values: f"-lora{values.get('dim')}",
        suggest=lambda ranks: {"dim": 32},
    ),
    LoraTool(
        name="convert",
        title="Convert",
        about="The same LoRA under a different program's key names, or in a different precision.",
        script="convert_lora",
        groups=(ConvertOptions, PrecisionOptions),
        inputs=("src_path",),
        output="dst_path",
        hidden=("src",),
        suffix=lambda values: f"-{values.get('dst')}",
    ),
    LoraTool(
        name="metadata",
        title="Metadata",
        about="Read and edit a file's metadata. The weights are copied unchanged.",
        script="edit_metadata",
        groups=(LoraInputOptions, EditMetadataOptions, OutputOptions),
        inputs=("model",),
        hidden=("set", "remove"),
        suffix=lambda values: "-edited",
    ),
    LoraTool(
        name="inspect",
        title="Inspect",
        about="Which blocks a LoRA changes and how much, how many of its ranks it uses, and its training settings.",
        script="check_lora_weights",
        groups=(LoraInputOptions,),
        inputs=("model",),
        output="",
    ),
)
