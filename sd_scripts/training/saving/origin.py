"""Origin of a state: the settings, base model and data it was trained with. Resume reports changes since then."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.data.plan.dataset import DataPlan, Item
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CacheOptions, ValidationOptions
from sd_scripts.options.full import FusedOptions, ModelFileOptions
from sd_scripts.options.generating.sampling import SampleOptions
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.options.logging import LoggingOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions
from sd_scripts.options.optimization.schedule_table import SCHEDULES
from sd_scripts.options.run import CudaOptions, RunOptions
from sd_scripts.options.saving import HuggingFaceOptions, LoraFileOptions, SavingOptions
from sd_scripts.options.training import DistributedOptions, ResumeOptions
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups, Settings

FLAG = "resume_changed_model"

GROUPS_WITHOUT_EFFECT: Groups = (
    CompileOptions,
    CompileMoreOptions,
    CacheOptions,
    ValidationOptions,
    FusedOptions,
    ModelFileOptions,
    LaunchOptions,
    SlurmOptions,
    LoggingOptions,
    MetadataOptions,
    CudaOptions,
    RunOptions,
    SampleOptions,
    HuggingFaceOptions,
    LoraFileOptions,
    SavingOptions,
    DistributedOptions,
    ResumeOptions,
)
WITHOUT_EFFECT = {o.name for group in GROUPS_WITHOUT_EFFECT for o in each_option(group)} | {
    "blocks_to_swap",
    "cpu_offload_checkpointing",
    "gradient_checkpointing",
    "lowram",
    "max_data_loader_n_workers",
    "max_train_epochs",
    "max_train_steps",
    "mem_eff_attn",
    "network_weights",
    "persistent_data_loader_workers",
    "sdpa",
    "seed",
    "tokenizer_cache_dir",
    "xformers",
}
"""Options that resume does not compare: they do not affect the trained weights, or are reported elsewhere."""
SCHEDULE = {o.name for o in each_option(LrSchedulerOptions)}
BASE_MODEL = ("pretrained_model_name_or_path", "base_weights", "training_adapter")
"""Options that name the weights under the trained ones."""
OTHER_MODELS = ("vae", "clip_l", "t5xxl", "ae")
MODEL_FILES = (".safetensors", ".ckpt", ".bin", ".json")
SAMPLES, SAMPLE_BYTES = 64, 2**16
"""How many pieces of a model file are hashed: training changes all of a model, and reading it whole takes a minute."""


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """The settings and models that a state was trained with."""

    settings: dict[str, Any]
    models: dict[str, str]
    """Option -> fingerprint of the files that it names."""


@dataclass(frozen=True, kw_only=True)
class Origin(ModelOrigin):
    """The same, with the dataset and the length of the run."""

    images: str
    captions: str
    """Digests of the dataset."""
    image_count: int
    max_steps: int

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Origin":
        """Return the origin in a state's JSON. Raises TypeError if it is invalid."""
        origin = cls(**values)
        if not isinstance(origin.settings, dict) or not isinstance(origin.models, dict):
            raise TypeError("the origin has no settings")
        return origin


def model_origin_of(settings: Settings) -> ModelOrigin:
    """Return the part of a run's origin that does not depend on its data. Model files are hashed in part; nothing is
    loaded."""
    options = settings.options
    values = settings.values()
    models = [name for name in (*BASE_MODEL, *OTHER_MODELS) if name in options]
    named = {name: options[name].located(values[name]) for name in models}
    return ModelOrigin(
        settings=plain({name: value for name, value in values.items() if not options[name].secret}),
        models={name: fingerprint(value) for name, value in named.items() if value},
    )


def origin_of(model: ModelOrigin, plan: DataPlan, max_steps: int) -> Origin:
    """Return the origin of a run, whose `model` model_origin_of returned."""
    return Origin(
        **vars(model),
        images=_digest([_name(i), *i.size, i.repeats, *map(_name, i.controls)] for i in plan.items),
        captions=_digest([i.caption] for i in plan.items),
        image_count=len(plan.items),
        max_steps=max_steps,
    )


def _name(item: Item) -> str:
    *_, folder, name = ("", *item.path.parts)
    return f"{folder}/{name}"


def plain(value: Any) -> Any:
    """Return the value as JSON would read it back."""
    return json.loads(json.dumps(value, default=str))


def fingerprint(named: str | list[str]) -> str:
    """Return a digest of the files that an option names: their sizes and pieces. A hub id stands for itself."""
    if isinstance(named, list):
        return "+".join(map(fingerprint, named))
    path = Path(named)
    if path.is_file():
        return _digest_of_file(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in MODEL_FILES and file.is_file())
        return _digest([str(file.relative_to(path)), _digest_of_file(file)] for file in files)
    return named


def changes(then: Origin, now: Origin, source: str) -> Iterator[str]:
    """Yield a sentence for each difference that applies from now on. `source` is the option that names the dataset."""
    for name, value in now.settings.items():
        if name in WITHOUT_EFFECT or name in (*BASE_MODEL, *OTHER_MODELS, "network_alpha"):
            continue
        before = then.settings.get(name, value)
        if before != value:
            yield f"{name}: {_shown(before)} in the state, {_shown(value)} now applies"
    schedule = str(now.settings.get("lr_scheduler"))
    if then.max_steps != now.max_steps and schedule in SCHEDULES and SCHEDULES[schedule].spans_run:
        yield (
            f"lr_scheduler: the saved run was to end at step {then.max_steps}, this run ends at step "
            f"{now.max_steps}, and {schedule} is spread over all of it"
        )
    for name in OTHER_MODELS:
        if name in then.models and then.models[name] != now.models.get(name, then.models[name]):
            yield f"{name}: differs from the file in the saved state; the new file is used"
    if then.images != now.images:
        yield (
            f"{source}: the dataset has changed since the state was saved ({then.image_count} → {now.image_count} "
            "images); the current images are used"
        )
    elif then.captions != now.captions:
        yield f"{source}: captions have changed since the state was saved; the current captions are used"


def changed_models(then: ModelOrigin, now: ModelOrigin) -> Iterator[str]:
    """Yield a sentence for each change that changes the meaning of the trained weights."""
    for name in BASE_MODEL:
        before, after = ((it.models.get(name), it.settings.get(f"{name}_multiplier")) for it in (then, now))
        if before != after:
            said = f"{_shown(then.settings.get(name))} in the state, {_shown(now.settings.get(name))} now"
            yield f"{name}: the state was trained on a different base model ({said})"
    for name, before, after in _alphas(then.settings, now.settings):
        yield (
            f"{name}: {_shown(before)} in the state, {_shown(after)} now, which changes the strength of all "
            "trained weights"
        )


def _alphas(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if then.get("network_alpha") != now.get("network_alpha"):
        yield "network_alpha", then.get("network_alpha"), now.get("network_alpha")
    for name in ("conv_alpha", "rs_lora"):
        if then.get(name) != now.get(name):
            yield name, then.get(name), now.get(name)
    before, after = (_alpha_args(settings.get("network_args")) for settings in (then, now))
    if before != after:
        yield "network_args", before, after


def _alpha_args(args: Any) -> list[str]:
    listed = args if isinstance(args, list) else []
    return sorted(arg.replace(" ", "") for arg in listed if re.match(r"\w*alphas?\s*=", str(arg).strip()))


def _shown(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "unset"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _digest(rows: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row).encode(errors="surrogatepass"))
    return found.hexdigest()


def _digest_of_file(path: Path) -> str:
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(number * max(size - SAMPLE_BYTES, 0) // (SAMPLES - 1))
            found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()
