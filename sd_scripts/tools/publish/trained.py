"""Files of a run that can be published: its model file, samples and settings, read from the run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.formats.clips.mp4 import MP4, first_frame
from sd_scripts.formats.images.folder_names import numbered
from sd_scripts.formats.images.image_files import open_image
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import EMA_ENDING, EMBEDDING_ENDING, STATE_ENDING
from sd_scripts.runs.run_state import OutputFile, RunState
from sd_scripts.settings.catalog import METHOD_TITLES, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

MOST_SAMPLES = 12
RUNS = "runs"
"""Folder of the run folders in an output folder."""
SAMPLE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", MP4)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run with a saved file."""

    settings: Settings
    state: RunState
    files: tuple[Path, ...]
    """The last file that was saved, and the embeddings that were trained with it."""
    samples: tuple[OutputFile, ...]
    """The last of each prompt."""
    left_out: tuple[str, ...] = ()
    """Why files that the run names are not published, one sentence each."""

    @property
    def file(self) -> Path:
        return self.files[0]

    @property
    def family(self) -> FamilyCard:
        return card_of(self.settings.script.family)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""
        return read_header(self.file).metadata

    @property
    def trigger_words(self) -> list[str]:
        """Return the words that captions were trained with: the token or trigger phrase that was set, else the names of
        the image folders."""
        embedding = self.settings.get(EmbeddingOptions)
        metadata = self.settings[MetadataOptions]
        chosen = [embedding.token_string if embedding else None, metadata.metadata_trigger_phrase]
        if words := [word for word in chosen if word]:
            return list(dict.fromkeys(words))
        try:
            folders = json.loads(self.metadata.get("ss_dataset_dirs", "{}"))
        except ValueError:
            return []
        found = (numbered(name) for name in folders if isinstance(name, str))
        return list(dict.fromkeys(each[1] for each in found if each and each[1]))


def read_run(folder: Path) -> Trained:
    """Return the result of a run. Raises ValueError, one sentence, if there is nothing to publish.

    A run folder may come from elsewhere, and its events may name any file of this machine: only .safetensors files and
    images in the folder that the run wrote to are taken.
    """
    settings, state = read_folder(folder)
    output = output_folder(folder)
    saved = [made for made in state.saved if not made.path.name.endswith(STATE_ENDING)]
    main = [made for made in saved if not made.path.stem.endswith((EMBEDDING_ENDING, EMA_ENDING))]
    file = next((found for made in reversed(main) if (found := made.find()) and found.is_file()), None)
    if file is None:
        raise ValueError(f"'{folder}' has no saved file; a whole model in a diffusers folder cannot be published here")
    if why := _why_no_weights(file, output):
        raise ValueError(f"{why}, so it is not published")
    embedding = file.with_name(f"{file.stem}{EMBEDDING_ENDING}{file.suffix}")
    embeddings = [embedding] if os.path.lexists(embedding) and not _why_no_weights(embedding, output) else []
    samples = _last_samples(state)
    reasons = {made.path: why for made in samples if (why := _why_no_sample(made.path, output))}
    return Trained(
        settings=settings,
        state=state,
        files=(file, *embeddings),
        samples=tuple(made for made in samples if made.path not in reasons)[:MOST_SAMPLES],
        left_out=tuple(f"{why}, so it is left out" for why in reasons.values()),
    )


def output_folder(run: Path) -> Path:
    """Return the folder that a run wrote to, by where its run folder is: `output/runs/20261124-cat` or `output/run`."""
    real = Path(os.path.realpath(run))
    return real.parents[1] if real.parent.name == RUNS and len(real.parents) > 1 else real.parent


def why_elsewhere(file: Path, output: Path) -> str:
    """Return why a file is not one of a run's output folder; "" if it is."""
    if not Path(os.path.realpath(file)).is_relative_to(output):
        return f"'{file}' is not in '{output}', the output folder of the run"
    return "" if file.is_file() else f"'{file}' is not a regular file"


def _why_no_weights(file: Path, output: Path) -> str:
    if why := why_elsewhere(file, output):
        return why
    if file.suffix not in SAFETENSORS:
        return f"'{file}' is not a .safetensors file"
    try:
        read_header(file)
    except (OSError, ValueError) as error:
        return str(error).partition(";")[0]  # its remedy is for a file that was chosen
    return ""


def _why_no_sample(file: Path, output: Path) -> str:
    if why := why_elsewhere(file, output):
        return why
    if file.suffix.lower() not in SAMPLE_SUFFIXES:
        return f"'{file}' is not named like an image or a clip"
    is_clip = file.suffix.lower() == MP4
    try:
        if is_clip:
            first_frame(file)
        else:
            with open_image(file) as image:
                image.load()
    except Exception:  # broken files raise different errors by format
        return f"'{file}' cannot be read as {'a clip' if is_clip else 'an image'}"
    return ""


def read_folder(folder: Path) -> tuple[Settings, RunState]:
    """Return the settings of a run, and the state that its events add up to. Raises ValueError, one sentence."""
    run = RunFolder(folder)
    if not run.events_file.is_file():
        raise ValueError(f"'{folder}' is not the folder of a run; give the one that contains its events.jsonl")
    state = RunState()
    for event in run.events():
        state.apply(event)
    values = read_toml(run.config) if run.config.is_file() else {}
    return training_settings({**state.facts, **values}, values, str(folder)), state


def training_settings(identity: Mapping[str, Any], values: Mapping[str, Any], where: str) -> Settings:
    """Return the settings in a file of a training. `identity` names family and method. Raises ValueError, one
    sentence, if it does not."""
    family, method = (str(identity.get(name) or "") for name in ("family", "method"))
    if family not in names() or method not in METHOD_TITLES:
        raise ValueError(f"'{where}' does not specify which family and method were trained")
    known = {name: value for name, value in values.items() if name not in ("family", "method")}
    return from_values(script_for(family, method), known)


def _last_samples(state: RunState) -> tuple[OutputFile, ...]:
    last = {made.number: made for made in state.samples if made.path.is_file()}
    return tuple(made for _, made in sorted(last.items(), key=lambda pair: pair[0] or 0))
