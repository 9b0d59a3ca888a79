"""Hints for path fields: what a path contains, read from headers and file names without torch."""

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kohya_gui.access.allowed_paths import AllowedPaths
from sd_scripts.families.cards.family_card import ComponentCard
from sd_scripts.families.cards.model_file import ModelFile, describe, is_hub_id
from sd_scripts.families.cards.registry import card_of, component_card
from sd_scripts.formats.images.metadata_file import read_metadata
from sd_scripts.formats.models.safetensors_header import SAFETENSORS
from sd_scripts.settings.catalog import FAMILY_TITLES

WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\\w")
PICKLED = {".ckpt", ".pt", ".pth", ".bin"}
MOST_BESIDE = 24
"""Files next to a base model that are looked at."""
LONGEST_METADATA = 20_000_000
"""Largest metadata file, in bytes, that a hint still reads."""


@dataclass(frozen=True)
class Recognised:
    """A description of the file or folder at a path; `good` is None if it cannot be judged."""

    text: str
    good: bool | None = None
    family: str | None = None
    """Family the file is a base model for."""
    warning: bool = False
    """Works, but is probably not intended."""
    flat: bool = False
    """The folder contains images directly and could be used as is."""
    ending: str = ""
    """Extension of the caption files found, if it is not the one set."""
    images: int = 0
    """Images directly in a flat folder."""
    instead: Path | None = None
    """A folder nearby that was probably meant."""
    ranks: tuple[int, ...] = ()
    """Ranks in a LoRA file."""


NOTHING = Recognised("")


def allowed(allowed_paths: AllowedPaths, option: str, text: str, look: Callable[[str], Recognised]) -> Recognised:
    """Describe the file or folder at a path; outside the allowed folders, not even whether it exists."""
    problem = allowed_paths.problem(option, text) if text.strip() else None
    return Recognised(problem.partition(": ")[2], good=False) if problem else look(text)


def model(text: str, family: str) -> Recognised:
    """Identify the base model at a path and whether `family` can train on it."""
    return glance(text, lambda path: _model(path, text.strip(), family))


def part(text: str, option: str, family: str) -> Recognised:
    """Identify the file at a path and whether it is the component that this option of the family expects."""
    component = component_card(family, option)
    return glance(text, lambda path: _part(path, component)) if component else NOTHING


def part_beside(model: str, option: str, family: str, may_read: Callable[[Path], bool]) -> Path | None:
    """Return the file next to the base model that is the component which this option of the family expects."""
    component = component_card(family, option)
    path = Path(os.path.expanduser(model.strip()))
    with contextlib.suppress(OSError, ValueError):  # a path that cannot be one
        if component and model.strip() and may_read(path) and path.is_file():
            files = (file for file in path.parent.iterdir() if file.suffix in SAFETENSORS and file != path)
            files_beside = [file for file in sorted(islice(files, MOST_BESIDE)) if may_read(file) and file.is_file()]
            return next((file for file in files_beside if describe(file).variant in component.fitting), None)
    return None


def metadata(text: str) -> Recognised:
    """Count the images in a metadata file and how many have a caption or tags."""
    return glance(text, _metadata)


def glance(text: str, look: Callable[[Path], Recognised]) -> Recognised:
    """Look at a path without ever failing, whatever was typed and whatever the disk answers."""
    if not text.strip():
        return NOTHING
    if is_foreign(text.strip()):
        return Recognised(
            "A Windows path, but the GUI does not run on Windows; enter a path on this machine", good=False
        )
    try:
        return look(Path(os.path.expanduser(text.strip())))
    except OSError as error:
        return Recognised(f"Cannot be read: {error.strerror}", good=False)


def is_foreign(text: str) -> bool:
    """Return whether this is a path on Windows while the GUI runs elsewhere."""
    return os.name != "nt" and bool(WINDOWS_PATH.match(text))


def _model(path: Path, name: str, family: str) -> Recognised:
    if path.is_dir() or (path.is_file() and path.suffix in SAFETENSORS):
        return _judged(describe(path), path, family)
    if path.is_file() and path.suffix in PICKLED:
        return _pickled(path)
    if path.is_file():
        return Recognised("Not a model file: choose a .safetensors or .ckpt file", good=False)
    if "://" in name:
        return Recognised("A web address: get the file in the tab Models, and use it from there", good=False)
    if is_hub_id(name):
        return Recognised("Hugging Face model id: loaded from the local cache or downloaded when the run starts")
    return Recognised("File or folder not found", good=False)


def _judged(file: ModelFile, path: Path, family: str) -> Recognised:
    if file.problem:
        return _broken(file.problem, path)
    text = described(file, "Unknown model type")
    base = file.family if file.is_base_model else None
    if not card_of(family).trains(base):
        return Recognised(f"{text}: not a base model for {FAMILY_TITLES[family]}", good=False, family=base)
    return Recognised(text, good=True, family=base)


def _part(path: Path, component: ComponentCard) -> Recognised:
    if path.is_file() and path.suffix in PICKLED:
        return _pickled(path)
    if not path.exists():
        return Recognised("File or folder not found", good=False)
    if path.is_file() and path.suffix not in SAFETENSORS:
        return Recognised(f"Not a model file: choose the .safetensors file of {component.title}", good=False)
    folder = path / component.folder
    file = describe(folder if folder.is_dir() else path)
    if file.problem:
        return _broken(file.problem, path)
    good = file.variant in component.fitting or component.option in file.parts
    text = described(file)
    return Recognised(text if good else f"{text}: this is not {component.title}", good=good)


def described(file: ModelFile, unknown: str = "Unknown file type") -> str:
    """Describe a file by its variant, precision and size: "VAE, bf16, 0.2 GB"."""
    inside = f"with {' and '.join(file.parts)} in it" if file.parts else ""
    return ", ".join(filter(None, (file.variant or unknown, file.precision, size(file.bytes), inside)))


def _pickled(path: Path) -> Recognised:
    return Recognised(f"{size(path.stat().st_size)}, {path.suffix}: checked when the run starts")


def _broken(problem: str, path: Path) -> Recognised:
    return Recognised(problem.replace(f"'{path}'", "This"), good=False)  # the path is right above


def _metadata(file: Path) -> Recognised:
    if not file.is_file():
        return Recognised("File not found", good=False)
    if file.stat().st_size > LONGEST_METADATA:
        return Recognised(f"{size(file.stat().st_size)}: read when the run starts")
    try:
        entries = read_metadata(file, "in_json").values()
        captioned = sum(any(entry.get(key) for key in ("caption", "tags")) for entry in entries)
    except ValueError:
        return Recognised("Not a metadata file: expected a JSON object with an entry per image", good=False)
    few = "" if captioned == len(entries) else f", {captioned or 'none'} with a caption"
    return Recognised(f"{len(entries)} images{few}", good=bool(entries), warning=captioned < len(entries))


def size(bytes_: float) -> str:
    """Format a size as "6.9 GB", in powers of 1000 as download pages do."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:.0f} {unit}" if unit in ("bytes", "kB") or bytes_ >= 100 else f"{bytes_:.1f} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.1f} TB"
