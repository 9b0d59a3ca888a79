"""Collect captions and tags in a metadata file, and cache latents for it. No Gradio."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import sd_scripts
from kohya_gui.dataset.dataset_tools import shown_field, typed_folder
from kohya_gui.runs.launch_command import setting_flags
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.formats.images.folder_names import dotted
from sd_scripts.formats.images.metadata_file import Words, merge_words, read_metadata, write_metadata
from sd_scripts.settings.encoding import ENCODING_OPTIONS

LATENTS = Path(sd_scripts.__file__).resolve().parent / "finetune" / "prepare_buckets_latents.py"
LONGEST_ENDING = 60
RENAMED_FLAGS = {"resolution": "max_resolution", "vae_batch_size": "batch_size", "skip_cache_check": "skip_existing"}
NEEDED_FOR_LATENTS = ("pretrained_model_name_or_path", *ENCODING_OPTIONS, *RENAMED_FLAGS)


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """Where captions and tags come from and go to; texts as typed."""

    image_folder: str = shown_field("Image folder", "Folder of the training images.", folder=True, wide=True)
    metadata_folder: str = shown_field(
        "Metadata folder", "Folder for the metadata files; empty is the image folder.", folder=True, wide=True
    )
    take_captions: bool = shown_field("Include captions", value=True)
    captions: str = shown_field("Caption extension", "Extension of the caption files.", ".txt")
    take_tags: bool = shown_field("Include tags", value=False)
    tags: str = shown_field("Tag extension", "Extension of the tag files.", ".tags")
    recursive: bool = shown_field("Recursive", "Include images in subfolders.", False)
    full_path: bool = shown_field("Full paths", "Use full paths as keys, for images in several folders.", True)
    caption_metadata_filename: str = shown_field("Captions file", value="meta_cap.json")
    latent_metadata_filename: str = shown_field("Latents file", value="meta_lat.json")

    @property
    def images(self) -> Path:
        return typed_folder("image_folder", self.image_folder)

    def file(self, field: str) -> Path:
        """Return the metadata file that a field names. Raises ValueError for an invalid name."""
        name: str = getattr(self, field).strip()
        if not name.endswith(".json") or Path(name).name != name:
            raise ValueError(f"{field}: '{name}' must be a file name that ends in .json")
        if not self.metadata_folder.strip():
            return self.images / name
        return typed_folder("metadata_folder", self.metadata_folder) / name

    @property
    def words_file(self) -> Path:
        return self.file("caption_metadata_filename")

    @property
    def latents_file(self) -> Path:
        return self.file("latent_metadata_filename")


class Gathered(NamedTuple):
    """The metadata file that was written."""

    file: Path
    images: int
    remarks: list[str]
    """Images without captions or tags."""


def gather(asked: Gathering) -> Gathered:
    """Write captions and tags to the metadata file; entries of other images in it stay.

    Raises ValueError, one sentence.
    """
    endings: dict[Words, str] = {}
    if asked.take_captions:
        endings["caption"] = dotted(asked.captions.strip() or ".txt")
    if asked.take_tags:
        endings["tags"] = dotted(asked.tags.strip() or ".tags")
    if not endings:
        raise ValueError("captions: neither captions nor tags are included; turn one on")
    if len(set(endings.values())) < len(endings):
        raise ValueError(
            f"tags: {endings['tags']} files already contain the captions; choose another extension, or include only one"
        )
    for words, ending in endings.items():
        if len(ending) > LONGEST_ENDING or any(letter in ending for letter in "\0/\\"):
            field = "captions" if words == "caption" else "tags"
            raise ValueError(f"{field}: {ending[:LONGEST_ENDING]!r} is not a file extension")
    file = asked.words_file
    entries = read_metadata(file, "caption_metadata_filename") if file.exists() else {}
    how: dict[str, Any] = {"full_path": asked.full_path, "recursive": asked.recursive, "option": "image_folder"}
    remarks = []
    for words, extension in endings.items():
        merged = merge_words(asked.images, entries, words, extension, **how)
        entries = merged.entries
        if missing := merged.wordless_text(extension):
            remarks.append(missing)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"metadata_folder: '{error.filename}' cannot be created ({error.strerror})") from error
    write_metadata(file, entries, "caption_metadata_filename")
    return Gathered(file, merged.images, remarks)


class LatentsJob(ToolJob):
    """The single latent caching job of this GUI."""

    name = "latents"
    busy_sentence = "latents are already being cached: stop that job or wait for it to finish"

    @property
    def asked(self) -> Gathering | None:
        """The request of the current or last job."""
        known_fields = {field.name for field in fields(Gathering)}
        return Gathering(**self.record) if self.record.keys() == known_fields else None

    def start(self, asked: Gathering, values: Mapping[str, Any], family: str) -> None:
        """Start now, or when the run on the GPU ends. Raises ValueError, one sentence, if something is missing."""
        self.check_idle()
        self.begin(latents_command(asked, values, family), record=asdict(asked))


def latents_command(asked: Gathering, values: Mapping[str, Any], family: str) -> list[str]:
    """Return the command that caches latents exactly as a run with these settings would. Raises ValueError."""
    if not asked.words_file.is_file():
        raise ValueError(
            f"caption_metadata_filename: {asked.words_file} does not exist yet; collect the captions first"
        )
    if not (model := values.get("pretrained_model_name_or_path")):
        raise ValueError("pretrained_model_name_or_path: not set; choose a model, whose VAE encodes the latents")
    if not values.get("resolution"):
        raise ValueError("resolution: not set; it decides the size of the latents")
    argv = [sys.executable, str(LATENTS), str(asked.images), str(asked.words_file), str(asked.latents_file), str(model)]
    argv += ["--family", family]
    if asked.full_path:
        argv.append("--full_path")
    if asked.recursive:
        argv.append("--recursive")
    flags = {name: name for name in ENCODING_OPTIONS} | RENAMED_FLAGS
    settings = {flag: values.get(name) for name, flag in flags.items() if values.get(name) not in (None, False, "")}
    return argv + setting_flags(settings | {"enable_bucket": bool(values.get("enable_bucket"))})
