"""The one door for configurations of kohya_ss: its LoRA tab's JSON to our options, and back."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kohya_gui.legacy_keys import (
    CANNOT,
    CANNOT_FOR,
    DEFAULTS,
    DEFAULTS_FOR,
    DROPPED,
    FAMILIES,
    OTHER_MODELS,
    RENAMED,
    RENAMED_FOR,
    SAME,
    SAME_FOR,
    TITLES,
    ZERO_IS_UNSET,
)
from kohya_gui.legacy_networks import FIELDS, FLUX_FIELDS, flux_fields, network_from, network_to
from kohya_gui.legacy_networks import is_on as _on
from sd_scripts.options.catalog import SCRIPTS, SDXL_LORA, Script
from sd_scripts.options.command_line import given_flags
from sd_scripts.options.settings import Remark, Settings
from sd_scripts.options.words import shell_words

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LegacyConfig:
    """What a file of kohya_ss says, in our words."""

    family: str
    values: Values
    """By option name; keys that neither kohya_ss nor we know are among them, for the file to keep."""
    prompts: str = ""
    """The text of the sample prompts, which kohya_ss keeps in the file itself."""
    remarks: tuple[Remark, ...] = ()


def read(path: Path) -> LegacyConfig:
    """A JSON file of kohya_ss. Raises ValueError, one sentence, if it is not there or not such a file."""
    try:
        legacy = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from error
    if not isinstance(legacy, dict):
        raise ValueError(f"{path} is not a configuration of kohya_ss: it holds no names with values")
    return from_kohya(legacy)


def from_kohya(legacy: Mapping[str, Any]) -> LegacyConfig:
    """Keys of kohya_ss's LoRA tab in our words; a key left out means what it meant there."""
    family = next((name for key, name in FAMILIES.items() if _on(legacy.get(key))), "sd15")
    cannot = {**CANNOT, **CANNOT_FOR.get(family, {})}
    said = [Remark(key, why) for key, why in cannot.items() if _number(legacy.get(key)) > 0]
    if all(script.family != family for script in SCRIPTS):
        said.insert(0, Remark("sdxl", f"is off: this is for {TITLES[family]}, which cannot be trained yet"))
    values = _same_meaning(legacy, family)
    for function in (_rates, _warmup, _length, _noise, _tracker):
        values |= function(legacy)
    if family == "flux":
        values |= _flux_rates(legacy)
    network, lost = network_from(legacy, family)
    values |= network
    flags, unread = _additional(legacy, family)
    said += [*lost, *unread]
    schedule = str(values.get("lr_scheduler"))
    if values.get("lr_warmup_steps") and schedule in ("constant", "adafactor"):
        del values["lr_warmup_steps"]
        said.append(Remark("lr_warmup", f"left out, since the schedule {schedule} has no warm-up"))
    prompts = str(legacy.get("sample_prompts") or "").strip()
    if prompts:
        said.append(Remark("sample_prompts", "the prompts stood in the configuration; put them into a text file"))
    return LegacyConfig(family=family, values=values | flags, prompts=prompts, remarks=tuple(said))


def _same_meaning(legacy: Mapping[str, Any], family: str) -> Values:
    """Every key that is one option, and those that nobody knows."""
    given = {key: value for key, value in legacy.items() if value is not None}
    if "use_8bit_adam" in given and not given.get("optimizer"):
        given["optimizer"] = "AdamW8bit" if _on(given["use_8bit_adam"]) else "AdamW"
    values: Values = {}
    defaults = {**DEFAULTS, **DEFAULTS_FOR.get(family, {})}
    renamed = {**RENAMED, **RENAMED_FOR.get(family, {})}
    for key, value in {**defaults, **given}.items():
        if is_dropped(key, family) or (key in ZERO_IS_UNSET and _number(value) == 0):
            continue
        if value == "" and isinstance(defaults.get(key, ""), str):
            continue  # an empty text field is unset
        values[renamed.get(key, key)] = defaults[key] if value == "" else value
    for key in ("optimizer_args", "lr_scheduler_args"):
        if isinstance(values.get(key), str):
            values[key] = _arguments(values[key])
    if values.get("save_model_as", "safetensors") not in ("safetensors", "ckpt"):
        values["save_model_as"] = "safetensors"
    if "resume_from_huggingface" in values:  # a text field there
        values["resume_from_huggingface"] = not _off(values["resume_from_huggingface"])
    return values


def is_dropped(key: str, family: str) -> bool:
    """Whether a key is no option by itself in a file for this family."""
    if key in RENAMED_FOR.get(family, {}) or key in SAME_FOR.get(family, ()):
        return False
    elsewhere = key in FAMILIES or key in FIELDS or key in FLUX_FIELDS or key in CANNOT
    of_others = any(key in names for names in SAME_FOR.values()) or key.startswith(OTHER_MODELS)
    return elsewhere or of_others or key in DROPPED


def _rates(legacy: Mapping[str, Any]) -> Values:
    """A rate of 0 said: do not train this part. Both at 0 said: learning_rate for all."""
    text, unet = (_number(_of(legacy, key)) for key in ("text_encoder_lr", "unet_lr"))
    return {
        "text_encoder_lr": [text, text] if text else [],
        "unet_lr": unet or None,
        "network_train_unet_only": bool(unet and not text),
        "network_train_text_encoder_only": bool(text and not unet),
    }


def _flux_rates(legacy: Mapping[str, Any]) -> Values:
    """T5 has a rate of its own, where one is set; the timesteps of SDXL, all of which are the default, say nothing."""
    text, t5 = _number(_of(legacy, "text_encoder_lr")), _number(legacy.get("t5xxl_lr"))
    rates: Values = {"text_encoder_lr": [text, t5], "network_train_unet_only": False} if t5 else {}
    return rates | ({"max_timestep": None} if _number(_of(legacy, "max_timestep")) == 1000 else {})


def _warmup(legacy: Mapping[str, Any]) -> Values:
    steps, percent = _number(legacy.get("lr_warmup_steps")), _number(_of(legacy, "lr_warmup"))
    return {"lr_warmup_steps": int(steps) if steps else percent / 100}


def _length(legacy: Mapping[str, Any]) -> Values:
    """Steps, where they are given; 0 steps meant: as many as the epochs take."""
    steps, epochs = _number(_of(legacy, "max_train_steps")), _number(legacy.get("max_train_epochs"))
    if not steps and not epochs:
        epochs = _number(_of(legacy, "epoch"))
    return {"max_train_steps": int(steps) or 1600, "max_train_epochs": int(epochs) or None}


def _noise(legacy: Mapping[str, Any]) -> Values:
    """Of the two kinds of noise only the chosen one counts."""
    multires = ("multires_noise_iterations", "multires_noise_discount")
    original = ("noise_offset", "noise_offset_random_strength", "adaptive_noise_scale")
    other = original if _of(legacy, "noise_offset_type") == "Multires" else multires
    off: Values = dict.fromkeys(other)
    off |= {"multires_noise_discount": 0.3} if other is multires else {"noise_offset_random_strength": False}
    return off


def _tracker(legacy: Mapping[str, Any]) -> Values:
    wandb = legacy.get("log_with") in ("wandb", "all") or str(legacy.get("use_wandb")) == "True"
    named = legacy.get("wandb_run_name") or (_of(legacy, "output_name") if wandb else None)
    return {"wandb_run_name": named, **({"log_with": legacy.get("log_with") or "wandb"} if wandb else {})}


def _additional(legacy: Mapping[str, Any], family: str) -> tuple[Values, list[Remark]]:
    """Flags typed into the field for more parameters."""
    script = next((script for script in SCRIPTS if script.family == family), SDXL_LORA)
    try:
        flags = given_flags(script, shell_words(str(legacy.get("additional_parameters") or "")))
    except ValueError as error:
        return {}, [Remark("additional_parameters", f"left out: {line}") for line in str(error).splitlines()]
    return {name: value for name, value in flags.items() if name not in ("config_file", "output_config")}, []


def to_kohya(settings: Settings, script: Script) -> tuple[Values, list[Remark]]:
    """Our settings as kohya_ss's LoRA tab keeps them, and what has no place there. Secrets stay out."""
    values = settings.values()
    family, flux = script.family, script.family == "flux"
    names = {option: old for old, option in RENAMED.items() if old != "lora_network_weights"}
    names |= {option: old for old, option in RENAMED_FOR.get(family, {}).items()}
    names |= {name: name for name in SAME | SAME_FOR.get(family, frozenset()) if not settings.options[name].secret}
    ours = values["network_module"] in (None, "networks.lora")
    legacy, lost = network_to(
        "networks.lora_flux" if flux and ours else values["network_module"], values["network_args"]
    )
    if flux:
        legacy |= flux_fields(values)
        legacy["t5xxl_lr"] = ([*values["text_encoder_lr"], 0, 0])[1]
    legacy |= {old: _plain(values[name]) for name, old in names.items()}
    legacy |= _rates_back(values) | _warmup_back(values["lr_warmup_steps"])
    legacy["noise_offset_type"] = "Multires" if values["multires_noise_iterations"] else "Original"
    legacy["max_token_length"] = values["max_token_length"] or 75
    legacy["clip_skip"] = values["clip_skip"] or 1
    legacy["xformers"] = "sdpa"
    legacy |= {key: of == family for key, of in FAMILIES.items() if key != "sdxl_checkbox"}
    placed = {*names, "network_module", "network_args", "lr_warmup_steps", "text_encoder_lr", "unet_lr"}
    placed |= {"network_train_unet_only", "network_train_text_encoder_only", *(FLUX_FIELDS if flux else ())}
    lost += [Remark(name, "has no place in a file of kohya_ss") for name in settings.changed() if name not in placed]
    return {**settings.unknown, **legacy}, lost


def _rates_back(values: Values) -> Values:
    text = values["text_encoder_lr"][0] if values["text_encoder_lr"] else values["learning_rate"]
    unet = values["learning_rate"] if values["unet_lr"] is None else values["unet_lr"]
    return {
        "text_encoder_lr": 0 if values["network_train_unet_only"] else text,
        "unet_lr": 0 if values["network_train_text_encoder_only"] else unet,
    }


def _warmup_back(steps: float) -> Values:
    return (
        {"lr_warmup": 0, "lr_warmup_steps": steps} if steps >= 1 else {"lr_warmup": steps * 100, "lr_warmup_steps": 0}
    )


def _plain(value: Any) -> Any:
    """kohya_ss has no lists and no null: words with spaces between, empty and 0."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else value


def _of(legacy: Mapping[str, Any], key: str) -> Any:
    value = legacy.get(key)
    return DEFAULTS.get(key) if value is None else value


def _off(value: Any) -> bool:
    return str(value).strip().lower() in ("", "false", "0", "none")


def _number(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0


def _arguments(text: str) -> list[str]:
    """`a=1 "b=2" betas=(0.9, 0.99)` -> three arguments; kohya_ss itself breaks the last one at its space."""
    words = re.findall(r"""(?:[^\s(\["]|\([^)]*\)|\[[^\]]*\]|"[^"]*")+""", text)
    return [word.replace('"', "").replace(" ", "") for word in words]
