"""Convert kohya_ss configurations: the JSON of its training tabs to our options, and LoRA back."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohya_gui.kohya.legacy_keys import (
    COMBINED,
    COMBINED_METADATA,
    DREAMBOOTH,
    FAMILIES,
    FINETUNE,
    KOHYA_TABS,
    LORA,
    NO_EFFECT,
    OF_PAGE,
    PREFIXES,
    PREPARATION,
    RECORDS,
    TITLES,
    USUAL,
    ZERO_IS_UNSET,
    own_keys,
    record_of,
)
from kohya_gui.kohya.legacy_networks import FIELDS, network_from
from kohya_gui.tabs import TABS, Tab
from sd_scripts.families.cards.kohya import Converted, KohyaTab
from sd_scripts.families.cards.registry import cards
from sd_scripts.formats.documents import read_json
from sd_scripts.formats.words import shell_words
from sd_scripts.options.optimization.schedule_table import SCHEDULES
from sd_scripts.options.spec import Remark, truth
from sd_scripts.settings.catalog import FAMILY_TITLES, SCRIPTS
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.compat.legacy import READ_AS_UNSET

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LegacyConfig:
    """The contents of a kohya_ss file as our options."""

    family: str
    """Family of the model it trains, even one that no script here trains."""
    values: Values
    """By option name, including unknown keys, which are preserved."""
    prompts: str = ""
    """The sample prompts, which kohya_ss stores in the file itself."""
    remarks: tuple[Remark, ...] = ()


def read(path: Path) -> Values:
    """Read a kohya_ss JSON file as is. Raises ValueError, one sentence, if it is missing or something else."""
    legacy = read_json(path)
    if not isinstance(legacy, dict):
        raise ValueError(f"{path} is not a kohya_ss configuration: it must be a JSON object")
    return legacy


def tab_of(legacy: Mapping[str, Any]) -> Tab | None:
    """Return the tab that wrote a file, if its keys identify it."""
    for name, keys in KOHYA_TABS.items():
        if not keys.marks.union(*(own_keys(name, family).marks for family in RECORDS)).isdisjoint(legacy):
            return TABS[name]
    return None


def from_kohya(legacy: Mapping[str, Any], tab: str = "lora") -> LegacyConfig:
    """Convert the keys of a kohya_ss tab; a missing key gets the default it had there."""
    family = next((name for key, name in FAMILIES.items() if truth(legacy.get(key))), "sd15")
    keys = KOHYA_TABS[tab] | own_keys(tab, family)
    remarks = [Remark(key, reason) for key, reason in keys.cannot.items() if _asks(legacy.get(key))]
    remarks += _without_effect(legacy, family, tab)
    if title := not_trained(family):
        remarks.insert(0, Remark(next(iter(FAMILIES)), f"off: these settings are for {title}, which is not supported"))
    zeros = [key for key in ZERO_IS_UNSET if legacy.get(key) not in (None, "") and _number(legacy[key]) == 0]
    remarks += [Remark(key, READ_AS_UNSET) for key in zeros if _number(keys.defaults.get(key)) != 0]
    values = _same_meaning(legacy, family, tab, keys)
    for function in (_warmup, _length, _tracker):
        values |= function(legacy, keys)
    for meaning in MEANINGS[tab]:
        more_values, more_remarks = meaning(legacy, family)
        values |= more_values
        remarks += more_remarks
    unset = record_of(family).unset.items()
    values |= {key: None for key, number in unset if _number(_of(legacy, key, keys)) == number}
    flags, unread = _additional(legacy, family, TABS[tab].method)
    remarks += unread
    schedule = str(values.get("lr_scheduler"))
    if values.get("lr_warmup_steps") and schedule in SCHEDULES and not SCHEDULES[schedule].has_warmup:
        del values["lr_warmup_steps"]
        remarks.append(Remark("lr_warmup", f"left out: the scheduler {schedule} has no warmup"))
    prompts = str(legacy.get("sample_prompts") or "").strip()
    if prompts:
        text = "the prompts were in the configuration itself; save them to a text file"
        remarks.append(Remark("sample_prompts", text))
    return LegacyConfig(family=family, values=values | flags, prompts=prompts, remarks=tuple(remarks))


def not_trained(family: str) -> str:
    """Return the title of a model that kohya_ss trains but no script here does; empty for others."""
    return "" if any(script.family == family for script in SCRIPTS) else TITLES[family]


def _same_meaning(legacy: Mapping[str, Any], family: str, tab: str, keys: KohyaTab) -> Values:
    """Convert every key that maps to one option, plus unknown keys."""
    set_keys = {key: value for key, value in legacy.items() if value is not None}
    if "use_8bit_adam" in set_keys and not set_keys.get("optimizer"):
        set_keys["optimizer"] = "AdamW8bit" if truth(set_keys["use_8bit_adam"]) else "AdamW"
    values: Values = {}
    for key, value in {**keys.defaults, **set_keys}.items():
        if is_dropped(key, family, tab) or (key in ZERO_IS_UNSET and _number(value) == 0):
            continue
        if value == "" and isinstance(keys.defaults.get(key, ""), str):
            continue  # an empty text field is unset
        values[keys.renamed.get(key, key)] = keys.defaults[key] if value == "" else value
    for key in ("optimizer_args", "lr_scheduler_args"):
        if isinstance(values.get(key), str):
            values[key] = _arguments(values[key])
    if "resume_from_huggingface" in values:  # a text field there
        values["resume_from_huggingface"] = not _off(values["resume_from_huggingface"])
    return values


def is_dropped(key: str, family: str, tab: str = "lora") -> bool:
    """Return whether a key is not an option on its own in a file for this family."""
    own = own_keys(tab, family)
    if key in own.renamed or key in own.same:
        return False
    keys = KOHYA_TABS[tab]
    names = [FAMILIES, FIELDS, keys.cannot, keys.dropped, *(record.lora_fields for record in RECORDS.values())]
    for other in RECORDS:
        others_own = own_keys(tab, other)
        names += [others_own.same, others_own.renamed, others_own.dropped]
    return key.startswith(PREFIXES) or any(key in some for some in names)


def _without_effect(legacy: Mapping[str, Any], family: str, tab: str) -> Iterator[Remark]:
    """Yield a remark for each key that was changed and has no effect here."""
    record = record_of(family)
    title = FAMILY_TITLES.get(family) or TITLES.get(family, family)
    silent = {*COMBINED, *OF_PAGE, *COMBINED_METADATA, *PREPARATION, *FAMILIES, *FIELDS}
    silent |= {*KOHYA_TABS[tab].cannot, *own_keys(tab, family).cannot}  # reported already
    if tab == "lora" and record.network:
        silent |= {*record.text_rates, *record.lora_fields, "split_mode"}
    for key, value in legacy.items():
        if key in silent or not is_dropped(key, family, tab) or not _asks(value) or _is_usual(key, value):
            continue
        yield Remark(key, NO_EFFECT.get(key) or f"has no effect for {title}")


def _is_usual(key: str, value: Any) -> bool:
    usual = USUAL.get(key)
    return str(value) == str(usual) or (isinstance(usual, float) and _number(value) == usual)


Meaning = Callable[[Mapping[str, Any], str], Converted]
"""(keys of a file, its family) -> (option values, remarks)."""


def _rates(legacy: Mapping[str, Any], family: str) -> Converted:
    """Convert learning rates: 0 meant that a component is not trained, both 0 meant learning_rate for all."""
    unet = _number(_of(legacy, "unet_lr"))
    text = _number(_of(legacy, "text_encoder_lr"))
    other_text = [_number(legacy.get(key)) for key in record_of(family).text_rates]
    text_rates = [text, text] if text else []
    if any(other_text):
        text_rates = [text, *other_text]
    rates = {
        "text_encoder_lr": text_rates,
        "unet_lr": unet or None,
        "network_train_unet_only": bool(unet and not text_rates),
        "network_train_text_encoder_only": bool(text and not unet),
    }
    return rates, []


def _lora_file(legacy: Mapping[str, Any], family: str) -> Converted:
    is_known = legacy.get("save_model_as") in ("safetensors", "ckpt")
    return ({} if is_known else {"save_model_as": "safetensors"}), []


def _noise(legacy: Mapping[str, Any], family: str) -> Converted:
    """Keep only the chosen kind of noise; in the other tabs both count."""
    multires = ("multires_noise_iterations", "multires_noise_discount")
    original = ("noise_offset", "noise_offset_random_strength", "adaptive_noise_scale")
    other = original if _of(legacy, "noise_offset_type") == "Multires" else multires
    off: Values = dict.fromkeys(other)
    off |= {"multires_noise_discount": 0.3} if other is multires else {"noise_offset_random_strength": False}
    return off, []


def _text_encoders_by_rate(legacy: Mapping[str, Any], family: str) -> Converted:
    """Convert DreamBooth, which trained both text encoders if one of their rates was not 0."""
    rates = [_number(_of(legacy, key, DREAMBOOTH)) for key in RATES_OF_ENCODERS]
    return _text_encoders(any(rates), family)


def _text_encoders_by_switch(legacy: Mapping[str, Any], family: str) -> Converted:
    return _text_encoders(bool(truth(_of(legacy, "train_text_encoder", FINETUNE))), family)


def _text_encoders(are_trained: bool, family: str) -> Converted:
    if not any(card.name == family and card.has("trains_text") for card in cards()):
        return {}, []
    unset_rates = {} if are_trained else dict.fromkeys(RATES_OF_ENCODERS)
    return {"train_text_encoder": are_trained, **unset_rates}, []


def _model_file(legacy: Mapping[str, Any], family: str) -> Converted:
    """Convert save_model_as: "same as source model" is unset here; missing is safetensors, the default there."""
    chosen = legacy.get("save_model_as") or "safetensors"
    return {"save_model_as": None if str(chosen).startswith("same") else chosen}, []


def _metadata(legacy: Mapping[str, Any], family: str) -> Converted:
    """Convert the metadata file, which had its own folder and was rebuilt at each start."""
    folder = str(legacy.get("train_dir") or "").rstrip("/")
    if legacy.get("dataset_config") or not folder:
        return {}, []
    kind = "latent" if _of(legacy, "use_latent_files", FINETUNE) == "Yes" else "caption"
    name = _of(legacy, f"{kind}_metadata_filename", FINETUNE)
    remarks = []
    if any(truth(_of(legacy, key, FINETUNE)) for key in ("create_caption", "create_buckets")):
        remarks = [Remark("in_json", "not created at the start of a run; create it once under Dataset preparation")]
    return {"in_json": f"{folder}/{name}"}, remarks


def _steps_of_mirrored(legacy: Mapping[str, Any], family: str) -> Converted:
    mirrored = truth(legacy.get("flip_aug")) and _number(_of(legacy, "max_train_steps", FINETUNE))
    return {}, [Remark("max_train_steps", "used as given; kohya_ss halved it with flip_aug")] if mirrored else []


OF_COMMAND_LINE = ("config_file", "output_config", "plan", "json")
"""Flags that are not settings."""
RATES_OF_ENCODERS = ("learning_rate_te1", "learning_rate_te2")
MEANINGS: dict[str, tuple[Meaning, ...]] = {
    "lora": (_rates, _noise, _lora_file, network_from),
    "dreambooth": (_text_encoders_by_rate, _model_file),
    "finetune": (_text_encoders_by_switch, _model_file, _metadata, _steps_of_mirrored),
}
"""Converters for options that come from several keys, by tab."""


def _warmup(legacy: Mapping[str, Any], keys: KohyaTab) -> Values:
    steps = _number(legacy.get("lr_warmup_steps"))
    return {"lr_warmup_steps": int(steps) if steps else _number(_of(legacy, "lr_warmup", keys)) / 100}


def _length(legacy: Mapping[str, Any], keys: KohyaTab) -> Values:
    """Convert the length: steps if given; 0 steps meant that epochs decide."""
    steps = _number(_of(legacy, "max_train_steps", keys))
    epochs = _number(legacy.get("max_train_epochs"))
    if not steps and not epochs:
        epochs = _number(_of(legacy, "epoch", keys))
    return {"max_train_steps": int(steps) or 1600, "max_train_epochs": int(epochs) or None}


def _tracker(legacy: Mapping[str, Any], keys: KohyaTab) -> Values:
    uses_wandb = legacy.get("log_with") in ("wandb", "all") or str(legacy.get("use_wandb")) == "True"
    if not uses_wandb:
        return {"wandb_run_name": legacy.get("wandb_run_name") or None}
    name = legacy.get("wandb_run_name") or _of(legacy, "output_name", keys)
    return {"wandb_run_name": name, "log_with": legacy.get("log_with") or "wandb"}


def _additional(legacy: Mapping[str, Any], family: str, method: str) -> Converted:
    """Convert the flags in the field for additional parameters."""
    scripts = [script for script in SCRIPTS if script.method == method]
    script = next((script for script in scripts if script.family == family), scripts[0])
    try:
        flags = given_flags(script, shell_words(str(legacy.get("additional_parameters") or "")))
    except ValueError as error:  # an open quotation mark
        return {}, [Remark("additional_parameters", f"left out: {error}")]
    values = {name: value for name, value in flags.values.items() if name not in OF_COMMAND_LINE}
    return values, [Remark("additional_parameters", f"left out: {problem}") for problem in flags.problems]


def _of(legacy: Mapping[str, Any], key: str, keys: KohyaTab = LORA) -> Any:
    value = legacy.get(key)
    return keys.defaults.get(key) if value is None else value


def _asks(value: Any) -> bool:
    """Return whether a field requests something: a number above 0, a switch that is on, a text."""
    try:
        return float(value or 0) > 0
    except (TypeError, ValueError):
        return not _off(value)


def _off(value: Any) -> bool:
    return str(value).strip().lower() in ("", "false", "0", "none")


def _number(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0


def _arguments(text: str) -> list[str]:
    """Split `a=1 "b=2" betas=(0.9, 0.99)` into three arguments; kohya_ss itself splits the last one at its space."""
    words = re.findall(r"""(?:[^\s(\["]|\([^)]*(?:\)|$)|\[[^\]]*(?:\]|$)|"[^"]*(?:"|$))+""", text)
    return [word.replace('"', "").replace(" ", "") for word in words]
