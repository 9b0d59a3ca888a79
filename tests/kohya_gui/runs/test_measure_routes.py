"""The page's view of a measurement, which outlives the GUI; test_plan_card of the browser runs a real one."""

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.runs.measure_routes import SET_BY_SOME, SET_BY_VARIANTS, MeasureJob, routes, table, view
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from sd_scripts.tools.measure_compile import VARIANTS
from tests.support.runs import wait_for


def row(**more: Any) -> dict[str, Any]:
    found = {
        "variant": "default",
        "failed": "",
        "options": {"compile": True},
        "seconds": {"64x64x1": 0.1, "64x32x1": 0.3},
    }
    return {**found, "first": 31.0, "first_warm": 3.04, "gpu_bytes": 3 * 2**30, "total": 750.0, **more}


def test_each_variant_has_its_times_and_a_button_with_its_options() -> None:
    shown = table({"rows": [row(), row(variant="eager", options={}, first_warm=None)], "best": "default"})
    assert '<i style="width:100%"></i></span>200 ms' in shown
    values = {"First step": "31 s · 3.0 s with cache", "Memory": "3.0 GiB", "This run": "12 min (fastest)"}
    assert "".join(f'<td data-label="{label}">{value}</td>' for label, value in values.items()) in shown
    assert "data-load='options:{&quot;compile&quot;: true}'" in shown
    assert "data-load='options:{}'" in shown
    assert shown.count("(fastest)") == shown.count('class="best"') == 1


def test_a_failed_variant_shows_the_reason_and_cannot_be_used() -> None:
    shown = table({"rows": [row(failed="out of <memory>")], "best": None})
    assert "out of &lt;memory&gt;" in shown
    assert "Use this" not in shown


def test_every_variant_can_be_used() -> None:
    names = {o.name for script in SCRIPTS for group in script.groups for o in each_option(group)}
    assert {*SET_BY_VARIANTS, *SET_BY_SOME} <= names
    assert all(options.keys() <= {*SET_BY_VARIANTS, *SET_BY_SOME} for options in VARIANTS.values())


@pytest.mark.parametrize(
    ("events", "waits_for", "shown"),
    [
        ([], "cat", "Measuring starts when cat ends"),
        ([], "", "Starting"),
        (
            [{"kind": "phase", "name": "measuring default", "done": 3, "total": 30}],
            "",
            "Measuring default · step 3 of 30",
        ),
        (
            [{"kind": "phase", "name": "measuring dynamic", "done": 0, "total": 12, "note": "2 of about 5 graphs"}],
            "",
            "Measuring dynamic · step 0 of 12 · 2 of about 5 graphs",
        ),
        ([{"kind": "failed", "error": "no <GPU>"}], "", "no &lt;GPU&gt;"),
        ([{"kind": "stopped"}], "", "Measuring was stopped"),
    ],
)
def test_the_state_of_a_job_is_shown(events: list[dict[str, Any]], waits_for: str, shown: str) -> None:
    run_state = RunState()
    for event in events:
        run_state.apply({"time": 1.0, **event})
    assert shown in view(run_state, None, waits_for)


def test_the_reason_of_a_failed_measurement_links_to_the_field() -> None:
    run_state = RunState()
    run_state.apply({"kind": "failed", "error": "train_data_dir: folder not found", "time": 1.0})
    options = {o.name: o for o in each_option(DatasetOptions)}
    shown = view(run_state, None, "", links=FieldLinks("lora", options))
    assert 'data-field="lora-train_data_dir"' in shown


def test_a_compiling_measurement_shows_the_time_and_its_result_the_variant() -> None:
    run_state = RunState()
    run_state.apply({"kind": "phase", "name": "measuring max-autotune", "time": 50.0})
    run_state.apply({"kind": "phase", "name": "measuring max-autotune", "time": 90.0})
    assert 'data-since="50.0"' in view(run_state, None, "")
    run_state.apply({"kind": "finished", "time": 99.0})
    result = {"rows": [], "best": None}
    assert "<caption>Measured with dog, FLUX.1, rank &lt;4&gt;</caption>" in view(
        run_state, result, "", "dog, FLUX.1, rank <4>"
    )


TOKEN = "hf_TheTokenOfHuggingFace"


class Page:
    """The routes of one GUI, while a run is on."""

    def __init__(self, folder: Path) -> None:
        self.queue = RunQueue(RunStore(folder / "runs.sqlite"))
        self.browser = TestClient(Starlette(routes=routes(self.queue, EVERYWHERE)))

    def start(self, values: dict[str, Any]) -> Any:
        return self.browser.post("/studio/measure", json={"tab": "lora", "family": "sdxl", "values": values}).json()

    def state(self) -> Any:
        return self.browser.get("/studio/measure").json()


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))
    monkeypatch.setattr("kohya_gui.tools.tool_job.sees_no_gpu", lambda: False)  # on the CPU nothing waits
    monkeypatch.setattr("sd_scripts.settings.preflight.problems", lambda settings: [])
    return {"pretrained_model_name_or_path": str(tmp_path / "model.safetensors")}


def test_a_waiting_measurement_outlives_the_gui_and_no_file_contains_the_token(
    tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(tmp_path)
    run = page.queue.store.add(RunFolder(tmp_path / "run"), name="cat")
    page.queue.store.update(run.id, state="running")
    monkeypatch.setattr("kohya_gui.runs.measure_routes.TOOL", "this")  # prints text and ends
    assert page.start({**values, "huggingface_token": TOKEN}) == {"ok": True}
    files = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert {"launch.json", "settings.toml"} <= {file.name for file in files}
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]
    assert MeasureJob(page.queue).watched is None  # the GUI that has it is alive

    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    restarted = Page(tmp_path)
    shown = restarted.state()
    assert (shown["tab"], shown["over"]) == ("lora", False)
    assert "Measuring starts when cat ends" in shown["html"]
    assert "already running" in restarted.start(values)["error"]
    restarted.queue.store.end(run.id, "finished")
    restarted.queue._start_tools()
    (folder,) = (tmp_path / "state").rglob("*-measure")
    wait_for(lambda: "Zen of Python" in RunFolder(folder).console_tail())
    wait_for(lambda: restarted.state()["over"])


def test_a_measurement_that_was_stopped_while_it_waited_is_not_started_by_the_next_gui(
    tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(tmp_path)
    page.queue.store.update(page.queue.store.add(RunFolder(tmp_path / "run"), name="cat").id, state="running")
    page.start(values)
    page.browser.post("/studio/measure/stop", json={})
    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    assert Page(tmp_path).state()["tab"] == ""


def test_options_that_contain_the_token_are_not_measured(tmp_path: Path, values: dict[str, Any]) -> None:
    refused = Page(tmp_path).start({**values, "huggingface_token": TOKEN, "training_comment": f"with {TOKEN}"})
    assert refused["error"].startswith("training_comment: contains the huggingface_token")
    assert not list((tmp_path / "state").rglob("settings.toml"))
