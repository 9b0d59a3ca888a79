"""Requests that no page sends: each JSON route answers any value, of any type, with a status below 500 and a sentence
that names the problem."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.access.request_checks import refusal
from kohya_gui.generate.generate_form import options_of as options_of_family
from kohya_gui.server.json_routes import Answer
from kohya_gui.server.studio_routes import routes
from kohya_gui.tabs import TABS
from kohya_gui.tools.lora_tools import TOOLS
from kohya_gui.tools.lora_tools import options_of as options_of_tool
from sd_scripts.options.generating.compare_checkpoints import COMPARE_GROUPS
from sd_scripts.runs.comparison import FOLDER, RESULT
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS
from sd_scripts.settings.compat.captioning import OPTIONS as CAPTION_OPTIONS
from sd_scripts.settings.family_options import each_option
from tests.support.gui import planners

DEEP = "[" * 200 + "]" * 200
ODD = (
    *("true", "-1", "1e400", "-Infinity", "NaN", "1" * 30, str(2**63), "1" * 5000, '"\\u0000"', '"\\ud800"'),
    *(
        '"x"',
        '"inf"',
        f'"{"9" * 5000}"',
        "[[]]",
        '[null, "\\udfff"]',
        '{"a": {}}',
        DEEP,
        f'{{"a": {DEEP}}}',
        '[{"path": 5}]',
    ),
)
"""JSON."""
FOLDER_HERE = str(Path(__file__).parent)
"""A folder without images."""
HERE = "HERE"
"""Stands for one of them in a body."""
FIELD = {"tab": "lora", "family": "sdxl", "name": "seed", "value": "1"}
DATASET = {"tab": "lora", "family": "sdxl", "values": {}}
PROMPTS = ("tab", "text", "file", "family", "sampler")
BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "models/look": ({"address": HERE}, {"address": "a/b", "token": HERE}),
    "models/add": (
        {"address": HERE, "url": ""},
        {"address": "a/b", "url": HERE},
        {"address": "a/b", "url": "", "folder": HERE},
        *({"family": "sdxl", "repo": "a/b", "file": "c", key: HERE} for key in ("family", "repo", "file", "token")),
    ),
    "models/pause": ({"id": HERE},),
    "models/resume": ({"id": HERE}, {"id": "a", "site": HERE, "token": HERE}),
    "models/remove": ({"id": HERE},),
    "models/folders": ({"folders": HERE}, {"folders": [HERE]}),
    "run/1/publish": ({"text": HERE}, {"text": "a", "repo_id": HERE}, {"text": "a", "repo_id": "", "token": HERE}),
    "run/1/comparison": ({o.name: HERE for group in COMPARE_GROUPS for o in each_option(group)},),
    "run/1/comparison/stop": ({"a": HERE},),
    "run/1/describe": ({"name": HERE}, {"note": HERE}),
    "queue": ({"paused": HERE}, {"after_failure": HERE}),
    "runs/forget": ({"ids": HERE}, {"ids": [HERE]}),
    "doctor": ({"zip": True, "run": HERE},),
    "doctor/cancel": ({"a": HERE},),
    "measure/stop": ({"a": HERE},),
    "presets/save": tuple(
        {**DATASET, "name": "odd", "about": "", key: HERE} for key in ("tab", "name", "about", "values")
    ),
    "presets/add": tuple({"tab": "lora", "name": "odd", "text": "", key: HERE} for key in ("tab", "name", "text")),
    "presets/remove": ({"tab": HERE}, {"tab": "lora", "name": HERE}),
    "field": tuple({**FIELD, key: HERE} for key in FIELD),
    "prompts": tuple({**dict.fromkeys(PROMPTS, "flux"), key: HERE} for key in PROMPTS),
    "compile-cache/clear": ({"others": HERE},),
    "compile-cache/export": ({"a": HERE},),
    "compile-cache/import": ({"file": HERE},),
    "lora-tools/stop": ({"a": HERE},),
    "lora-tools/metadata": ({"path": HERE},),
    "dataset/open": ({**DATASET, "folder": HERE}, {**DATASET, "family": HERE}),
    "dataset/look": ({"view": HERE}, {"view": "0", "first": HERE}),
    "dataset/alike": ({"view": HERE}, {"view": "0", "distance": HERE}),
    "dataset/step": ({**DATASET, "step": HERE}, {**DATASET, "step": 1, "seed": HERE}),
    "dataset/fits": ({**DATASET, "dataset": HERE, "sizes": []}, {**DATASET, "dataset": 0, "sizes": HERE}),
    "dataset/regularisation": tuple({**DATASET, key: HERE} for key in ("prompts", "images", "place", "values")),
    "regularisation/start": tuple({**DATASET, key: HERE} for key in ("prompts", "images", "place", "values")),
    **{f"regularisation/{path}": ({"a": HERE},) for path in ("stop", "resume")},
    "regularisation/take": ({"images": HERE}, {"images": [HERE]}, {"place": HERE}),
    "train/fit": ({**DATASET, "family": HERE}, {**DATASET, "tab": HERE}, {**DATASET, "values": HERE}),
    "train/look": ({**DATASET, "family": HERE}, {**DATASET, "tab": HERE}, {**DATASET, "values": HERE}),
    "images/look": ({"values": HERE}, {"values": {}, "images": HERE}),
    "images/start": ({"values": HERE}, {"values": {}, "images": HERE, "try": HERE}),
    "images/stop": ({"a": HERE},),
    "images/remove": ({"id": HERE},),
    "images/resume": ({"key": HERE},),
    "captions/stop": ({"a": HERE},),
    "captions/remove": ({"id": HERE},),
    "captions/resume": ({"key": HERE},),
    "generate/cancel": ({"id": HERE},),
    "dataset/tokens": ({"texts": HERE}, {"texts": ["a"], "tab": HERE}, {"texts": ["a"], "tab": "lora", "family": HERE}),
    **{
        f"dataset/{path}": (
            {"place": HERE},
            {"place": FOLDER_HERE, "extension": HERE},
            *({"place": FOLDER_HERE, name: HERE} for name in names),
            *({"place": FOLDER_HERE, name: {"x": HERE}} for name in names),
        )
        for path, names in {
            **dict.fromkeys(("captions/undo", "captions/redo", "captions/skip", "captions/history"), ()),
            **dict.fromkeys(("files/trash", "files/empty-trash"), ()),
            **{"captions/read": ("images",), "captions/changed": ("versions",), "captions/write": ("edits",)},
            **{"masks/read": ("images", "mask_folder"), "masks/write": ("images", "version", "mask")},
            **{"masks/fill": ("images", "mask_folder"), "crop": ("images", "box", "key")},
            **{"captions/preview": ("images", "edit"), "captions/bulk": ("edit", "digest")},
            **dict.fromkeys(("captions/points/restore", "captions/points/remove"), ("point",)),
            **{"captions/points/add": ("name",), "captions/tags": ("images", "separator")},
            **{"files/move": ("images", "target"), "files/remove": ("images",), "files/put-back": ("paths",)},
            **{"files/repeats": ("folder", "repeats"), "export": ("images",)},
            **dict.fromkeys(("files/masks", "upload/begin"), ("folder",)),
            **dict.fromkeys(("upload/finish", "upload/discard", "upload/file"), ("folder", "batch")),
        }.items()
    },
    "generate/free": ({"a": HERE},),
    "generate/read": ({"chunks": HERE}, {"chunks": {"parameters": HERE}}),
}
"""Path -> bodies."""


def _all(options: Any) -> dict[str, str]:
    return {o.name: HERE for o in options}


OF_TABS = tuple(
    {"tab": tab.name, "family": script.family, "values": _all(o for group in script.groups for o in each_option(group))}
    for tab in TABS.values()
    for script in SCRIPTS
    if script.method == tab.method and script.family in (("sdxl", "flux_kontext") if tab.name == "lora" else ("sdxl",))
)
OF_TOOLS = tuple(
    {"tool": tool.name, "values": {**_all(options_of_tool(tool)), "rows": HERE}} for tool in TOOLS.values()
)
OF_GENERATE = tuple(
    {"family": script.family, "values": _all(options_of_family(script.family).values())} for script in GENERATE_SCRIPTS
)
OF_CAPTIONS = (
    {"values": dict.fromkeys(CAPTION_OPTIONS, HERE), "images": HERE, "key": HERE},
    {"values": HERE, "images": [HERE], "try": HERE},
)
"""Forms in which each option has the same value."""
FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    **{"plan": OF_TABS[:1], "measure": OF_TABS, "generate": OF_GENERATE},
    **{"lora-tools/look": OF_TOOLS, "lora-tools/start": OF_TOOLS},
    **{"captions/look": OF_CAPTIONS, "captions/start": OF_CAPTIONS},
}
PYTHONS = (
    "codec",
    "Exceeds the limit",
    "NoneType",
    "object has",
    "object is",
    "not supported",
    "unhashable",
    "invalid literal",
)
"""Words of Python's own sentences."""


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page may see."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, allowed: Path) -> Iterator[TestClient]:
    """A page with one finished run."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_STATE_HOME", "LOCALAPPDATA", "TORCHINDUCTOR_CACHE_DIR"):
            patch.setenv(name, str(folder / "state"))
        queue = RunQueue(RunStore(folder / "runs.sqlite"))
        run = new_run_folder(folder / "runs", "cat")
        run.config.write_text('family = "sdxl"\nmethod = "lora"\n')
        save_file({"a": torch.ones(1)}, folder / "cat.safetensors")
        log = run.log()
        log("started", family="sdxl", method="lora", max_steps=1)
        log("saved", path=str(folder / "cat.safetensors"), step=1)
        log("finished", step=1)
        log.close()
        assert queue.store.add(run, name="cat", tab="lora", family="sdxl", state="finished").id == 1
        served = routes(queue, AllowedPaths.within([allowed]))
        # entered, it has one event loop for all requests instead of one for each
        with TestClient(Starlette(routes=served), headers={"content-type": "application/json"}) as client:
            yield client
        queue.close()
        for process in planners():
            process.kill()
            process.wait()


def problems(browser: TestClient, path: str, body: dict[str, Any], odd: str) -> list[str]:
    """Return the problem of the answer to a body with this value."""
    told = f"{path} {str(body)[:80]} {odd[:40]}"
    try:
        answer = browser.post(f"/studio/{path}", content=json.dumps(body).replace(f'"{HERE}"', odd))
    except Exception as error:  # Starlette would answer 500
        return [f"{told}: {type(error).__name__}: {error}"]
    if answer.status_code < 400:
        return []
    why = answer.json()["error"]
    return [f"{told}: {why}"] if not why.strip() or any(words in why for words in PYTHONS) else []


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_each_route_that_reads_json_is_tried(browser: TestClient) -> None:
    posted = [route.path for route in browser.app.routes if "POST" in route.methods]  # type: ignore[attr-defined]
    tried = {f"/studio/{path.replace('run/1/', 'run/{id:row}/')}" for path in (*BODIES, *FORMS)}
    tried |= {"/studio/run/{id:row}/{action}", "/studio/generate/control"}  # describe; and one that reads an image
    tried.add("/studio/captions/settings")  # and one that reads TOML
    assert sorted({*posted} - tried) == []


@pytest.mark.parametrize("path", BODIES)
def test_a_value_of_any_type_is_answered(browser: TestClient, path: str) -> None:
    assert [why for body in BODIES[path] for odd in ODD for why in problems(browser, path, body, odd)] == []


@pytest.mark.parametrize("path", FORMS)
def test_a_form_with_values_of_any_type_is_answered(browser: TestClient, path: str) -> None:
    assert [why for body in FORMS[path] for odd in ODD for why in problems(browser, path, body, odd)] == []


@pytest.mark.parametrize("path", FORMS)
def test_a_malformed_form_is_answered(browser: TestClient, path: str) -> None:
    body = FORMS[path][0]
    bodies = [{**body, key: HERE} for key in body]
    assert [why for body in bodies for odd in ODD for why in problems(browser, path, body, odd)] == []


@pytest.mark.parametrize("odd", ['{"a": {}}', '"\\ud800"', "1e400", DEEP])
def test_the_option_of_the_tab_generate_that_is_wrong_is_named(browser: TestClient, allowed: Path, odd: str) -> None:
    unnamed = []
    for name in options_of_family("flux_kontext"):
        form = {"family": "flux_kontext", "values": {"prompt": "a", "image_dir": str(allowed), name: HERE}}
        answer = browser.post("/studio/generate", content=json.dumps(form).replace(f'"{HERE}"', odd))
        if answer.status_code != 400 or not any(w.startswith(f"{name}: ") for w in answer.json()["error"].splitlines()):
            unnamed.append((name, answer.status_code, answer.text))
    assert unnamed == []


@pytest.mark.parametrize("text", ["", "\0", "-1", "9" * 3000, "nan", "~nobody/x", "/dev/null"])
def test_a_query_of_any_text_is_answered(browser: TestClient, text: str) -> None:
    names = (
        *("known", "limit", "samples", "joined", "first", "last", "level", "after", "marks", "find", "lines", "ids"),
        *("rule", "within", "image_dir", "path", "field", "name"),
    )
    filled = {"{id:row}": "1", "{number:row}": "0", "{name}": quote(text, safe="") or "x"}
    for route in browser.app.routes:  # type: ignore[attr-defined]
        path = route.path
        for part, value in filled.items():
            path = path.replace(part, value)
        if "GET" in route.methods and not path.endswith("/card"):  # which starts a process
            assert browser.get(path, params=dict.fromkeys(names, text)).status_code < 500, path


def test_a_lone_surrogate_is_named_by_gradio_routes_too() -> None:
    for body, told in (
        (b'{"data": ["\\ud800"]}', "data: contains characters that are not valid Unicode; type it again"),
        (b'{"data": [NaN], "fn_index": 1}', "data: not a finite number; type it again"),
        (b"[" * 100_000, "The request is not a JSON object"),
    ):
        answer = refusal(gr.Blocks(), "/gradio_api/queue/join", body)
        assert answer is not None
        assert (answer.status_code, json.loads(answer.body)["error"]) == (422, told)


def test_an_answer_drops_only_the_values_json_cannot_represent() -> None:
    answer = Answer({"a\udcff.png": [float("nan"), {"b": float("inf")}], "c": ("d\ud800", 1.5, None)})
    assert json.loads(answer.body) == {"a?.png": [None, {"b": None}], "c": ["d?", 1.5, None]}


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_run_whose_files_are_pipes_is_shown_without_waiting(tmp_path: Path) -> None:
    queue = RunQueue(RunStore(tmp_path / "runs.sqlite"))
    for state in ("finished", "running"):
        run = new_run_folder(tmp_path / "runs", state)
        for file in (run.events_file, run.commands_file, run.console, run.config, run.launch):
            os.mkfifo(file)
        queue.store.add(run, name="cat", tab="lora", family="sdxl", state=state)
    page = TestClient(Starlette(routes=routes(queue, EVERYWHERE)))
    actions = ("", "/curves", "/console", "/checkpoints", "/comparison")
    paths = ["board", "compare?ids=1,2", *(f"run/{id}{action}" for id in (1, 2) for action in actions)]
    assert [path for path in paths if page.get(f"/studio/{path}").status_code >= 500] == []
    queue.close()


@pytest.mark.parametrize("odd", ["5", "null", '"x"', "[]", '{"loss": "a", "ema": []}', '{"loss": 1e400, "file": 5}'])
def test_a_foreign_comparison_affects_nothing_else(browser: TestClient, odd: str) -> None:
    folder = Path(browser.get("/studio/board").json()["runs"][0]["folder"]) / FOLDER
    folder.mkdir(exist_ok=True)
    lists = {key: [HERE] for key in ("checkpoints", "strengths", "prompts", "cells")}
    text = json.dumps({**lists, "rule": HERE, "within": HERE}).replace(f'"{HERE}"', odd)
    (folder / RESULT).write_text(text)
    assert browser.get("/studio/run/1/comparison").status_code == 200
