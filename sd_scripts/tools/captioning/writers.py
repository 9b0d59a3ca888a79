"""What writes captions, behind one protocol: a tagger, a captioner or an endpoint, made from the options."""

import getpass
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sd_scripts.data.sources.images import Pixels
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.formats.images.folder_names import numbered
from sd_scripts.formats.words import listed
from sd_scripts.options.captioning.images import CaptionImagesOptions, CaptionModelOptions
from sd_scripts.options.captioning.known_models import default_model
from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions, TaggerOptions
from sd_scripts.tools.captioning.caption_text import default_prompt, filled_prompt, one_line
from sd_scripts.tools.captioning.endpoint import KEY, Endpoint
from sd_scripts.tools.captioning.model_files import CAPTIONER_FILES, PICKLES, model_folder
from sd_scripts.tools.lora.command import Given

CLIP_READS = "clip_captions"


@dataclass(frozen=True, kw_only=True)
class Task:
    """An image to caption."""

    path: Path
    pixels: Pixels
    before: str
    """The caption that it has; empty if it has none."""


class Writer(Protocol):
    """Writes captions."""

    separator: str
    """Between tags; empty if it writes prose."""
    batch_size: int

    def __call__(self, tasks: Sequence[Task]) -> list[str]:
        """Return the caption of each image, in one line. Raises ValueError, one sentence."""


def reads_tags(family: str | None) -> bool:
    """Return whether a family is trained with tags as well as with prose: CLIP reads its captions. Raises ValueError
    for a name that is not a family's."""
    if not family:
        return False
    if family not in names():
        raise ValueError(f"family: '{family}' is not a model family; use {listed(sorted(names()), 'or')}")
    return CLIP_READS in card_of(family).capabilities


def make_writer(given: Given, say: Callable[[str], None], wait: Callable[[float], None]) -> Writer:
    """Load the model, or connect to the endpoint. Raises ValueError, one sentence that names the option.

    `say` prints size and licence of a download, `wait` waits for some seconds between attempts.
    """
    model = given[CaptionModelOptions]
    if model.method == "endpoint":
        return EndpointWriter(given, wait)
    name = model.model or default_model(model.method)
    how = {"model_dir": model.model_dir, "download": model.download, "say": say}
    if model.method == "tagger":
        from sd_scripts.tools.captioning.tagger import FILES

        return TagWriter(given, model_folder(name, FILES, **how))
    return ProseWriter(given, _captioner_folder(name, how))


def _captioner_folder(name: str, how: dict[str, object]) -> Path:
    files = ("config.json", *CAPTIONER_FILES)
    folder = model_folder(name, files, **how)  # type: ignore[arg-type]
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        return folder
    return model_folder(name, ("config.json", *PICKLES), **how)  # type: ignore[arg-type]


class TagWriter:
    """Tags of a WD14-family tagger."""

    def __init__(self, given: Given, folder: Path):
        from sd_scripts.tools.captioning.tagger import Tagger

        options = given[TaggerOptions]
        model = given[CaptionModelOptions]
        self.separator = options.caption_separator
        self.batch_size = model.batch_size
        self._tagger = Tagger(folder, options, model.device)

    def __call__(self, tasks: Sequence[Task]) -> list[str]:
        return [one_line(self.separator.join(tags)) for tags in self._tagger([task.pixels for task in tasks])]


class Prompts:
    """The prompt of each image."""

    def __init__(self, given: Given, default: str):
        self._trigger = given[CaptionImagesOptions].trigger or ""
        self._prompt = given[CaptionTextOptions].prompt or default

    def of(self, task: Task) -> str:
        named = numbered(task.path.parent.name)
        values = {
            "trigger": self._trigger,
            "folder": named[1] if named else task.path.parent.name,
            "tags": one_line(task.before),
        }
        return filled_prompt(self._prompt, values)


def _default_prompt(given: Given) -> str:
    return default_prompt(
        given[CaptionTextOptions].form,
        reads_tags=reads_tags(given[CaptionModelOptions].family),
        trigger=given[CaptionImagesOptions].trigger or "",
    )


def _separator(given: Given) -> str:
    is_tags = given[CaptionTextOptions].form == "tags"
    return str(given[TaggerOptions].caption_separator) if is_tags else ""


class ProseWriter:
    """Text of a captioner."""

    def __init__(self, given: Given, folder: Path):
        from sd_scripts.tools.captioning.captioner import TASKS, Captioner

        model = given[CaptionModelOptions]
        self.separator = _separator(given)
        self.batch_size = model.batch_size
        self._captioner = Captioner(folder, given[CaptionTextOptions], model.device)
        default = _default_prompt(given)
        if self._captioner.takes_tasks:
            default = TASKS["sentence" if reads_tags(model.family) else "paragraph"]
        self._prompts = Prompts(given, "" if self._captioner.completes else default)

    def __call__(self, tasks: Sequence[Task]) -> list[str]:
        prompts = [self._prompts.of(task) for task in tasks]
        return [one_line(text) for text in self._captioner([task.pixels for task in tasks], prompts)]


class EndpointWriter:
    """Text of a server with OpenAI's interface."""

    batch_size = 1

    def __init__(self, given: Given, wait: Callable[[float], None]):
        options, model = given[EndpointOptions], given[CaptionModelOptions]
        if not options.endpoint:
            raise ValueError("endpoint: not set; enter the address of the server, such as http://localhost:11434/v1")
        if not model.model:
            raise ValueError("model: not set; enter the server's name for the model")
        self.separator = _separator(given)
        self._endpoint = Endpoint(options, given[CaptionTextOptions], model.model, _key(options.ask_api_key), wait)
        self._prompts = Prompts(given, _default_prompt(given))

    def __call__(self, tasks: Sequence[Task]) -> list[str]:
        return [one_line(self._endpoint(task.pixels, self._prompts.of(task))) for task in tasks]


def _key(ask: bool) -> str:
    """Return the key for a server. Raises ValueError for one that cannot be in a header."""
    key = (getpass.getpass("Key of the endpoint: ") if ask else os.environ.get(KEY, "")).strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"{KEY}: contains characters that a key cannot have; copy it again")
    return key
