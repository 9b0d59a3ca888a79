"""The prompts of sample pictures, from a .txt, .toml or .json file."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, kw_only=True)
class SamplePrompt:
    """One picture to make. The defaults are those of Stable Diffusion; other families read files with their own."""

    prompt: str = ""
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    seed: int | None = None
    steps: int = 30
    scale: float = 7.5
    """Classifier-free guidance."""
    guidance: float = 3.5
    """The guidance that FLUX.1 dev is told."""
    sampler: str | None = None
    """None: sample_sampler."""


MOST_STEPS = 1000
LARGEST = 2**63 - 1
"""Of a seed."""

FIELDS: dict[str, tuple[str, type]] = {
    "prompt": ("prompt", str),
    "negative_prompt": ("negative_prompt", str),
    "width": ("width", int),
    "height": ("height", int),
    "seed": ("seed", int),
    "sample_steps": ("steps", int),
    "scale": ("scale", float),
    "guidance_scale": ("guidance", float),
    "sample_sampler": ("sampler", str),
}
"""Key of a .toml or .json file -> field and type."""

WORD, WHOLE, NUMBER = r" (.+)", r" (\d+)", r" (\d+\.?\d*|\.\d+)"
LINE_OPTIONS: tuple[tuple[str, str], ...] = (
    ("w" + WHOLE, "width"),
    ("h" + WHOLE, "height"),
    ("d" + WHOLE, "seed"),
    ("s" + WHOLE, "sample_steps"),
    ("l" + NUMBER, "scale"),
    ("g" + NUMBER, "guidance_scale"),
    ("n" + WORD, "negative_prompt"),
    ("ss" + WORD, "sample_sampler"),
)
"""What may stand after " --" in a line, and the key that it sets."""


def read_prompts(path: Path, defaults: SamplePrompt) -> list[SamplePrompt]:
    """All prompts of a file; what one leaves open is as in `defaults`.

    Raises ValueError naming sample_prompts if the file is not there, cannot be read, or holds no prompt.
    """
    readers = {".txt": _read_lines, ".toml": _read_toml, ".json": _read_json}
    if path.suffix not in readers:
        raise ValueError(f"sample_prompts: '{path}' is not a .txt, .toml or .json file")
    try:
        found = readers[path.suffix](path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, not TOML, not JSON, not the right shape
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error}") from error
    prompts = [_filled(keys, defaults, f"'{path}', prompt {number}") for number, keys in enumerate(found, 1)]
    if not prompts:
        raise ValueError(f"sample_prompts: there is no prompt in '{path}'; write one on each line")
    return prompts


def line_keys(line: str) -> dict[str, Any]:
    """`a cat --w 768 --n bad` -> {"prompt": "a cat", "width": 768, "negative_prompt": "bad"}.

    As people know it: an unknown or empty option is dropped, and the prompt itself may be read as one ("d 12 monkeys"
    sets the seed too).
    """
    parts = line.strip().split(" --")
    keys: dict[str, Any] = {"prompt": parts[0]}
    for part in parts:
        for pattern, key in LINE_OPTIONS:
            if found := re.match(pattern, part, re.IGNORECASE):
                keys[key] = FIELDS[key][1](found[1].strip())
                break
    if "sample_steps" in keys:
        keys["sample_steps"] = min(max(keys["sample_steps"], 1), MOST_STEPS)
    return keys


def _read_lines(text: str) -> list[dict[str, Any]]:
    lines = (line.strip() for line in text.splitlines())
    return [line_keys(line) for line in lines if line and not line.startswith("#")]


def _read_toml(text: str) -> list[dict[str, Any]]:
    """[prompt] holds what all share, each [[prompt.subset]] one picture."""
    shared = tomllib.loads(text).get("prompt")
    if not isinstance(shared, dict) or not isinstance(shared.get("subset"), list):
        raise ValueError("it has no [[prompt.subset]]")
    return [{**shared, **subset} for subset in shared["subset"]]


def _read_json(text: str) -> list[dict[str, Any]]:
    """A list of objects; a line of text as in a .txt file may stand for one."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(entry, dict | str) for entry in found):
        raise ValueError("it is not a list of prompts")
    return [line_keys(entry) if isinstance(entry, str) else entry for entry in found]


def _filled(keys: Mapping[str, Any], defaults: SamplePrompt, place: str) -> SamplePrompt:
    fields: dict[str, Any] = {}
    for key, value in keys.items():
        if key not in FIELDS or value is None:
            continue
        name, kind = FIELDS[key]
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"sample_prompts: {place}: {key} is {value!r}, which is not {_KINDS[kind]}")
        if type(value) is int and abs(value) > LARGEST:
            raise ValueError(f"sample_prompts: {place}: {key} is {value}, which is more than 63 bits hold")
        fields[name] = value
    return replace(defaults, **fields)


_KINDS = {str: "text", int: "a whole number", float: "a number"}
