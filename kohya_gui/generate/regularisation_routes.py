"""Regularisation images: routes under /studio that generate them in a job, and that turn generated images into such."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.generate.generate_routes import absolute
from kohya_gui.runs.plan_card import settings_of
from kohya_gui.server.json_routes import NotFound, get, post
from kohya_gui.tools.lora_tools import flags_of
from kohya_gui.tools.tool_job import ToolJob, shown_state
from sd_scripts.formats.atomic_files import atomic_file, write_whole
from sd_scripts.formats.disk import sentence_of
from sd_scripts.formats.images.folder_names import as_folder_name, dotted
from sd_scripts.formats.images.generated_files import GENERATED_TYPES, read_generated
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.options.dataset import CaptionOptions
from sd_scripts.options.generating.regularisation import REGULARISATION
from sd_scripts.options.spec import Option
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.watched import WatchedRun
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.settings.tools.lora_tools import defaults, option_problems

TOOL = "sd_scripts.tools.regularisation"
OPTIONS: dict[str, Option] = {o.name: o for group in REGULARISATION for o in each_option(group)}
FORM = tuple(name for name in OPTIONS if name != "config_file")
"""Options that the page sets from its form."""
LINKS = FieldLinks("regularisation", OPTIONS, FORM)
SETTINGS = "training.toml"
"""File in the folder of the job with the settings of the training."""
MOST_COPIED = 5000


class RegularisationJob(ToolJob):
    """The single job of this GUI that generates regularisation images; its record allows resuming it."""

    name = "regularisation"
    busy_sentence = "Regularisation images are already being generated: stop that job or wait for it to finish"

    def start(self, saved: Mapping[str, Any], values: Mapping[str, Any], tab: str) -> None:
        """Start now, or when the run on the GPU ends. `saved` are the settings of the training. Raises ValueError, one
        sentence."""

        def prepare(job: WatchedRun) -> Sequence[str]:
            file = job.folder.path / SETTINGS
            try:
                write_toml(file, saved)
            except OSError as error:
                raise ValueError(f"The settings could not be saved: {sentence_of(error)}") from error
            return "--config_file", str(file)

        argv = [sys.executable, "-m", TOOL, *flags_of([OPTIONS[name] for name in FORM], values)]
        record = {"saved": dict(saved), "values": dict(values), "tab": tab}
        self.begin(argv, prepare, record=record)


class RegularisationRoutes:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._allowed_paths = allowed_paths
        self._job = RegularisationJob(queue)

    def fields(self, request: Request) -> dict[str, Any]:
        """Return label, help, choices and families of each option."""
        return {
            name: {
                "label": OPTIONS[name].label,
                "help": OPTIONS[name].help,
                "choices": list(OPTIONS[name].choices),
                "families": sorted(OPTIONS[name].families),
            }
            for name in FORM
        }

    def state(self, request: Request) -> dict[str, Any] | None:
        """Return the job if it changed since `known`."""
        if self._job.watched is None:
            return {"known": self._job.version, "state": "", "over": True}
        run_state = self._job.watched.refresh()
        if request.query_params.get("known") == self._job.version:
            return None
        record = self._job.record
        place = record.get("values", {}).get("reg_data_dir", "")
        shown = shown_state(run_state, LINKS)
        return {
            **shown,
            **{"known": self._job.version, "waits_for": self._job.waits_for},
            **{"tab": record.get("tab", ""), "place": place},
        }

    def start(self, request: Request, body: Mapping[str, Any]) -> None:
        """Check the dialog's `options` and the form of the training, and start the job."""
        settings = self._training(body)
        options = body.get("options")
        typed = options if isinstance(options, dict) else {}
        values = defaults(REGULARISATION) | {name: OPTIONS[name].read(typed[name]) for name in FORM if name in typed}
        values["prompt"] = [line.strip() for line in values["prompt"] if line.strip()]
        problems = option_problems(REGULARISATION, values)
        if not problems and not values["reg_data_dir"]:
            problems = ["reg_data_dir: not set; name the folder for the images"]
        problems += [
            f"prompt: {line!r} begins with a -, like a flag; change it" for line in values["prompt"] if line[0] == "-"
        ]
        if not problems:
            problems = [*self._allowed_paths.problems(values, [OPTIONS["reg_data_dir"]])]
        if problems:
            raise LINKS.refusal(problems)
        self._job.start(settings.saved(), values, str(body["tab"]))

    def resume(self, request: Request, body: Mapping[str, Any]) -> None:
        """Continue the job that was stopped, with its settings."""
        record = self._job.record
        if not record.get("saved"):
            raise NotFound("There is no job to continue")
        saved = record["saved"]
        training = from_values(script_for(saved["family"], saved["method"]), saved)
        problems = self._allowed_paths.problems_of(training)  # this GUI may allow others than the one that started it
        if problems := problems or self._allowed_paths.problems(record["values"], [OPTIONS["reg_data_dir"]]):
            raise LINKS.refusal(problems)
        self._job.start(record["saved"], record["values"], record["tab"])

    def take(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        """Copy generated images, `names` in `image_dir`, into the folder of a class below `reg_data_dir`, for the
        training whose form the request describes; return how many were copied."""
        settings = self._training(body)
        source = self._allowed_paths.check("image_dir", absolute(body.get("image_dir")))
        names, place, prompt = (
            body.get("names"),
            str(body.get("reg_data_dir") or ""),
            str(body.get("class") or "").strip(),
        )
        if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
            raise ValueError("names: must be a list of generated images")
        if len(names) > MOST_COPIED:
            raise ValueError(f"names: more than {MOST_COPIED:,} images; choose fewer")
        if not place.strip():
            raise ValueError("reg_data_dir: not set; name the folder for the images")
        if not prompt:
            raise ValueError("prompt: not set; write the class, such as cat")
        root = self._allowed_paths.check("reg_data_dir", place)
        folder = self._allowed_paths.check("reg_data_dir", root / f"1_{as_folder_name(prompt)}")
        extension = dotted(settings[CaptionOptions].caption_extension)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            copied = sum(self._copy(source / name, folder, extension) for name in dict.fromkeys(names))
        except OSError as error:
            raise ValueError(f"reg_data_dir: the images could not be copied: {sentence_of(error)}") from error
        return {"copied": copied, "place": str(root), "folder": str(folder)}

    def _copy(self, image: Path, folder: Path, extension: str) -> bool:
        """Copy an image, with its prompt as caption unless the folder's name is that; return whether it was not there.

        A link is not followed: it may lead outside the allowed folders."""
        target = folder / image.name
        if (
            image.is_symlink()
            or not image.is_file()
            or not self._allowed_paths.holds(target)
            or os.path.lexists(target)
        ):
            return False
        prompt = _prompt_of(image)
        if prompt and folder.name != f"1_{prompt}":
            write_whole(target.with_suffix(extension), f"{prompt}\n")
        with atomic_file(target) as part:
            shutil.copyfile(image, part, follow_symlinks=False)
        return True

    def _training(self, body: Mapping[str, Any]) -> Settings:
        settings = settings_of(body)
        if problems := self._allowed_paths.problems_of(settings):
            raise ValueError(problems[0])
        if wrong := settings.wrong_values():
            raise ValueError(wrong[0])
        return settings


def _is_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and Path(name).suffix.lower() in GENERATED_TYPES


def _prompt_of(image: Path) -> str:
    """Return the prompt in the parameters of an image; empty if there is none."""
    try:
        return " ".join(str(read_generated(image).parameters.get("prompt") or "").split())
    except Exception:  # broken files raise different errors by format
        return ""


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    tab = RegularisationRoutes(queue, allowed_paths)
    return [
        get("regularisation/fields", tab.fields),
        get("regularisation", tab.state),
        post("regularisation/start", tab.start),
        post("regularisation/stop", lambda request, body: tab._job.stop()),
        post("regularisation/resume", tab.resume),
        post("regularisation/take", tab.take),
    ]
