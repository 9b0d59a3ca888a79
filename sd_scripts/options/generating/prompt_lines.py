"""Reads the prompts of sample images from a .txt, .toml or .json file."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sd_scripts.formats import documents
from sd_scripts.formats.images.control_images import why_no_clip, why_unreadable
from sd_scripts.options import spec
from sd_scripts.options.generating.sampling import SAMPLERS


@dataclass(frozen=True, kw_only=True)
class SamplePrompt:
    """An image to generate. The defaults are Stable Diffusion's; other families have their own."""

    prompt: str = ""
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    seed: int | None = None
    steps: int = 30
    scale: float = 7.5
    """Classifier-free guidance."""
    guidance: float = 3.5
    """Guidance embedded in a distilled model."""
    sampler: str | None = None
    """None means the option sample_sampler."""
    control_images: tuple[str, ...] = ()
    """Files of the control images, in order."""
    frames: int = 1
    """1: an image; more: a clip."""
    fps: float | None = None
    """Frames per second of the clip; None means the family's."""
    flow_shift: float | None = None
    """Shift of the timesteps; None means the family's."""
    start_image: str | None = None
    """File of the image that the clip begins with."""
    end_image: str | None = None
    """File of the image that the clip ends with."""
    control_clip: str | None = None
    """File, or folder of frames, of the clip that it follows."""

    @property
    def image_files(self) -> list[tuple[str, str]]:
        """The files of images and clips that it names, each with the key that does."""
        single = [(START.key, self.start_image), (END.key, self.end_image), (CONTROL_CLIP.key, self.control_clip)]
        return [(CONTROLS.key, name) for name in self.control_images] + [(key, name) for key, name in single if name]


MIN_SIDE, MAX_SIDE = 64, 8192
MAX_FRAMES, MAX_FPS, MAX_SHIFT = 2001, 240, 100
"""More frames than models generate together, and more in a second than screens show."""
MAX_STEPS = 999
"""The noise schedule has 1,000 timesteps, and some samplers begin one above the number of their steps."""
LARGEST_SEED = 2**63 - 1
MOST_DIGITS = 40
"""More do not make a number more wrong, and int reads no more than 4,300."""
NEW_SEED = -1
"""Asks for a new seed, as none does."""
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
    "control_image_path": ("control_images", str),
    "frame_count": ("frames", int),
    "fps": ("fps", float),
    "discrete_flow_shift": ("flow_shift", float),
    "cfg_scale": ("scale", float),
    "image_path": ("start_image", str),
    "end_image_path": ("end_image", str),
    "control_video_path": ("control_clip", str),
}
"""Key of a .toml or .json file of sd-scripts or musubi-tuner -> field and type."""
SEVERAL = ("control_image_path",)
"""Keys that take a list, too, and options that may be repeated in a line."""
RANGES: dict[str, tuple[float, float]] = {
    **{"width": (0, MAX_SIDE), "height": (0, MAX_SIDE), "sample_steps": (1, MAX_STEPS)},
    **{"frame_count": (1, MAX_FRAMES), "fps": (1, MAX_FPS), "discrete_flow_shift": (0.01, MAX_SHIFT)},
}
"""Key -> smallest and largest value. Sides below MIN_SIDE are raised to it."""

WORD, WHOLE, SEED, NUMBER = r" (.+)", r" ([0-9]+)", r" (-1|[0-9]+)", r" ([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
VALUES = {WORD: "a text", WHOLE: "a whole number", SEED: "a whole number or -1", NUMBER: "a number"}


@dataclass(frozen=True)
class LineOption:
    """An option that may follow " --" in a line."""

    letters: str
    value: str
    """Pattern of the value."""
    key: str
    """The key that it sets."""
    label: str
    example: str
    help: str
    needs: str = ""
    """The capability that a family needs for it to have an effect."""
    may_begin: bool = True
    """As in sd-scripts, a prompt that starts like the option sets it. Not for musubi-tuner's: "I see a cat" names no
    image."""

    def works_with(self, capabilities: Collection[str]) -> bool:
        """Whether it has an effect in a family with these capabilities."""
        return not self.needs or self.needs in capabilities

    def match(self, part: str) -> "re.Match[str] | None":
        found = re.match(self.letters + self.value, part, re.IGNORECASE)
        # digits of other writing systems do not make a number, and none is read in part
        return None if found and part[found.end() :][:1].isdecimal() else found


LINE_OPTIONS = (
    LineOption("w", WHOLE, "width", "width", "1024", "Width in pixels"),
    LineOption("h", WHOLE, "height", "height", "1024", "Height in pixels"),
    LineOption("d", SEED, "seed", "seed", "1", "Same noise every time, for comparison; -1 is new noise"),
    LineOption("s", WHOLE, "sample_steps", "steps", "30", "Sampling steps"),
    LineOption("l", NUMBER, "scale", "CFG scale", "5", "Strength of the prompt over the negative prompt; 1 is off"),
    LineOption("g", NUMBER, "guidance_scale", "guidance", "3.5", "Guidance of a distilled model", "guidance"),
    LineOption("n", WORD, "negative_prompt", "negative prompt", "blurry, low quality", "What to avoid in the image"),
    LineOption("ss", WORD, "sample_sampler", "sampler", "euler_a", "Sampler of this image", "noise_schedule"),
    LineOption(
        *("ci", WORD, "control_image_path", "control image", "/data/before.png"),
        "Control image, such as the one to edit; repeat it for several",
        "control_images",
    ),
    LineOption("f", WHOLE, "frame_count", "frames", "81", "Frames of the clip; 1 is an image", "clips", False),
    LineOption("fps", NUMBER, "fps", "frames per second", "16", "Frames per second of the clip", "clips", False),
    LineOption("fs", NUMBER, "discrete_flow_shift", "shift", "5", "Shift of the timesteps", "flow_shift", False),
    LineOption(
        *("i", WORD, "image_path", "start image", "/data/first.png"),
        *("Image that the clip begins with", "start_image", False),
    ),
    LineOption(
        *("ei", WORD, "end_image_path", "end image", "/data/last.png"),
        *("Image that the clip ends with", "end_image", False),
    ),
    LineOption(
        *("cn", WORD, "control_video_path", "control clip", "/data/poses.mp4"),
        *("Clip, or folder of frames, that the frames of this one follow", "control_clips", False),
    ),
)
SAMPLER, CONTROLS, FRAMES, FPS, _, START, END, CONTROL_CLIP = LINE_OPTIONS[-8:]
NOTHING = SamplePrompt()
IMAGE_OPTIONS = (CONTROLS, START, END, CONTROL_CLIP)
"""Options that name files of images and clips."""


@dataclass(frozen=True)
class Entry:
    """A prompt file's settings for one image."""

    keys: dict[str, Any]
    dropped: tuple[str, ...] = ()
    """Messages about settings without effect."""
    place: str = ""
    """Its position in the file: `line 3`, `prompt 2`."""


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """The prompts of a file, or why it cannot be read."""

    path: Path
    entries: Sequence[Entry] = ()
    unreadable: str = ""
    """A sentence that names sample_prompts; empty if there are entries."""

    def problems(self, capabilities: Collection[str]) -> list[str]:
        """Return every reason why a run of a family with these capabilities cannot generate samples from it, one
        sentence each."""
        if self.unreadable:
            return [self.unreadable]
        return [self.about(entry, why) for entry in self.entries for why in _problems(entry.keys, capabilities)]

    def remarks(self) -> list[str]:
        """Return a message for everything that has no effect, or an unexpected one."""
        return [self.about(entry, what) for entry in self.entries for what in entry.dropped]

    def prompts(self, defaults: SamplePrompt) -> list[SamplePrompt]:
        """Return all prompts; `defaults` fills in values that a prompt does not set. Raises ValueError naming
        sample_prompts if the file cannot be read or a value is wrong."""
        if self.unreadable:
            raise ValueError(self.unreadable)
        for entry in self.entries:
            if why := next(_problems(entry.keys), None):
                raise ValueError(self.about(entry, why))
        return [_filled(entry.keys, defaults) for entry in self.entries]

    def about(self, entry: Entry, sentence: str) -> str:
        """Return a sentence about an entry with its place in the file."""
        return f"sample_prompts: '{self.path}', {entry.place}: {sentence}"


def read_prompt_file(path: Path) -> PromptFile:
    """Read a file of prompts. It may be missing or broken, which PromptFile.unreadable reports."""
    try:
        return parse_prompts(_read_text(path), path)
    except ValueError as error:
        return PromptFile(path=path, unreadable=str(error))


def parse_prompts(text: str, path: Path) -> PromptFile:
    """Return the prompts in the text of a file of this name. Raises ValueError naming sample_prompts if there are none
    or the text cannot be parsed."""
    try:
        entries = READERS[path.suffix](text)
    except ValueError as error:  # not TOML, not JSON, not the right shape
        raise ValueError(f"sample_prompts: '{path}' cannot be read: {error}") from error
    if not entries:
        raise ValueError(f"sample_prompts: '{path}' has no prompts; write one per line")
    numbered = enumerate(entries, 1)
    placed = [entry if entry.place else replace(entry, place=f"prompt {number}") for number, entry in numbered]
    return PromptFile(path=path, entries=placed)


def _read_text(path: Path) -> str:
    check_kind(path)
    try:
        return documents.read_text(path)
    except ValueError as error:
        raise ValueError(f"sample_prompts: {error}") from error


def check_kind(path: Path) -> None:
    """Raise ValueError unless the extension identifies the format."""
    if path.suffix not in KINDS:
        raise ValueError(f"sample_prompts: '{path}' is not a .txt, .toml or .json file")


def prompt_of_line(line: str, defaults: SamplePrompt, capabilities: Collection[str]) -> SamplePrompt:
    """Return the prompt of one line for a family with these capabilities. Raises ValueError, one sentence."""
    keys = line_keys(line)
    if why := next(_problems(keys, capabilities), None):
        raise ValueError(why)
    return _filled(keys, defaults)


def size_of(prompt: SamplePrompt, multiple: int) -> tuple[int, int]:
    """Return height and width in pixels, rounded down to a size that the family can generate."""
    height, width = (max(MIN_SIDE, side - side % multiple) for side in (prompt.height, prompt.width))
    return height, width


def with_effect(prompt: SamplePrompt, capabilities: Collection[str]) -> SamplePrompt:
    """Return the prompt without frames and images that have no effect in a family with these capabilities."""
    idle = [option for option in (FRAMES, FPS, *IMAGE_OPTIONS) if not option.works_with(capabilities)]
    fields = [FIELDS[option.key][0] for option in idle]
    return replace(prompt, **{name: getattr(NOTHING, name) for name in fields})


def line_keys(line: str) -> dict[str, Any]:
    """Parse `a cat --w 768 --n bad` into {"prompt": "a cat", "width": 768, "negative_prompt": "bad"}.

    As in sd-scripts, an unknown or empty option is dropped, and the prompt itself may be read as one ("d 12 monkeys"
    sets the seed too).
    """
    parts = line.strip().split(" --")
    keys: dict[str, Any] = {"prompt": parts[0]}
    for number, part in enumerate(parts):
        for option in LINE_OPTIONS:
            if (found := option.match(part)) and (number or option.may_begin):
                value = _read_value(FIELDS[option.key][1], found[1].strip())
                keys[option.key] = [*keys.get(option.key, []), value] if option.key in SEVERAL else value
                break
    if "sample_steps" in keys:
        keys["sample_steps"] = min(max(keys["sample_steps"], 1), MAX_STEPS)
    return keys


def _read_value(kind: type, text: str) -> Any:
    return int(text[:MOST_DIGITS]) if kind is int else kind(text)


def image_files(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the image files that the keys of a prompt name, each with its key."""
    names = {option.key for option in IMAGE_OPTIONS}
    return [(key, str(value)) for key, value in _each(keys) if key in names]


def dropped_words(line: str) -> Iterator[str]:
    """Yield a message for each part of a line that line_keys ignores or may misread."""
    first, *parts = line.strip().split(" --")
    letters = {option.letters: option for option in LINE_OPTIONS}
    for option in LINE_OPTIONS:
        if (found := option.match(first)) and option.may_begin:
            yield f"the prompt starts like the option --{option.letters}, so it also sets {option.key} = {found[1]}"
            break
    for part in parts:
        word = part.split(" ")[0]
        known = letters.get(word.lower())
        found = known.match(part) if known else None
        if known is None:
            yield f"--{word}: unknown option"
        elif found is None:
            yield f"--{word} needs {VALUES[known.value]}"
        elif known.key == "sample_steps" and not 1 <= _read_value(int, found[1]) <= MAX_STEPS:
            yield f"--{word} {found[1]} becomes {line_keys(line)[known.key]}: steps are 1 to {MAX_STEPS}"
        elif rest := part[found.end() :].strip():
            yield f"'{rest}' after --{word} {found[1]} is ignored: the prompt comes before the first option"


def is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _read_lines(text: str) -> list[Entry]:
    lines = ((number, line.strip()) for number, line in enumerate(documents.split_lines(text), 1))
    kept = ((number, line) for number, line in lines if line and not is_comment(line))
    return [replace(_line(line), place=f"line {number}") for number, line in kept]


def _line(line: str) -> Entry:
    return Entry(line_keys(line), tuple(dropped_words(line)))


def _object(keys: Mapping[str, Any]) -> Entry:
    return Entry(dict(keys), tuple(f"{key}: unknown key" for key in keys if key not in FIELDS))


def _read_toml(text: str) -> list[Entry]:
    """Read [prompt], which applies to all images, and each [[prompt.subset]], which is one image."""
    shared = documents.parse_toml(text).get("prompt")
    if not isinstance(shared, dict) or not isinstance(shared.get("subset"), list):
        raise ValueError("it has no [[prompt.subset]]")
    subsets = shared.pop("subset")
    if not all(isinstance(subset, dict) for subset in subsets):
        raise ValueError("its [[prompt.subset]] are not tables")
    return [_object({**shared, **subset}) for subset in subsets]


def _read_json(text: str) -> list[Entry]:
    """Read a list of objects; an entry may also be a line of text as in a .txt file."""
    found = documents.parse_json(text)
    if not isinstance(found, list) or not all(isinstance(entry, dict | str) for entry in found):
        raise ValueError("it is not a list of prompts")
    return [_line(entry) if isinstance(entry, str) else _object(entry) for entry in found]


READERS = dict(zip(KINDS, (_read_lines, _read_toml, _read_json), strict=True))


def _problems(keys: Mapping[str, Any], capabilities: Collection[str] = ()) -> Iterator[str]:
    """Yield the problems of an entry's values, for a family with these capabilities."""
    for key, value in _each(keys):
        if key not in FIELDS or value is None:
            continue
        kind = FIELDS[key][1]
        least, most = RANGES.get(key, (-LARGEST_SEED, LARGEST_SEED))
        if type(value) is not kind and not (kind is float and type(value) is int):
            yield f"{key}: {value!r} is not {spec.KINDS[kind]}"
        elif isinstance(value, int | float) and not least <= value <= most:  # NaN is in no range
            between = f"between {least} and {most}" if key in RANGES else "a 63-bit number"
            yield f"{key}: {value} is not {between}"
        elif key == "sample_sampler" and SAMPLER.works_with(capabilities) and value not in SAMPLERS:
            yield f"sample_sampler: {value!r} is not one of {', '.join(SAMPLERS)}"
        elif _names_image(key, capabilities) and (why := file_problem(key, str(value))):
            yield f"{key}: {why}"


def file_problem(key: str, name: str) -> str | None:
    """Return why a prompt cannot have the file that one of IMAGE_OPTIONS names, one sentence; None if it can."""
    return why_no_clip(name) if key == CONTROL_CLIP.key else why_unreadable(name)


def _names_image(key: str, capabilities: Collection[str]) -> bool:
    """Whether a key names an image file that a family with these capabilities reads."""
    return any(option.key == key and option.works_with(capabilities) for option in IMAGE_OPTIONS)


def _each(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each key with each of its values."""
    for key, value in keys.items():
        yield from ((key, each) for each in (value if key in SEVERAL and isinstance(value, list) else [value]))


def _filled(keys: Mapping[str, Any], defaults: SamplePrompt) -> SamplePrompt:
    """Build the prompt from keys that have no problems."""
    known = {key: value for key, value in keys.items() if key in FIELDS and value is not None}
    fields: dict[str, Any] = {
        FIELDS[key][0]: FIELDS[key][1](value) for key, value in known.items() if key not in SEVERAL
    }
    fields |= {FIELDS[key][0]: tuple(value for _, value in _each({key: known[key]})) for key in SEVERAL if key in known}
    if fields.get("seed") == NEW_SEED:
        fields["seed"] = None
    return replace(defaults, **fields)
