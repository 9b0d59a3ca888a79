"""HTTP routes under /studio of the tab Generate: its form, requests to the resident process, and the gallery."""

import contextlib
import itertools
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.generate import own_loras
from kohya_gui.generate.control_uploads import CONTROL_FOLDER, keep_control, remove_unused
from kohya_gui.generate.generate_form import form, form_values, options_of, values_of
from kohya_gui.generate.generate_job import GenerateJob
from kohya_gui.runs.past_runs import tab_of
from kohya_gui.server.json_routes import NotFound, allowed_file, get, post, row_of, upload
from kohya_gui.server.media_files import send_file, send_media
from sd_scripts.families.cards.registry import card_of
from sd_scripts.formats.clips.clip_files import frame_files
from sd_scripts.formats.clips.media_types import MEDIA_TYPES as CLIP_TYPES
from sd_scripts.formats.images.generated_files import GENERATED_TYPES, read_generated
from sd_scripts.formats.images.image_folders import MEDIA_TYPES
from sd_scripts.formats.images.image_parameters import read_chunks, typed
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.generating.generate import GENERATE, GenerateOptions
from sd_scripts.options.generating.prompt_lines import CONTROLS, SamplePrompt, image_files, line_keys, read_prompt_file
from sd_scripts.options.spec import WrongValue
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.catalog import FAMILY_TITLES, GENERATE_SCRIPTS, script_for
from sd_scripts.settings.generate_settings import of_generating, problems, prompts_of, settings_of
from sd_scripts.settings.settings import Settings
from sd_scripts.settings.sweeps import cells_of

MOST_IMAGES = 120
"""Images in the gallery, the newest ones."""
MOST_BYTES = 100 << 20
"""Size of a control image that is uploaded."""
FAMILIES = {script.family for script in GENERATE_SCRIPTS}
CONTROL_TYPES = {**MEDIA_TYPES, **CLIP_TYPES}
"""Extension of an image or a clip that prompts may name -> its media type."""
CARRIED = (
    *("prompt", "negative_prompt", "width", "height", "frames", "fps", "steps", "scale", "guidance", "sampler"),
    "seed",
)
"""Parameters of an image that the form has."""


def routes(queue: RunQueue, allowed_paths: AllowedPaths) -> list[Route]:
    """Return the routes, for `launch(app_kwargs={"routes": ...})`."""
    tab = GenerateRoutes(queue, allowed_paths)
    return [
        *own_loras.routes(queue, allowed_paths),
        get("generate/form", lambda request: form()),
        get("generate", tab.state),
        get("generate/gallery", tab.gallery),
        get("generate/image/{name}", tab.image),
        get("generate/preview", tab.preview),
        get("generate/run/{id:row}", tab.of_run),
        post("generate", tab.start),
        post("generate/cancel", tab.cancel),
        post("generate/free", tab.free),
        post("generate/read", tab.read),
        get("generate/control", tab.control),
        upload("generate/control", tab.add_control, most=MOST_BYTES),
    ]


class GenerateRoutes:
    def __init__(self, queue: RunQueue, allowed_paths: AllowedPaths) -> None:
        self._queue = queue
        self._allowed_paths = allowed_paths
        self._job = GenerateJob(queue)

    def state(self, request: Request) -> dict[str, Any] | None:
        """Return the process and its requests if they changed."""
        self._job.follow()
        state = self._job.state()
        if request.query_params.get("known") == state["known"]:
            return None
        links = _links(self._job.family) if self._job.family in FAMILIES else NO_LINKS
        for asked in state["requests"]:
            asked["html"] = "\n".join(map(links.sentence, asked["error"].splitlines()))
        return {**state, "warnings": [links.sentence(text) for text in state["warnings"]]}

    def start(self, request: Request, body: Mapping[str, Any]) -> dict[str, str]:
        """Check a form and ask for its images. Raises ValueError, one sentence per line."""
        family = str(body.get("family"))
        typed_values = body.get("values")
        if family not in FAMILIES or not isinstance(typed_values, dict):
            raise ValueError("The request does not name a model family and the values of a form")
        values = values_of(family, typed_values)
        values["image_dir"] = str(absolute(values.get("image_dir")))
        settings = settings_of(family, {}, values)
        if sentences := self._outside(settings) or problems(settings):
            raise _links(family).refusal(list(sentences))
        return {"id": self._job.generate(family, values)}

    def _outside(self, settings: Settings) -> list[str]:
        """Return a sentence for each file that the page may not read: named by options or, if there are none, by
        prompts, as images to edit or to begin with, or if there are none either, among the values to compare."""
        if self._allowed_paths.allowed is None:
            return []
        if problems := self._allowed_paths.problems_of(settings):
            return problems
        valid = settings.without(settings.problems())
        try:
            named = {each for prompt in prompts_of(valid) for each in prompt.image_files}
        except (ValueError, WrongValue):  # reported with the other problems
            lines = (line for line in settings.value("prompt") if isinstance(line, str))
            named = {each for line in lines for each in image_files(line_keys(line))}
        if problems := [problem for key, name in sorted(named) if (problem := self._allowed_paths.problem(key, name))]:
            return problems
        try:
            swept = [self._allowed_paths.problems_of(cell.settings) for cell in cells_of(valid)]
        except (ValueError, WrongValue):  # reported with the other problems
            return []
        return list(dict.fromkeys(itertools.chain(*swept)))

    def add_control(self, request: Request, body: bytes) -> dict[str, str]:
        """Save a control image that the browser sends next to the generated images; return its path."""
        name = Path(request.query_params.get("name", "")).name
        folder = self._allowed_paths.check("image_dir", absolute(request.query_params.get("image_dir")))
        path = keep_control(folder / CONTROL_FOLDER, name, body)
        remove_unused(folder)
        return {"path": str(path)}

    def control(self, request: Request) -> Response:
        """Return a control image or clip for the form, of a folder of frames the first one."""
        name = request.query_params.get("path", "")
        path = allowed_file(self._allowed_paths, CONTROLS.key, name)
        if path.is_dir():
            path = next(iter(frame_files(path)), path)
        return send_media(request, path, types=CONTROL_TYPES)

    def cancel(self, request: Request, body: Mapping[str, Any]) -> None:
        self._job.cancel(str(body.get("id")))

    def free(self, request: Request, body: Mapping[str, Any]) -> None:
        self._job.free()

    def gallery(self, request: Request) -> dict[str, Any]:
        """Return the newest images and clips of the folder in the form, each with its parameters."""
        folder = absolute(request.query_params.get("image_dir"))
        files: list[tuple[int, Path]] = []
        with contextlib.suppress(OSError, ValueError):  # a folder that is not there, or not allowed
            for entry in os.scandir(self._allowed_paths.check("image_dir", folder)):
                if Path(entry.name).suffix.lower() not in GENERATED_TYPES or entry.name.startswith("."):
                    continue
                with contextlib.suppress(OSError):  # it is gone by now
                    if entry.is_file(follow_symlinks=False):  # send_file sends no other
                        files.append((entry.stat().st_mtime_ns, Path(entry.path)))
        newest = sorted(files, reverse=True)[:MOST_IMAGES]
        images = [{"name": path.name, "time": time, **_described(path, time)} for time, path in newest]
        return {"folder": str(folder), "images": images, "total": len(files)}

    def image(self, request: Request) -> Response:
        """Return an image or a clip of a folder."""
        name = request.path_params["name"]
        path = absolute(request.query_params.get("image_dir")) / name
        if path.name != name or path.suffix.lower() not in GENERATED_TYPES:
            raise NotFound("This is not an image of the gallery")
        allowed_file(self._allowed_paths, "image_dir", path)
        return send_media(request, path)

    def preview(self, request: Request) -> Response:
        """Return the image so far of the current request."""
        if (path := self._job.preview) is None:
            raise NotFound("No image is being generated")
        return send_file(request, path, MEDIA_TYPES[path.suffix])

    def read(self, request: Request, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the form that the texts in a dropped file describe. Raises ValueError if they describe none."""
        chunks = body.get("chunks")
        if not isinstance(chunks, dict):
            raise ValueError("The request contains no image metadata")
        texts = {str(key): text for key, text in chunks.items() if isinstance(text, str)}
        return as_form(read_chunks(texts))

    def of_run(self, request: Request) -> dict[str, Any]:
        """Return the form with which to try the model that a run trained."""
        row = row_of(request, self._queue)
        run_state = self._queue.watch(row.id).refresh()
        models = [output.find() for output in run_state.saved if not output.path.name.endswith(STATE_ENDING)]
        newest = next((path for path in reversed(models) if path and path.exists()), None)
        if newest is None:
            raise ValueError(f"{row.name}: its files no longer exist")
        run_settings = read_toml(RunFolder(row.folder).config)
        family = row.family or str(run_settings.get("family"))
        if family not in FAMILIES:
            raise ValueError(f"{row.name}: no script generates images of this model family")
        values = of_generating({"learning_rate": 0, **run_settings}, script_for(family, GENERATE))
        values = {name: value for name, value in values.items() if name in options_of(family)}
        adapters: list[dict[str, Any]] = []
        if tab_of(row).method == "lora":
            adapters = [{"path": str(newest), "strength": 1.0}]
        else:
            values["pretrained_model_name_or_path"] = str(newest)
        if run_state.samples and run_state.samples[-1].note:
            sample = run_state.samples[-1]
            values["prompt"] = [sample.note]
            shape: dict[str, Any] = {"width": sample.width, "height": sample.height, "image_seed": sample.seed}
            shape |= {"frames": sample.frames, "fps": sample.fps} if sample.frames > 1 else {}
            values |= {name: value for name, value in shape.items() if value}
        filled_form = {"family": family, "values": form_values(family, values), "adapters": adapters}
        if card_of(family).has(CONTROLS.needs) and (controls := self._controls_of_sample(run_settings, run_state)):
            filled_form["controls"] = controls
        return filled_form

    def _controls_of_sample(self, run_settings: Mapping[str, Any], run_state: RunState) -> list[str]:
        """Return the control images of a run's last sample, as far as its prompts are still there."""
        name = str(run_settings.get("sample_prompts") or "")
        try:
            self._allowed_paths.check("sample_prompts", name)
            prompts = read_prompt_file(Path(name).expanduser()).prompts(SamplePrompt())
        except ValueError:
            return []
        number = (run_state.samples[-1].number if run_state.samples else 0) or 0
        return [*prompts[number].control_images] if number < len(prompts) else []


def _links(family: str) -> FieldLinks:
    """Return the links to the fields of a family's form."""
    return FieldLinks("generate", options_of(family))


def absolute(image_dir: object) -> Path:
    """Return the folder for images that a form names, or the default one."""
    return Path(os.path.expanduser(str(image_dir or GenerateOptions.image_dir))).absolute()


def as_form(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form that generates an image with these parameters, as far as the form has them."""
    parameters = typed(parameters)
    family = parameters.get("family") if parameters.get("family") in FAMILIES else None
    values = {name: parameters[name] for name in CARRIED if parameters.get(name) is not None}
    values["prompt"] = [str(values.get("prompt", "")).replace("\n", " ")]
    if "seed" in values:
        values["image_seed"] = values.pop("seed")
    values |= {"shift": parameters["flow_shift"]} if "flow_shift" in parameters else {}
    ends = {"image_path": "start_image", "end_image_path": "end_image", "control_path": "control_clip"}
    values |= {option: _path_in(parameters[name]) for option, name in ends.items() if name in parameters}
    if family:
        values |= {name: parameters[name] for name in ("dtype", "quantize_base") if name in parameters}
    files = parameters.get("adapters") or ()
    if high := [each for each in files if each.get("high_noise") is True]:
        values["lora_weight_high_noise"] = [_path_in(each) for each in high]
        values["lora_multiplier_high_noise"] = [each.get("strength", 1.0) for each in high]
    if model := parameters.get("model_path"):
        values["pretrained_model_name_or_path"] = model
    form_family = str(family or min(FAMILIES, key=lambda name: card_of(name).order))
    return {
        "family": family,
        "title": FAMILY_TITLES.get(str(family), ""),
        "values": form_values(form_family, values),
        "adapters": [
            {"path": _path_in(adapter), "strength": adapter.get("strength", 1.0)}
            for adapter in files
            if adapter.get("high_noise") is not True
        ],
        "controls": [_path_in(control) for control in parameters.get("control_images") or ()],
        "model": parameters.get("model"),
    }


def _path_in(file: Mapping[str, Any]) -> str:
    """Return the path of a file among an image's parameters, or its name if they have no path."""
    return file.get("path") or file.get("name") or ""


@lru_cache(maxsize=1000)
def _described(path: Path, time: int) -> dict[str, Any]:
    """Return the size, length and parameters of an image or a clip that was written at this time."""
    facts: dict[str, Any] = {}
    try:
        made = read_generated(path)
        facts = {"width": made.width, "height": made.height, "frames": made.frames, "fps": made.fps}
        return {**facts, "parameters": made.parameters, "form": as_form(made.parameters)}
    except Exception:  # a broken or odd file costs its own form, never the gallery
        return facts
