"""What a path holds, told in a few words beside its field: read from headers and file names, without torch."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kohya_gui.allowed_paths import AllowedPaths
from sd_scripts.formats.documents import parse_json, read_text
from sd_scripts.options.catalog import FAMILY_TITLES
from sd_scripts.options.model_file import FLUX_PARTS, SAFETENSORS, ModelFile, describe, is_hub_id

PICKLED = {".ckpt", ".pt", ".pth", ".bin"}
PARTS = FLUX_PARTS
"""By option."""
LONGEST_METADATA = 20_000_000
"""Bytes of a metadata file that a glance still reads."""


@dataclass(frozen=True)
class Recognised:
    """`good` None: nothing is wrong, nothing is known."""

    text: str
    good: bool | None = None
    family: str | None = None
    """The family that the file is a base model for."""
    warning: bool = False
    """It works, and is hardly what was meant."""
    flat: bool = False
    """A folder of images that could be used as it is."""
    ending: str = ""
    """That of caption files which lie there, where they have another one than is asked for."""


NOTHING = Recognised("")


def allowed(places: AllowedPaths, option: str, path: str, look: Callable[[str], Recognised]) -> Recognised:
    """What is found at a path; of one outside of the allowed folders, not even whether something is there."""
    why = places.problem(option, path) if path.strip() else None
    return Recognised(why.partition(": ")[2], good=False) if why else look(path)


def model(path: str, family: str) -> Recognised:
    """What the base model at `path` is, and whether `family` can train on it."""
    return glance(path, lambda place: _model(place, path.strip(), family))


def part(path: str, option: str) -> Recognised:
    """Whether what is at `path` is the part of FLUX.1 that an option of this name wants."""
    return glance(path, lambda place: _part(place, option))


def metadata(path: str) -> Recognised:
    """How many images a metadata file names, and how many of them with a caption or tags."""
    return glance(path, _metadata)


def glance(path: str, look: Callable[[Path], Recognised]) -> Recognised:
    """A glance must not fail, whatever is typed and whatever the disk says."""
    if not path.strip():
        return NOTHING
    try:
        return look(Path(os.path.expanduser(path.strip())))
    except OSError as error:
        return Recognised(f"This cannot be read: {error.strerror}", good=False)


def _model(place: Path, name: str, family: str) -> Recognised:
    if place.is_dir() or (place.is_file() and place.suffix in SAFETENSORS):
        return _judged(describe(place), place, family)
    if place.is_file() and place.suffix in PICKLED:
        return _pickled(place)
    if place.is_file():
        return Recognised("This is no model file: choose a .safetensors or .ckpt file", good=False)
    if is_hub_id(name):
        return Recognised("Hugging Face id: looked up in the local cache, else downloaded, when the run starts")
    return Recognised("There is no such file or folder", good=False)


def _judged(found: ModelFile, place: Path, family: str) -> Recognised:
    if found.problem:
        return _broken(found.problem, place)
    text = _words(found, "A model of another kind")
    base = None if found.variant.endswith(("LoRA", "alone")) else found.family
    if base != family:
        return Recognised(f"{text}: not a base model for {FAMILY_TITLES[family]}", good=False, family=base)
    return Recognised(text, good=True, family=base)


def _part(place: Path, option: str) -> Recognised:
    wanted = PARTS[option]
    if place.is_file() and place.suffix in PICKLED:
        return _pickled(place)
    if not place.exists():
        return Recognised("There is no such file or folder", good=False)
    if place.is_file() and place.suffix not in SAFETENSORS:
        return Recognised(f"This is no model file: choose the .safetensors file of {wanted.title}", good=False)
    found = describe(inner if (inner := place / wanted.folder).is_dir() else place)
    if found.problem:
        return _broken(found.problem, place)
    good, text = found.variant in wanted.fitting or option in found.parts, _words(found, "A file of another kind")
    return Recognised(text if good else f"{text}: not {wanted.title}", good=good)


def _words(found: ModelFile, unknown: str) -> str:
    """FLUX.1 dev, bf16, 23.8 GB"""
    inside = f"with {' and '.join(found.parts)} in it" if found.parts else ""
    return ", ".join(said for said in (found.variant or unknown, found.precision, size(found.bytes), inside) if said)


def _pickled(place: Path) -> Recognised:
    return Recognised(f"{size(place.stat().st_size)}, {place.suffix}: looked into when the run starts")


def _broken(problem: str, place: Path) -> Recognised:
    return Recognised(problem.replace(f"'{place}'", "This"), good=False)  # the path stands right above


def _metadata(file: Path) -> Recognised:
    if not file.is_file():
        return Recognised("There is no such file", good=False)
    if file.stat().st_size > LONGEST_METADATA:
        return Recognised(f"{size(file.stat().st_size)}: read when the run starts")
    try:
        text = read_text(file)
        told = (
            [parse_json(line) for line in text.splitlines()] if file.suffix == ".jsonl" else parse_json(text).values()
        )
        described = sum(any(each.get(key) for key in ("caption", "tags")) for each in told)
    except (ValueError, AttributeError):
        return Recognised("This is no metadata: a JSON object that names images is wanted", good=False)
    few = "" if described == len(told) else f", {described or 'none'} with a caption"
    return Recognised(f"{len(told)} images{few}", good=bool(told), warning=described < len(told))


def size(bytes_: float) -> str:
    """6.9 GB: as the shops and download pages count."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:.0f} {unit}" if unit in ("bytes", "kB") or bytes_ >= 100 else f"{bytes_:.1f} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.1f} TB"
