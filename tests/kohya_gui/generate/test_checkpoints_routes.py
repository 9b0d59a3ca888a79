"""Comparing checkpoints from the page: the choices and refusals of its form, and the shown result."""

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.generate.checkpoints_routes import FORM, CompareJob, routes
from kohya_gui.runs import live_routes
from sd_scripts.formats.images.image_parameters import text_chunks
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.library.diffusion.media import Media
from sd_scripts.runs.comparison import FOLDER, GRID_CLIP, RESULT
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.clips import make_clip
from tests.support.runs import wait_for

LOSSES = (0.5, 0.302, 0.3)


class Studio:
    """A run with three files, as a browser reaches it; `state` is the run's."""

    def __init__(self, folder: Path, allowed: AllowedPaths = EVERYWHERE, state: Any = "finished") -> None:
        self.queue = RunQueue(RunStore(folder / "runs.sqlite"))
        run = new_run_folder(folder / "runs", "cat")
        self.result = run.path / FOLDER
        self.files = [folder / f"cat-step{step:08d}.safetensors" for step in (2, 4, 6)]
        write_toml(run.config, {"family": "flux", "method": "lora", "output_name": "cat", "validation_split": 0.1})
        log = run.log()
        log("started", family="flux", method="lora", max_steps=6)
        for step, file in zip((2, 4, 6), self.files, strict=True):
            file.write_bytes(b"0" * 9)
            log("saved", path=str(file), step=step)
        log("saved", path=str(folder / "cat-step00000006-state"), step=6)
        log.close()
        self.run = self.queue.store.add(run, name="cat", tab="lora", family="flux", state=state).id
        self._serve(allowed)

    def _serve(self, allowed: AllowedPaths) -> None:
        served = [*routes(self.queue, allowed), *live_routes.routes(self.queue, allowed)]
        self.browser = TestClient(Starlette(routes=served))

    def restarted(self) -> "Studio":
        """Return the next GUI's view of the same list of runs."""
        studio = copy.copy(self)
        studio.queue = RunQueue(RunStore(self.queue.store.path))
        studio._serve(EVERYWHERE)
        return studio

    def get(self, path: str) -> Any:
        return self.browser.get(f"/studio/run/{self.run}/{path}")

    def start(self, **body: Any) -> Any:
        return self.browser.post(f"/studio/run/{self.run}/comparison", json=body)

    def write_result(self, **more: Any) -> None:
        checkpoints = [
            {"file": str(file), "name": file.stem, "label": file.stem, "step": 0, "ema": False, "loss": loss}
            for file, loss in zip(self.files, LOSSES, strict=True)
        ]
        told = {"checkpoints": checkpoints, "strengths": [1.0], "prompts": [], "cells": [], "rule": "lowest"}
        self.result.mkdir(exist_ok=True)
        (self.result / RESULT).write_text(json.dumps({**told, "within": 1.0, "measured": {"key": 1.0}, **more}))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "state"))


def test_the_form_offers_the_existing_files(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.files[1].unlink()
    offered = studio.get("checkpoints").json()
    assert [each["file"] for each in offered["checkpoints"]] == [str(studio.files[0]), str(studio.files[2])]
    assert [each["label"] for each in offered["checkpoints"]] == ["step 2", "step 6"]
    assert offered["held_out"]
    assert offered["fields"].keys() == {*FORM} - {"sampler", "frames", "fps"}  # FLUX.1 has one sampler, and no clips
    for file in studio.files:
        file.unlink(missing_ok=True)
    assert studio.get("checkpoints").json()["error"] == "cat: the files that it saved no longer exist"


def test_mistakes_in_a_comparison_are_one_sentence_each(tmp_path: Path) -> None:
    studio = Studio(tmp_path, AllowedPaths((tmp_path / "runs",)))
    mine = [str(studio.files[0])]
    refused = [
        ({}, "checkpoints: none is chosen; tick at least one"),
        ({"checkpoints": ["/etc/passwd"]}, "checkpoints: '/etc/passwd' is not a file of this run; leave it out"),
        ({"checkpoints": mine}, "prompt: not set, and the run made no samples"),
        ({"checkpoints": mine, "prompt": ["--run"]}, "prompt: '--run' begins with a -, like a flag; change it"),
        ({"checkpoints": mine, "validation_dir": "/etc", "no_images": True}, "validation_dir: '/etc' is outside"),
        ({"checkpoints": mine, "no_validation": True, "rule": "lowest"}, "rule: 'lowest' needs the validation loss"),
        ({"checkpoints": mine, "strengths": ["x"]}, "strengths: "),
        ({"checkpoints": mine, "rule": "nicest"}, "rule: "),
    ]
    for body, sentence in refused:
        answer = studio.start(**body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(sentence), (body, answer.json())
        assert f'data-field="compare-{sentence.partition(":")[0]}"' in answer.json()["html"]
    assert studio.get("comparison").json()["job"] is None


def test_during_a_run_the_comparison_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studio = Studio(tmp_path, state="running")
    monkeypatch.setattr("kohya_gui.tools.tool_job.sees_no_gpu", lambda: False)  # on the CPU nothing waits
    body = {"checkpoints": [str(studio.files[0])], "prompt": ["a cat"]}
    assert studio.start(**body).json() == {"ok": True}
    job = studio.get("comparison").json()["job"]
    assert job["doing"] == "starts when cat ends"
    assert not job["over"]
    assert "already being compared" in studio.start(**body).json()["error"]
    studio.browser.post(f"/studio/run/{studio.run}/comparison/stop", json={})
    assert studio.get("comparison").json()["job"]["over"]


def test_a_comparison_that_waits_outlives_the_gui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studio = Studio(tmp_path, state="running")
    monkeypatch.setattr("kohya_gui.tools.tool_job.sees_no_gpu", lambda: False)
    monkeypatch.setattr("kohya_gui.generate.checkpoints_routes.TOOL", "this")  # prints text and ends
    studio.start(checkpoints=[str(studio.files[0])], prompt=["a cat"])
    assert CompareJob(studio.queue).watched is None  # the GUI that has it is alive
    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    restarted = studio.restarted()
    assert restarted.get("comparison").json()["job"]["doing"] == "starts when cat ends"
    assert "already being compared" in restarted.start(checkpoints=[str(studio.files[0])], prompt=["b"]).json()["error"]
    restarted.queue.store.end(studio.run, "finished")
    restarted.queue._start_tools()
    (folder,) = (tmp_path / "state").rglob("*-compare-checkpoints")
    wait_for(lambda: "Zen of Python" in RunFolder(folder).console_tail())
    wait_for(lambda: restarted.get("comparison").json()["job"]["over"])
    assert CompareJob(studio.queue).watched is None  # it is over


def test_a_comparison_that_runs_is_found_by_the_next_gui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studio = Studio(tmp_path)
    job = CompareJob(studio.queue)
    job.begin([sys.executable, "-c", "import time; time.sleep(60)"], record={"run": studio.run})
    assert job.watched
    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    restarted = studio.restarted()
    assert not restarted.get("comparison").json()["job"]["over"]
    job.watched.end_now()
    wait_for(lambda: restarted.get("comparison").json()["job"]["over"])


def test_a_comparison_that_was_stopped_while_it_waited_is_not_started_by_the_next_gui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = Studio(tmp_path, state="running")
    monkeypatch.setattr("kohya_gui.tools.tool_job.sees_no_gpu", lambda: False)
    studio.start(checkpoints=[str(studio.files[0])], prompt=["a cat"])
    studio.browser.post(f"/studio/run/{studio.run}/comparison/stop", json={})
    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    assert studio.restarted().get("comparison").json()["job"] is None


def test_a_different_rule_marks_a_different_checkpoint_immediately(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    assert studio.get("comparison").json()["result"] is None
    studio.write_result()
    told = studio.get("comparison").json()
    assert told["result"]["best"] == 2
    assert "measured" not in told["result"]
    assert studio.get(f"comparison?known={told['known']}").status_code == 204
    earliest = studio.get(f"comparison?known={told['known']}&rule=earliest&within=1").json()
    assert earliest["result"]["best"] == 1
    assert studio.get("comparison?rule=earliest&within=nan").json()["result"]["best"] == 1
    assert studio.get("comparison?rule=nonsense").json()["result"]["best"] == 2


def test_only_images_of_the_comparison_are_sent_and_become_a_form(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    studio.write_result()
    image = studio.result / "cat_x1.png"
    told = {"prompt": "a cat", "steps": 4, "scale": 1.0, "seed": 7, "width": 64, "height": 64, "family": "flux"}
    chunks = text_chunks({**told, "adapters": [{"name": "cat", "strength": 0.5, "path": str(studio.files[0])}]})
    Media(frames=torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).write(image, chunks)
    assert studio.get("comparison/image/cat_x1.png").headers["content-type"] == "image/png"
    form = studio.get("comparison/form/cat_x1.png").json()
    assert form["adapters"] == [{"path": str(studio.files[0]), "strength": 0.5}]
    assert form["values"]["image_seed"] in (7, "7")
    make_clip(studio.result / GRID_CLIP)
    grid = studio.get(f"comparison/image/{GRID_CLIP}")
    assert (grid.headers["content-type"], "attachment" in grid.headers["content-disposition"]) == ("video/mp4", True)
    for name in (RESULT, "gone.png", "..%2Fconfig.toml"):
        assert studio.get(f"comparison/image/{name}").status_code == 404
    Image.new("RGB", (8, 8)).save(studio.result / "plain.png")
    assert "no parameters" in studio.get("comparison/form/plain.png").json()["error"]


def view(studio: Studio, known: str = "") -> Any:
    return studio.browser.get(f"/studio/run/{studio.run}?known={known}")


def test_a_runs_view_shows_its_images_without_and_with_the_lora(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    empty = view(studio).json()
    assert empty["sections"]["before_after"] == ""
    prompts = [{"prompt": "<b>cat", "seed": 1}, {"prompt": "dog", "seed": 1}]
    images = {(0, 0): "a #1.png", (0, 1): "b.png", (1, 0): "c.png", (1, 1): ""}  # the last is not made yet
    cells = [{"checkpoint": 2, "prompt": p, "strength": s, "image": name} for (p, s), name in images.items()]
    earlier = {"checkpoint": 1, "prompt": 0, "strength": 1, "image": "earlier.png"}
    studio.write_result(strengths=[0.0, 1.0], prompts=prompts, cells=[*cells, earlier], best=2)
    answer = view(studio, empty["known"])
    assert answer.status_code == 200, "a comparison changes the view"
    section = answer.json()["sections"]["before_after"]
    addresses = re.findall(f'studio/run/{studio.run}/comparison/image/([^"]*)', section)
    assert addresses == ["a%20%231.png", "b.png"]
    assert "&lt;b&gt;cat" in section
    assert "<b>cat" not in section
    assert "<video" not in section
    assert view(studio, answer.json()["known"]).status_code == 204


def test_a_runs_view_plays_its_clips_without_and_with_the_lora(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    cells = [{"checkpoint": 2, "prompt": 0, "strength": s, "image": f"{s}.mp4"} for s in (0, 1)]
    studio.write_result(strengths=[0.0, 1.0], prompts=[{"prompt": '"><script>', "seed": 1}], cells=cells)
    section = view(studio).json()["sections"]["before_after"]
    address = f"studio/run/{studio.run}/comparison/image/1.mp4"
    assert f'<video src="{address}" data-poster="{address}?poster=1"' in section
    assert "<script>" not in section


@pytest.mark.parametrize(
    "wrong",
    [
        {"strengths": [1.0]},
        {"strengths": [0.0, "x"]},
        {"strengths": [0.0, 1.0], "cells": [7]},
        {"strengths": [0.0, 1.0], "prompts": ["cat"]},
    ],
)
def test_a_comparison_without_pairs_or_written_by_others_shows_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    cells = [{"checkpoint": 2, "prompt": 0, "strength": s, "image": f"{s}.png"} for s in (0, 1)]
    studio.write_result(**{"prompts": [{"prompt": "cat", "seed": 1}], "cells": cells, **wrong})
    assert view(studio).json()["sections"]["before_after"] == ""
