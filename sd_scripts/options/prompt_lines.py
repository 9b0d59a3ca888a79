"""The prompts of sample pictures, from a .txt, .toml or .json file, and what each of them means."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sd_scripts.options.spec import ALL_FAMILIES, Families

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


SAMPLE_DEFAULTS = {"sdxl": SamplePrompt(), "flux": SamplePrompt(steps=20, scale=1.0)}
"""Family -> what a prompt leaves open."""
SIDE_MULTIPLES = {"sdxl": 8, "flux": 16}
"""Family -> what the sides of its pictures are multiples of."""
LEAST_SIDE = 64
MOST_STEPS = 1000
LARGEST = 2**63 - 1
"""Of a seed."""
KINDS = (".txt", ".toml", ".json")

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
VALUES = {WORD: "a text", WHOLE: "a whole number", NUMBER: "a number"}


@dataclass(frozen=True)
class LineOption:
    """What may stand after " --" in a line."""

    letters: str
    value: str
    """Pattern of what follows."""
    key: str
    """What it sets."""
    label: str
    example: str
    help: str
    families: Families = ALL_FAMILIES
    """Where it has an effect."""

    def match(self, part: str) -> "re.Match[str] | None":
        return re.match(self.letters + self.value, part, re.IGNORECASE)


LINE_OPTIONS = (
    LineOption("w", WHOLE, "width", "width", "1024", "Width in pixels"),
    LineOption("h", WHOLE, "height", "height", "1024", "Height in pixels"),
    LineOption("d", WHOLE, "seed", "seed", "1", "The same noise each time, to compare"),
    LineOption("s", WHOLE, "sample_steps", "steps", "30", "Steps of the sampler"),
    LineOption(
        "l", NUMBER, "scale", "scale", "5", "How strongly the prompt is followed against the negative one; 1 is off"
    ),
    LineOption("g", NUMBER, "guidance_scale", "guidance", "3.5", "The guidance that FLUX.1 dev is told", ("flux",)),
    LineOption("n", WORD, "negative_prompt", "without", "blurry, low quality", "What should not be seen"),
    LineOption("ss", WORD, "sample_sampler", "sampler", "euler_a", "Sampler of this picture", ("sdxl",)),
)


@dataclass(frozen=True)
class Entry:
    """What a file says of one picture."""

    keys: dict[str, Any]
    dropped: tuple[str, ...] = ()
    """What it says without any effect, in words."""


def read_prompts(path: Path, defaults: SamplePrompt) -> list[SamplePrompt]:
    """All prompts of a file; what one leaves open is as in `defaults`.

    Raises ValueError naming sample_prompts if the file is not there, cannot be read, or holds no prompt.
    """
    check_kind(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error}") from error
    return [prompt for prompt, _ in prompts_in(text, path, defaults)]


def check_kind(path: Path) -> None:
    """Raises ValueError for a file whose name does not tell how it is written."""
    if path.suffix not in KINDS:
        raise ValueError(f"sample_prompts: '{path}' is not a .txt, .toml or .json file")


def prompts_in(text: str, path: Path, defaults: SamplePrompt) -> list[tuple[SamplePrompt, Entry]]:
    """The prompts in the text of a file of this name, each with what the file says of it. Raises as read_prompts."""
    try:
        entries = READERS[path.suffix](text)
    except ValueError as error:  # not TOML, not JSON, not the right shape
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error}") from error
    if not entries:
        raise ValueError(f"sample_prompts: there is no prompt in '{path}'; write one on each line")
    places = (f"'{path}', prompt {number}" for number in range(1, len(entries) + 1))
    return [(_filled(entry.keys, defaults, place), entry) for entry, place in zip(entries, places, strict=False)]


def size_of(prompt: SamplePrompt, multiple: int) -> tuple[int, int]:
    """Height and width in pixels, rounded down to what the family can make."""
    height, width = (max(LEAST_SIDE, side - side % multiple) for side in (prompt.height, prompt.width))
    return height, width


def line_keys(line: str) -> dict[str, Any]:
    """`a cat --w 768 --n bad` -> {"prompt": "a cat", "width": 768, "negative_prompt": "bad"}.

    As people know it: an unknown or empty option is dropped, and the prompt itself may be read as one ("d 12 monkeys"
    sets the seed too).
    """
    parts = line.strip().split(" --")
    keys: dict[str, Any] = {"prompt": parts[0]}
    for part in parts:
        for option in LINE_OPTIONS:
            if found := option.match(part):
                keys[option.key] = FIELDS[option.key][1](found[1].strip())
                break
    if "sample_steps" in keys:
        keys["sample_steps"] = min(max(keys["sample_steps"], 1), MOST_STEPS)
    return keys


def dropped_words(line: str) -> Iterator[str]:
    """What a line says that line_keys does not take, or not as it may be meant."""
    first, *parts = line.strip().split(" --")
    letters = {option.letters: option for option in LINE_OPTIONS}
    for option in LINE_OPTIONS:
        if found := option.match(first):
            yield f"the prompt begins like the option --{option.letters}, so {option.key} is {found[1]} too"
            break
    for part in parts:
        word = part.split(" ")[0]
        known = letters.get(word.lower())
        found = known.match(part) if known else None
        if known is None:
            yield f"--{word} is not known"
        elif found is None:
            yield f"--{word} needs {VALUES[known.value]}"
        elif rest := part[found.end() :].strip():
            yield f"'{rest}' behind --{word} {found[1]} is not read: the prompt stands before the first option"


def _read_lines(text: str) -> list[Entry]:
    lines = (line.strip() for line in text.splitlines())
    return [_line(line) for line in lines if line and not line.startswith("#")]


def _line(line: str) -> Entry:
    return Entry(line_keys(line), tuple(dropped_words(line)))


def _object(keys: Mapping[str, Any]) -> Entry:
    return Entry(dict(keys), tuple(f"{key} is not known" for key in keys if key not in FIELDS))


def _read_toml(text: str) -> list[Entry]:
    """[prompt] holds what all share, each [[prompt.subset]] one picture."""
    shared = tomllib.loads(text).get("prompt")
    if not isinstance(shared, dict) or not isinstance(shared.get("subset"), list):
        raise ValueError("it has no [[prompt.subset]]")
    subsets = shared.pop("subset")
    if not all(isinstance(subset, dict) for subset in subsets):
        raise ValueError("its [[prompt.subset]] are no tables")
    return [_object({**shared, **subset}) for subset in subsets]


def _read_json(text: str) -> list[Entry]:
    """A list of objects; a line of text as in a .txt file may stand for one."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(entry, dict | str) for entry in found):
        raise ValueError("it is not a list of prompts")
    return [_line(entry) if isinstance(entry, str) else _object(entry) for entry in found]


READERS = dict(zip(KINDS, (_read_lines, _read_toml, _read_json), strict=True))


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
