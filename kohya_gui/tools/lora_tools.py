"""The LoRA tools of the page: their fields, hints and jobs. No Gradio, no torch."""

import sys
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.form.recognise import Recognised, allowed, glance, size
from kohya_gui.runs.launch_command import setting_flags
from kohya_gui.tools.job_form import described_field, kind_of
from kohya_gui.tools.lora_tool_list import LORA_TOOLS, LoraTool
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.families.cards.model_file import ModelFile, describe
from sd_scripts.families.cards.registry import names
from sd_scripts.formats.models.lora_header import summarize
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.options.spec import Option
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.tools.lora_tools import MergedOptions, defaults, input_problem, option_problems

TOOLS = {tool.name: tool for tool in LORA_TOOLS}
ROWS = ("models", "ratios", "lbws")
"""Options that are shown as one row for each LoRA."""
MODELS = ("base_model", "model_org", "model_tuned")
"""Options that name a base model; the other inputs are LoRAs."""
MOST_LORAS = 50


def described_tools() -> list[dict[str, Any]]:
    """Return all tools with their fields, for the page to lay out."""
    return [
        {
            "name": tool.name,
            "title": tool.title,
            "about": tool.about,
            "output": tool.output,
            "inputs": list(tool.inputs),
            "fields": [described_field(o, _kind(tool, o)) for o in options_of(tool) if o.name not in tool.hidden],
        }
        for tool in LORA_TOOLS
    ]


def options_of(tool: LoraTool) -> list[Option]:
    return [o for group in tool.groups for o in each_option(group)]


def _kind(tool: LoraTool, o: Option) -> str:
    if o.name in ROWS:
        return "rows"
    if o.path:
        return "output" if o.name == tool.output else "file"
    return kind_of(o)


def read_values(tool: LoraTool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options from the page's values; unknown names are left out."""
    values = defaults(tool.groups)
    for o in options_of(tool):
        if o.name in given:
            value = o.read(given[o.name])
            values[o.name] = o.default if value in ("", None) and not o.nullable and not o.many else value
    if (out := values.get(tool.output)) and isinstance(out, str) and not Path(out).suffix:
        values[tool.output] = f"{out}.safetensors"
    return values


def problems(tool: LoraTool, values: Mapping[str, Any], allowed_paths: AllowedPaths) -> list[str]:
    """Return a sentence for each mistake; files outside the allowed folders are not looked at."""
    missing = [f"{name}: not set; choose a file" for name in tool.required if not values[name]]
    if invalid := missing + option_problems(tool.groups, values) + _flags_in(tool, values):
        return invalid
    inputs = _input_files(tool, values)
    outputs = [(tool.output, str(values[tool.output]))] if tool.output else []
    outside = [problem for name, path in (*inputs, *outputs) if (problem := allowed_paths.problem(name, path))]
    return outside or [problem for name, path in inputs if (problem := input_problem(name, path))]


def _input_files(tool: LoraTool, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (option, path) of every input that is set."""
    inputs = []
    for name in tool.inputs:
        value = values[name] or []
        inputs += [(name, str(path)) for path in (value if isinstance(value, list) else [value])]
    return inputs


def _flags_in(tool: LoraTool, values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each text of a list that a command line would take for a flag."""
    lists = [o.name for o in options_of(tool) if o.many and o.type is str]
    texts = [(name, str(text)) for name in lists for text in values[name]]
    return [f"{name}: '{text}' begins with a -, like a flag; change it" for name, text in texts if text.startswith("-")]


def links_of(tool: LoraTool) -> FieldLinks:
    """Return the links to the fields of a tool's form."""
    return FieldLinks("tool", {o.name: o for o in options_of(tool)})


def hints(
    tool: LoraTool, values: Mapping[str, Any], allowed_paths: AllowedPaths, chosen: Container[str] = ()
) -> dict[str, Any]:
    """Return a hint for each input, values for options that are not `chosen` yet, and a name for the output."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in tool.inputs}
    ranks: list[int] = []
    for name, path in _input_files(tool, values):
        if len(seen[name]) == MOST_LORAS:
            continue
        hint = allowed(allowed_paths, name, path, partial(glance, look=_model if name in MODELS else _lora))
        seen[name].append({"text": hint.text, "good": hint.good, "family": hint.family})
        ranks += hint.ranks
    suggested = {name: value for name, value in tool.suggest(ranks).items() if name not in chosen}
    output = suggested_output(tool, {**values, **suggested}, allowed_paths) if tool.output else ""
    target = str(values.get(tool.output) or "") if tool.output else ""
    exists = bool(target) and not allowed_paths.problem(tool.output, target) and Path(target).is_file()
    return {"hints": seen, "output": output, "suggested": suggested, "replaces": exists}


def suggested_output(tool: LoraTool, values: Mapping[str, Any], allowed_paths: AllowedPaths) -> str:
    """Return a free name next to the main input: `folder/name-rank8.safetensors`; empty without an input."""
    inputs = [path for _, path in _input_files(tool, values)]
    if not inputs:
        return ""
    main_input = inputs[-1] if tool.inputs[0] == "model_org" else inputs[0]  # the model that was trained
    path = Path(main_input).expanduser()
    if allowed_paths.problem(tool.inputs[0], main_input) or not path.is_file():
        return ""
    for number in ("", *(f"-{n}" for n in range(2, 100))):
        target = path.with_name(f"{path.stem}{tool.suffix(values)}{number}.safetensors")
        if not target.exists():
            return str(target)
    return ""


def _lora(path: Path) -> Recognised:
    """Describe a LoRA file: its model, kind, rank, layers, precision, training and size."""
    file = _described(path)
    if isinstance(file, Recognised):
        return file
    summary = summarize(read_header(path)) if path.suffix in SAFETENSORS else None
    ranks = tuple(summary.ranks) if summary else ()
    if not file.variant.endswith("LoRA"):
        text = f"{file.variant or 'Unknown file'}, {size(file.bytes)}: not a LoRA"
        return Recognised(text, good=False, ranks=ranks)
    if summary is None:
        return Recognised(f"{file.variant}, {size(file.bytes)}", good=True, family=file.family)
    kind = file.variant.removesuffix("LoRA") + summary.kind
    return Recognised(f"{kind}, {summary.text()}, {size(file.bytes)}", good=True, family=file.family, ranks=ranks)


def _model(path: Path) -> Recognised:
    """Describe a model file."""
    file = _described(path)
    if isinstance(file, Recognised):
        return file
    if file.variant.endswith("LoRA"):
        return Recognised(f"{file.variant}: not a model", good=False)
    readable = file.family in names()
    words = ", ".join(filter(None, (file.variant or "Unknown file", file.precision, size(file.bytes))))
    text = words if readable else f"{words}: cannot be read by this tool"
    return Recognised(text, good=readable, family=file.family)


def _described(path: Path) -> ModelFile | Recognised:
    """Return the kind of a file, or why it cannot be read."""
    if problem := input_problem("", str(path)).partition(": ")[2]:
        return Recognised(problem.replace(f"file not found: '{path}'", "There is no such file"), good=False)
    file = describe(path)
    return Recognised(file.problem.replace(f"'{path}'", "This file"), good=False) if file.problem else file


def metadata_entries(path: str) -> dict[str, str]:
    """Return the metadata of a file. Raises ValueError, one sentence."""
    file = Path(path)
    if problem := input_problem("model", path):
        raise ValueError(problem)
    if file.suffix not in SAFETENSORS:
        raise ValueError(f"model: '{path}' has no metadata; choose a .safetensors file")
    return dict(read_header(file).metadata)


class LoraToolJob(ToolJob):
    """The single LoRA tool job of this GUI. It computes on the CPU, also during a training."""

    name = "lora-tool"
    busy_sentence = "Another LoRA tool is still running: stop it or wait for it to finish"
    uses_gpu = False
    tool: LoraTool | None = None
    """Of the current or last job."""

    def start(self, tool: LoraTool, values: Mapping[str, Any]) -> None:
        """Start now. Raises ValueError, one sentence."""
        self.begin(command(tool, values))
        self.tool = tool


def command(tool: LoraTool, values: Mapping[str, Any]) -> list[str]:
    """Return the command line of a tool with these values; defaults are left out."""
    return [sys.executable, "-m", f"sd_scripts.tools.{tool.script}", *flags_of(options_of(tool), values)]


def flags_of(options: Sequence[Option], values: Mapping[str, Any]) -> list[str]:
    """Return the flags for the values that are not the defaults of these options."""
    return setting_flags({o.name: values[o.name] for o in options if values[o.name] not in (None, o.default)})


def merged_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return models, ratios and lbws from rows of {path, ratio, lbw}; rows without a path are left out."""
    with_path = [row for row in rows if str(row.get("path") or "").strip()]
    lbws = [str(row.get("lbw") or "").strip() or "[]" for row in with_path]
    return {
        "models": [str(row["path"]).strip().strip('"') for row in with_path],
        "ratios": [row.get("ratio", 1.0) for row in with_path],
        "lbws": lbws if any(lbw != "[]" for lbw in lbws) else [],
    }


def takes_rows(tool: LoraTool) -> bool:
    return MergedOptions in tool.groups
