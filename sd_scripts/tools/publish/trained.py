"""What a run left behind that can be published: its file, samples and settings, read from the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.families.card import FamilyCard
from sd_scripts.families.registry import card_of, names
from sd_scripts.formats.folder_names import numbered
from sd_scripts.formats.safetensors_header import read_header
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.catalog import METHOD_TITLES, script_for
from sd_scripts.options.embedding import EmbeddingOptions
from sd_scripts.options.metadata import MetadataOptions
from sd_scripts.options.reading import from_values
from sd_scripts.options.settings import Settings
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import EMA_ENDING, EMBEDDING_ENDING, STATE_ENDING
from sd_scripts.runs.run_state import OutputFile, RunState

MOST_SAMPLES = 12


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run with a saved file."""

    settings: Settings
    state: RunState
    files: tuple[Path, ...]
    """The last file that was saved, and the embeddings that were trained with it."""
    samples: tuple[OutputFile, ...]
    """The last of each prompt."""

    @property
    def file(self) -> Path:
        return self.files[0]

    @property
    def family(self) -> FamilyCard:
        return card_of(self.settings.script.family)

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the file says of itself; nothing if it is no .safetensors file."""
        try:
            return read_header(self.file).metadata
        except (OSError, ValueError):
            return {}

    @property
    def trigger_words(self) -> list[str]:
        """Return the words that captions were trained with: the token or trigger phrase that was set, else the names of
        the image folders."""
        embedding, metadata = self.settings.get(EmbeddingOptions), self.settings[MetadataOptions]
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
    """Return what a run trained. Raises ValueError, one sentence, if there is nothing to publish."""
    settings, state = read_folder(folder)
    saved = [made for made in state.saved if not made.path.name.endswith(STATE_ENDING)]
    main = [made for made in saved if not made.path.stem.endswith((EMBEDDING_ENDING, EMA_ENDING))]
    file = next((found for made in reversed(main) if (found := made.find()) and found.is_file()), None)
    if file is None:
        raise ValueError(f"'{folder}' has no saved file; a whole model in a diffusers folder cannot be published here")
    beside = file.with_name(f"{file.stem}{EMBEDDING_ENDING}{file.suffix}")
    return Trained(
        settings=settings,
        state=state,
        files=(file, beside) if beside.is_file() else (file,),
        samples=_last_samples(state),
    )


def read_folder(folder: Path) -> tuple[Settings, RunState]:
    """Return the settings of a run, and the state that its events add up to. Raises ValueError, one sentence."""
    run = RunFolder(folder)
    if not run.events_file.is_file():
        raise ValueError(f"'{folder}' is not the folder of a run; give the one that holds its events.jsonl")
    state = RunState()
    for event in run.events():
        state.apply(event)
    values = read_toml(run.config) if run.config.is_file() else {}
    return training_settings({**state.facts, **values}, values, str(folder)), state


def training_settings(identity: Mapping[str, Any], values: Mapping[str, Any], where: str) -> Settings:
    """Return the settings that a file of a training holds. `identity` names family and method. Raises ValueError, one
    sentence, if it does not."""
    family, method = (str(identity.get(name) or "") for name in ("family", "method"))
    if family not in names() or method not in METHOD_TITLES:
        raise ValueError(f"'{where}' does not say which family and method were trained")
    known = {name: value for name, value in values.items() if name not in ("family", "method")}
    return from_values(script_for(family, method), known)


def _last_samples(state: RunState) -> tuple[OutputFile, ...]:
    last = {made.number: made for made in state.samples if made.path.is_file()}
    return tuple(made for _, made in sorted(last.items(), key=lambda pair: pair[0] or 0))[:MOST_SAMPLES]
