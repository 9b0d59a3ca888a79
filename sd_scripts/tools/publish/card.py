"""The model card of a run, as the Hugging Face Hub shows it: Markdown that begins with metadata in YAML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.model_file import is_hub_id
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.tools.publish.trained import Trained

IMAGES = "images"
"""Folder of the samples in the repository."""
KINDS = {"lora": "LoRA", "full": "Model", "textual_inversion": "Embedding"}
TAGS = {"lora": ("lora", "template:sd-lora"), "full": (), "textual_inversion": ("textual_inversion",)}
SHOWN = (
    *("resolution", "train_batch_size", "gradient_accumulation_steps", "learning_rate", "unet_lr", "text_encoder_lr"),
    *("embedding_lr", "optimizer_type", "lr_scheduler", "lr_warmup_steps", "network_module", "network_dim"),
    *("network_alpha", "network_args", "num_vectors_per_token", "mixed_precision", "min_snr_gamma", "noise_offset"),
    *("timestep_sampling", "discrete_flow_shift", "model_prediction_type", "guidance_scale"),
)
"""Options in the table of settings; none names a file, a folder or an account."""


def make_card(trained: Trained) -> str:
    """Return the card; its author edits it before it is uploaded."""
    body = "\n".join(_body(trained)).rstrip()
    return f"---\n{_yaml(_metadata(trained))}---\n\n{body}\n"


def base_model(trained: Trained) -> str:
    """Return the base model's name on the Hub; for a file, the usual base model of its family, or of the variant
    that the trained file shows."""
    name = trained.settings[ModelOptions].pretrained_model_name_or_path or ""
    if is_hub_id(name) and not Path(name).exists():
        return name
    architecture = trained.metadata.get("modelspec.architecture", "").partition("/")[0]
    return trained.family.hub.variants.get(architecture, trained.family.hub.model)


def image_name(number: int, file: Path) -> str:
    """Return the path of a sample in the repository."""
    return f"{IMAGES}/sample-{number + 1}{file.suffix}"


def _title(trained: Trained) -> str:
    settings = trained.settings
    return settings[MetadataOptions].metadata_title or settings[SavingOptions].output_name or trained.file.stem


def _metadata(trained: Trained) -> dict[str, Any]:
    """Return the metadata that the Hub reads, without unknown values."""
    method = trained.settings.script.method
    own = trained.settings[MetadataOptions]
    task = _task(trained)
    tags = [task, "diffusers", *TAGS[method], *trained.family.hub.tags]
    tags += [tag.strip() for tag in (own.metadata_tags or "").split(",") if tag.strip()]
    base = base_model(trained)
    words = trained.trigger_words
    widget = [
        {"text": sample.note or "-", "output": {"url": image_name(number, sample.path)}}
        for number, sample in enumerate(trained.samples)
    ]
    found = {
        "base_model": base,
        "base_model_relation": ("finetune" if method == "full" else "adapter") if base else "",
        "instance_prompt": ", ".join(words),
        "license": own.metadata_license,
        "pipeline_tag": task,
        "tags": list(dict.fromkeys(tags)),
        "widget": widget,
    }
    return {name: value for name, value in found.items() if value}


def _task(trained: Trained) -> str:
    """Return the task of the model, as the Hub names it."""
    if trained.family.has("control_images"):
        return "image-to-image"
    only_images = bool(trained.samples) and all(sample.media == "image" for sample in trained.samples)
    return "text-to-video" if trained.family.has("clips") and not only_images else "text-to-image"


def _body(trained: Trained) -> Iterator[str]:
    settings = trained.settings
    facts = trained.state.facts
    kind = KINDS[settings.script.method]
    own = settings[MetadataOptions]
    yield from (f"# {_title(trained)}", "")
    yield from (own.metadata_description or f"{kind} for {trained.family.title}.", "")
    if trained.samples:
        yield from ("<Gallery />", "")
    yield from ("## Use", "")
    if words := trained.trigger_words:
        yield from (f"Trigger words: {', '.join(f'`{word}`' for word in words)}", "")
    files = ", ".join(f"[{file.name}]({file.name})" for file in trained.files)
    yield from (f"Download {files}.", "")
    if own.metadata_usage_hint:
        yield from (own.metadata_usage_hint, "")
    yield from ("## Training", "", "| setting | value |", "|---|---|")
    changed = settings.changed()
    rows = {
        "base model": Path(settings[ModelOptions].pretrained_model_name_or_path or "").name,
        "steps": trained.state.step or "",
        "images": facts.get("images", ""),
        "seed": facts.get("seed", ""),
        **{name: changed[name] for name in SHOWN if name in changed},
    }
    yield from (f"| {name} | {_cell(value)} |" for name, value in rows.items() if value not in ("", None, []))


def _cell(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _yaml(values: dict[str, Any]) -> str:
    """Return the metadata as YAML; texts are in quotation marks, as in JSON, which is valid YAML."""
    lines: list[str] = []
    for name, value in values.items():
        if name == "widget":
            lines.append("widget:")
            for each in value:
                lines += [f"- text: {_text(each['text'])}", "  output:", f"    url: {_text(each['output']['url'])}"]
        elif isinstance(value, list):
            lines += [f"{name}:", *(f"- {_text(each)}" for each in value)]
        else:
            lines.append(f"{name}: {_text(value)}")
    return "".join(f"{line}\n" for line in lines)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
