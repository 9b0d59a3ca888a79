"""The form of a tool that works on a folder of images in a job: its fields, and the values that a page sends."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.form.recognise import Recognised
from kohya_gui.runs.launch_command import setting_flags
from kohya_gui.tools.tool_job import ToolJob
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.images.image_folders import has_suffix
from sd_scripts.options.captioning.known_models import KnownModel, known_model
from sd_scripts.options.spec import Option
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.watched import WatchedRun
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Groups
from sd_scripts.settings.tools.lora_tools import defaults, option_problems

MOST_IMAGES = 100_000
"""Images of a folder that a hint counts, and of a request."""


@dataclass(frozen=True, kw_only=True)
class JobForm:
    """What a page has to know of such a tool."""

    name: str
    """Part of the routes, and of the names of its folders and files."""
    prefix: str
    """Of the ids of controls."""
    module: str
    """Of the command."""
    groups: Groups
    choice: str
    """The option that decides which of the others have an effect."""
    of_choices: Mapping[str, tuple[str, ...]]
    """Option -> the values of `choice` for which it has an effect; all, if it is not listed."""
    hidden: tuple[str, ...]
    """Options without a control."""
    first: tuple[str, ...]
    """Options that are shown before the others are unfolded."""
    paths: tuple[str, ...]
    """Options that name files and folders, except the model."""
    unread: tuple[str, ...]
    """Options that a page cannot set."""
    images: frozenset[str]
    """Extensions of the images that it works on."""
    placeholders: Mapping[str, str]
    """Option -> what an empty control shows."""

    @cached_property
    def options(self) -> dict[str, Option]:
        return {o.name: o for group in self.groups for o in each_option(group)}

    @cached_property
    def links(self) -> FieldLinks:
        return FieldLinks(self.prefix, {name: o for name, o in self.options.items() if name not in self.hidden})

    def fields(self) -> list[dict[str, Any]]:
        return [self._field(o) for o in self.options.values() if o.name not in self.hidden]

    def _field(self, o: Option) -> dict[str, Any]:
        return {
            **described_field(o, "folder" if o.path else kind_of(o)),
            "placeholder": self.placeholders.get(o.name, o.placeholder),
            "methods": list(self.of_choices.get(o.name, ())),
            "first": o.name in self.first,
        }

    def read_values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all options from the page's values; those without effect are the defaults."""
        values = defaults(self.groups)
        chosen = given.get(self.choice, values[self.choice])
        for name, o in self.options.items():
            if name in given and name not in self.unread and chosen in self.of_choices.get(name, (chosen,)):
                value = o.located(o.read(given[name]))
                values[name] = o.default if value in ("", None) and not o.nullable else value
        return values

    def problems(
        self, values: Mapping[str, Any], images: Sequence[str], allowed_paths: AllowedPaths, model: str
    ) -> list[str]:
        """Return a sentence for each mistake, `model` being the model's path, if it has one; files outside the allowed
        folders are not looked at."""
        if images:
            values = {**values, "image_list": "chosen images"}
        if invalid := option_problems(self.groups, values):
            return invalid
        outside = [allowed_paths.problem(name, str(values[name])) for name in self.paths if values[name]]
        outside += [allowed_paths.problem("train_data_dir", path) for path in images]
        if model:
            outside.append(allowed_paths.problem("model", model))
        if found := [problem for problem in outside if problem]:
            return found[:1]
        if not images and not Path(values["train_data_dir"]).is_dir():
            return [f"train_data_dir: folder not found: '{values['train_data_dir']}'"]
        return []

    def chosen_images(self, given: object) -> list[str]:
        """Return the images that a request names. Raises ValueError for anything else than names of image files."""
        images = given if isinstance(given, list) else []
        if len(images) > MOST_IMAGES or not all(isinstance(each, str) and "\n" not in each for each in images):
            raise ValueError("The chosen images are not a list of paths")
        if wrong := [each for each in images if not has_suffix(each, self.images)]:
            raise ValueError(f"train_data_dir: {wrong[0][:200]!r} is not an image")
        return images

    def command(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command line with these values; defaults are left out."""
        changed = {name: values[name] for name, o in self.options.items() if values[name] not in (None, o.default)}
        return [sys.executable, "-m", self.module, *setting_flags(changed)]


def described_field(o: Option, kind: str) -> dict[str, Any]:
    """Describe an option for the page; `kind` names its control."""
    return {
        "name": o.name,
        "label": o.label,
        "help": o.help,
        "kind": kind,
        "default": o.default,
        "choices": list(o.choices),
        "nullable": o.nullable,
        "whole": o.type is int,
        "within": list(o.within) if o.within else None,
    }


def kind_of(o: Option) -> str:
    """Return the control of an option that is not a path."""
    if o.type is bool:
        return "switch"
    if o.type in (int, float):
        return "number"
    return "choice" if o.choices else "text"


class ImagesJob(ToolJob):
    """The single job of such a tool in this GUI."""

    form: JobForm

    def __init__(self, form: JobForm, queue: RunQueue) -> None:
        self.form = form
        self.name = form.name
        super().__init__(queue)

    def needs_gpu(self, values: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def start(self, values: Mapping[str, Any], images: Sequence[str], secrets: Mapping[str, str]) -> None:
        """Start now or, if it computes on the GPU, when the run there ends. Raises ValueError, one sentence."""
        self.check_idle()
        self.uses_gpu = self.needs_gpu(values)

        def prepare(job: WatchedRun) -> Sequence[str]:
            if not images:
                return ()
            file = job.folder.path / "images.txt"
            write_whole(file, "\n".join(images) + "\n")
            return "--image_list", str(file)

        record = {"values": dict(values), "images": list(images)}
        self.begin(self.form.command(values), prepare, record=record, secrets=secrets)


def hint_of_model(
    name: str, path: str, is_cached: bool, models: Sequence[KnownModel], allowed_paths: AllowedPaths
) -> tuple[Recognised, bool]:
    """Describe a model, at `path` unless it is named by its repository; return whether it has to be downloaded."""
    if path:
        if problem := allowed_paths.problem("model", path):
            return Recognised(problem, good=False), False
        is_here = Path(path).exists()
        return Recognised("On this machine" if is_here else "Not found", good=is_here), False
    known = known_model(name, models)
    about = f"{known.about}. " if known else ""
    if is_cached:
        return Recognised(f"{name}: {about}" + "On this machine", good=True), False
    size = f"{known.size}, licence {known.licence}" if known else "size and licence are on its page of the Hub"
    return Recognised(f"{name}: {about}" + f"Not on this machine: a download of {size}"), True


def in_cache(name: str, file: str, model_dir: str | None) -> bool:
    """Return whether a file of a repository is in the cache of the Hub."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, file, cache_dir=model_dir), str)
    except (OSError, ValueError):
        return False


def as_hint(hint: Recognised) -> dict[str, Any]:
    return {"text": hint.text, "good": hint.good}
