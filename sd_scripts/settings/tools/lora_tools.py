"""Options of the tools for LoRA files. Their names are sd-scripts', if it has such a tool."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from sd_scripts.families.cards.model_file import SUFFIXES
from sd_scripts.formats.models.safetensors_header import SAFETENSORS
from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups

Precision = Literal["float", "fp16", "bf16"]
CLAMP = "Limits the values of the factors to this quantile of them, as sd-scripts does; 1 leaves them exact."
LARGEST_RANK = 4096
REPORT = "report.json"
"""What check_lora_weights writes into its run folder for the page."""


class BaseModelOptions(OptionGroup, title="Model"):
    """The model to merge LoRAs into; without one, they are merged with each other."""

    base_model: str | None = path_option("Model file to merge the LoRAs into.", label="Model")


class EncoderFileOptions(OptionGroup, title="Text encoders"):
    """Text encoders in files of their own."""

    clip_l: str | None = path_option("File of the CLIP-L text encoder to merge its LoRA layers into.")
    clip_l_save_to: str | None = path_option("File to write for clip_l, .safetensors.")
    t5xxl: str | None = path_option("File of the T5-XXL text encoder to merge its LoRA layers into.")
    t5xxl_save_to: str | None = path_option("File to write for t5xxl, .safetensors.")
    qwen3: str | None = path_option("File of the Qwen3 text encoder to merge its LoRA layers into.")
    qwen3_save_to: str | None = path_option("File to write for qwen3, .safetensors.")
    qwen3_vl: str | None = path_option(
        "File of Krea 2's Qwen3-VL text encoder with its vision tower to merge its LoRA layers into."
    )
    qwen3_vl_save_to: str | None = path_option("File to write for qwen3_vl, .safetensors.")
    text_encoder: str | None = path_option(
        "File of the Qwen2.5-VL-7B text encoder with its vision tower to merge its LoRA layers into."
    )
    text_encoder_save_to: str | None = path_option("File to write for text_encoder, .safetensors.")
    t5: str | None = path_option("File of the UMT5-XXL text encoder to merge its LoRA layers into.")
    t5_save_to: str | None = path_option("File to write for t5, .safetensors.")
    text_encoder1: str | None = path_option("File of HunyuanVideo's LLaMA text encoder to merge its LoRA layers into.")
    text_encoder1_save_to: str | None = path_option("File to write for text_encoder1, .safetensors.")
    text_encoder2: str | None = path_option("File of HunyuanVideo's CLIP-L text encoder to merge its LoRA layers into.")
    text_encoder2_save_to: str | None = path_option("File to write for text_encoder2, .safetensors.")

    def check(self) -> Iterable[tuple[str, str]]:
        for name in ENCODER_FILES:
            save_to = getattr(self, f"{name}_save_to")
            if getattr(self, name) or save_to:
                yield from check_output(f"{name}_save_to", save_to)
            if save_to and not getattr(self, name):
                yield name, f"not set, while {name}_save_to is"


ENCODER_FILES = ("clip_l", "t5xxl", "qwen3", "qwen3_vl", "text_encoder", "t5", "text_encoder1", "text_encoder2")
"""Options of EncoderFileOptions that name a file to read."""


class MergedOptions(OptionGroup, title="LoRAs"):
    """The files to merge."""

    models: list[str] = option([], "LoRA files to merge.", path=True, label="LoRAs")
    ratios: list[float] = option([], "Strength of each of them. Default: 1.", label="Ratios")
    lbws: list[str] = option(
        [],
        "Weights of each LoRA's blocks: names with weights, such as 'IN04=0.5,OUT=0', or a JSON list with a number for "
        "each block, such as [1,0,0.5, ...]; [] weighs none.",
        label="Block weights",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.models:
            yield "models", "not set; choose at least one LoRA file"
        for name, given in (("ratios", self.ratios), ("lbws", self.lbws)):
            if given and len(given) != len(self.models):
                yield name, f"{len(given)} given for {len(self.models)} LoRAs; give one for each"
        for text in self.lbws:
            if why := block_weights_problem(text):
                yield "lbws", why


def block_weights_problem(text: str) -> str:
    """Return why a text gives no block weights; empty if it does."""
    try:
        read_block_weights(text)
    except ValueError as error:
        return str(error)
    return ""


def read_block_weights(text: str) -> list[float] | dict[str, float]:
    """Parse `[1, 0.5]`, one weight for each block, or `IN04=0.5,OUT=0`, weights by the beginning of a block's name.
    `[]` weighs none."""
    if text.strip().startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{text!r} is not a JSON list of numbers") from None
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in listed):
            raise ValueError(f"{text!r} must contain only numbers")
        return [float(each) for each in listed] or {}
    weights = {}
    for pair in filter(str.strip, text.split(",")):
        name, equals, number = pair.partition("=")
        try:
            weights[name.strip().upper()] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name.strip() or not math.isfinite(weights[name.strip().upper()]):
            raise ValueError(f"{pair.strip()!r} is not of the form NAME=number, such as OUT=0.5")
    return weights


class OutputOptions(OptionGroup, title="Output"):
    """Where the result is written."""

    save_to: str | None = path_option("File to write, .safetensors.", label="Save to")

    def check(self) -> Iterable[tuple[str, str]]:
        yield from check_output("save_to", self.save_to)


class PrecisionOptions(OptionGroup, title="Precision"):
    """How exact the saved weights are."""

    save_precision: Precision | None = optional(
        "Precision of the saved weights. Default: the input's.", label="Precision"
    )


class ModelspecOptions(OptionGroup, title="Modelspec"):
    """The file's metadata."""

    no_metadata: bool = switch(
        "Leave modelspec entries out of the file; a LoRA keeps the entries that programs need to load it.",
        label="Without modelspec",
    )


SAVING: Groups = (OutputOptions, PrecisionOptions, ModelspecOptions)


def check_output(name: str, path: str | None) -> Iterable[tuple[str, str]]:
    """Yield why a file cannot be written to this path, as far as the path shows."""
    if not path:
        yield name, "not set; name the file to write"
    elif Path(path).suffix not in SAFETENSORS:
        yield name, f"'{path}' does not end in .safetensors; choose such a name"
    elif Path(path).is_dir():
        yield name, f"'{path}' is a folder; add a file name"


class WeightedMergeOptions(OptionGroup, title="Merge by weight"):
    """How LoRAs are merged with each other without a singular value decomposition."""

    concat: bool = switch(
        "Join the ranks of the LoRAs instead of averaging their factors; the result's rank is their sum.",
        label="Concatenate",
    )
    shuffle: bool = switch("Shuffle the ranks of the result, which does not change its effect.", label="Shuffle")
    precision: Precision = option(
        "float", "Ignored: merging always computes in float32.", label="Precision of computing"
    )


class SvdMergeOptions(OptionGroup, title="Merge by SVD"):
    """The sum of the LoRAs, approximated by the rank that is given."""

    new_rank: int = option(
        4, "Rank of the result; 0 is the sum of all ranks, which is exact.", within=(0, LARGEST_RANK), label="Rank"
    )
    new_conv_rank: int | None = optional(
        "Rank for 3x3 convolutions. Default: the rank of the other layers.",
        within=(0, LARGEST_RANK),
        label="Rank of conv",
    )
    clamp_quantile: float = option(1.0, f"{CLAMP} sd-scripts uses 0.99.", within=(0.0, 1.0), label="Clamp quantile")
    device: str | None = optional("Device that computes, such as cuda. Default: the CPU.", label="Device")


class LoraInputOptions(OptionGroup, title="LoRA"):
    """The file to read."""

    model: str | None = path_option("LoRA file.", label="LoRA")

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.model:
            yield "model", "not set; choose a LoRA file"


class ResizeOptions(OptionGroup, title="Resize"):
    """The rank of the result: a fixed one, or for each layer the ranks that it needs."""

    new_rank: int = option(
        4, "Rank of the result; with a dynamic method its maximum.", within=(1, LARGEST_RANK), label="Rank"
    )
    new_conv_rank: int | None = optional(
        "Rank for 3x3 convolutions. Default: the rank of the other layers.",
        within=(1, LARGEST_RANK),
        label="Rank of conv",
    )
    dynamic_method: Literal["sv_ratio", "sv_fro", "sv_cumulative"] | None = optional(
        "Choose each layer's rank by its singular values: sv_ratio keeps those above the largest divided by "
        "dynamic_param, sv_fro enough of them for this share of the Frobenius norm, sv_cumulative for this share of "
        "their sum.",
        label="Dynamic method",
    )
    dynamic_param: float | None = optional("Target of the dynamic method.", within=(0.0, 1e9), label="Target")
    verbose: bool = switch("Print what each layer keeps.", label="Print each layer")
    svd_lowrank_niter: int = option(
        2, "Ignored: the decomposition of a LoRA is exact here and needs no iterations.", label="SVD iterations"
    )
    device: str | None = optional("Device that computes, such as cuda. Default: the CPU.", label="Device")

    def check(self) -> Iterable[tuple[str, str]]:
        if self.dynamic_method and not self.dynamic_param:
            yield "dynamic_param", f"not set; {self.dynamic_method} needs a target"
        elif self.dynamic_method in ("sv_fro", "sv_cumulative") and (self.dynamic_param or 0) > 1:
            yield (
                "dynamic_param",
                f"{self.dynamic_param:g} is above 1; {self.dynamic_method} needs a share like 0.9",
            )
        elif self.dynamic_method == "sv_ratio" and (self.dynamic_param or 2) < 1:
            yield "dynamic_param", f"{self.dynamic_param:g} is below 1; sv_ratio needs a ratio, such as 10"


class ExtractOptions(OptionGroup, title="Extract"):
    """The difference of two models as a LoRA."""

    model_org: str | None = path_option("Original model.", label="Original model")
    model_tuned: str | None = path_option("The model trained from it.", label="Trained model")
    dim: int = option(4, "Rank of the LoRA.", within=(1, LARGEST_RANK), label="Rank")
    conv_dim: int | None = optional(
        "Rank for 3x3 convolutions (LoCon). Default: without them.", within=(1, LARGEST_RANK), label="Rank of conv"
    )
    clamp_quantile: float = option(1.0, f"{CLAMP} sd-scripts uses 0.99.", within=(0.0, 1.0), label="Clamp quantile")
    min_diff: float = option(
        0.01,
        "Text encoders whose weights differ by no more than this are left out.",
        within=(0.0, 1e9),
        label="Minimum difference",
    )
    svd_lowrank_niter: int = option(
        2,
        "Iterations of the randomised decomposition of matrices above 2048x2048; 0 decomposes them exactly, which "
        "takes minutes a layer.",
        within=(0, 100),
        label="SVD iterations",
    )
    device: str | None = optional("Device that computes, such as cuda. Default: the CPU.", label="Device")

    def check(self) -> Iterable[tuple[str, str]]:
        for name in ("model_org", "model_tuned"):
            if not getattr(self, name):
                yield name, "not set; choose a model file"


class ConvertOptions(OptionGroup, title="Convert"):
    """Convert a LoRA to another program's key names, or another precision."""

    src_path: str | None = path_option("LoRA file to read; its key names are recognised.", label="LoRA")
    src: str | None = optional("Ignored: the key names of the file are recognised.", label="From")
    dst: Literal["sd-scripts", "diffusers", "comfyui", "ai-toolkit"] = option(
        "sd-scripts", "Program whose key names the result has.", label="Key names"
    )
    dst_path: str | None = path_option("File to write, .safetensors.", label="Save to")

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.src_path:
            yield "src_path", "not set; choose a LoRA file"
        yield from check_output("dst_path", self.dst_path)


class InspectOptions(OptionGroup, title="Inspect"):
    """Contents of a LoRA."""

    show_all_keys: bool = switch("Also list tensors that are not factors, such as alpha.", label="All keys")
    json: bool = switch("Print one JSON object.", label="JSON")


class EditMetadataOptions(OptionGroup, title="Metadata"):
    """Changes to the metadata of a file; its weights are copied unchanged."""

    set: list[str] = option([], "Entries to write, as KEY=TEXT.", label="Set")
    remove: list[str] = option(
        [], "Entries to remove; a * at the end removes every entry with that prefix.", label="Remove"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        for pair in self.set:
            if "=" not in pair or not pair.partition("=")[0].strip():
                yield "set", f"{pair!r} is not of the form KEY=TEXT"


def option_problems(groups: Groups, values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every problem of a tool's values that is visible without the files."""
    problems: list[str] = []
    wrong: set[str] = set()
    for group in groups:
        for o in each_option(group):
            if why := o.problem(values[o.name]):
                problems.append(f"{o.name}: {why}")
                wrong.add(o.name)
    if wrong:
        return problems
    return [f"{name}: {why}" for group in groups for name, why in filled(group, values).check()]


def filled(group: type[OptionGroup], values: Mapping[str, Any]) -> Any:
    """Return a group with these values."""
    return group(**{o.name: values[o.name] for o in each_option(group)})


def defaults(groups: Groups) -> dict[str, Any]:
    return {o.name: o.default for group in groups for o in each_option(group)}


def input_problem(name: str, path: str) -> str:
    """Return why a tool cannot read a file; empty if it may."""
    place = Path(path)
    if not place.exists():
        return f"{name}: file not found: '{path}'"
    if not place.is_file():
        return f"{name}: '{path}' is a folder; choose the file of the model"
    if place.suffix not in SUFFIXES:
        return f"{name}: '{path}' is not a model file; choose a .safetensors file"
    return ""
