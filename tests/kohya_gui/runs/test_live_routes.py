"""The page's requests while trainings run: the routes, against a real list of runs and real run folders."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.configuration import open_file, prepare
from kohya_gui.runs.live_routes import routes
from kohya_gui.runs.past_runs import continued, plan
from kohya_gui.tabs import TABS
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.store import RunStore
from tests.support.clips import make_clip
from tests.support.gui import startable
from tests.support.runs import TELLING, wait_for
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.run

REPO = Path(__file__).parents[3]
PNG = b"\x89PNG\r\n\x1a\n not much of an image"


class Studio:
    """A list of runs with its routes, as a browser reaches them; nothing is started unless the queue is opened."""

    def __init__(self, folder: Path, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self.folder = folder
        self.queue = RunQueue(RunStore(folder / "runs.sqlite"), every=0.05)
        self.browser = TestClient(Starlette(routes=routes(self.queue, allowed_paths)))

    def get(self, path: str, **facts: Any) -> Any:
        return self.browser.get(f"/studio/{path}", **facts)

    def post(self, path: str, body: Any = None) -> Any:
        return self.browser.post(f"/studio/{path}", json=body or {})

    def wait(self, name: str, program: str = "", **settings: Any) -> int:
        """A run in the queue."""
        folder = new_run_folder(self.folder / "runs", name)
        folder.config.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
        argv = [sys.executable, "-c", program, str(folder.path)]
        facts: dict[str, Any] = {"name": name, "tab": "lora", "family": "sdxl", "gpus": "cpu"}
        return self.queue.add(PlannedRun(folder=folder, argv=argv, environment={"PYTHONPATH": str(REPO)}, **facts))

    def over(self, name: str, tell: Callable[[EventLog], None], **settings: Any) -> int:
        """A past run, with its events."""
        run = self.wait(name, **settings)
        log = self.run_folder(run).log()
        tell(log)
        log.close()
        self.queue.store.update(run, state="finished", started=1.0, ended=2.0, place=None)
        return run

    def run_folder(self, run: int) -> RunFolder:
        row = self.queue.store.row(run)
        assert row
        return RunFolder(row.folder)

    def names(self) -> list[str]:
        return [run["name"] for run in self.get("board").json()["runs"]]


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Studio]:
    made = Studio(tmp_path)
    yield made
    for row in made.queue.store.living():
        made.queue.watch(row.id).end_now()
    made.queue.close()


def steps(count: int) -> Callable[[EventLog], None]:
    def tell(log: EventLog) -> None:
        log("started", max_steps=count, epochs=1)
        for step in range(1, count + 1):
            log("step", step=step, epoch=1, loss=1 / step, average=0.25, lr={"unet": 1e-4}, seconds=0.1)
        log("validation", step=count, loss=0.5)
        log("finished", step=count)

    return tell


def test_the_board_lists_the_newest_run_first_and_is_sent_again_only_when_it_changed(studio):
    studio.over("old", steps(3))
    studio.wait("new")
    told = studio.get("board").json()
    assert [(run["name"], run["state"], run["place"]) for run in told["runs"]] == [
        ("new", "queued", 1),
        ("old", "finished", None),
    ]
    assert (told["runs"][1]["loss"], told["runs"][1]["can_continue"]) == (0.25, False)
    assert (told["paused"], told["after_failure"]) == (False, True)
    assert studio.get(f"board?known={told['version']}").status_code == 204
    studio.wait("newest")
    assert studio.get(f"board?known={told['version']}").status_code == 200


def test_a_short_board_still_has_every_run_that_is_not_over(studio):
    studio.wait("first")
    for name in ("a", "b", "c"):
        studio.over(name, steps(1))
    runs = studio.get("board?limit=1").json()["runs"]
    assert [run["name"] for run in runs] == ["c", "first"]


def test_a_short_board_has_the_newest_run_of_each_tab_that_is_over(studio):
    embeddings = [studio.over(name, steps(1)) for name in ("a", "b")]
    for id in embeddings:
        studio.queue.store.update(id, tab="textual_inversion")
    for name in ("c", "d", "e"):
        studio.over(name, steps(1))
    assert [run["name"] for run in studio.get("board?limit=1").json()["runs"]] == ["e", "b"]


def test_a_run_is_sent_as_sections_and_again_only_after_new_events(studio):
    run = studio.over("cat", steps(5))
    told = studio.get(f"run/{run}").json()
    assert {"head", "controls", "tiles", "where"} <= told["sections"].keys()
    assert "step 5 of 5" in told["sections"]["head"]
    assert (told["state"], told["over"], told["curves"]) == ("finished", True, 6)
    assert studio.get(f"run/{run}", params={"known": told["known"]}).status_code == 204


def test_a_run_that_is_not_on_the_list_is_reported_in_a_sentence(studio):
    for path in ("run/77", "run/77/curves", "run/77/console", "run/77/sample/0", "run/77/file/0"):
        answer = studio.get(path)
        assert (answer.status_code, answer.json()) == (404, {"error": "This run is no longer in the list"})
    assert studio.post("run/77/stop").status_code == 404


@pytest.mark.parametrize("number", ["9" * 18, "9" * 19, "9" * 22, "9" * 5000, "-1", "1e3", "\u0661"])
def test_a_number_that_no_run_has_is_not_found(studio, number):
    studio.over("cat", steps(1))
    for path in (f"run/{number}", f"run/{number}/curves", f"run/1/sample/{number}", f"run/1/file/{number}"):
        assert studio.get(path).status_code == 404
    assert studio.post(f"run/{number}/stop").status_code == 404
    assert studio.get(f"compare?ids={number},1").status_code == 400
    if number.isascii() and number.isdecimal() and len(number) < 4000:
        assert studio.post("runs/forget", {"ids": [int(number), -int(number)]}).json()["removed"] == 0


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("value", [HOSTILE, [HOSTILE], {"a": HOSTILE}, True, "1e999", "1" + "0" * 400, "NaN", None])
def test_non_finite_numbers_in_a_shared_run_folder_never_reach_the_page(studio, value):
    run = studio.wait("shared")
    written = json.dumps(value) if not isinstance(value, str) or "<" in value else value
    names = ("epochs", "images_per_step", "step", "resumed_from", "method", "family")
    told = json.dumps({"kind": "started", "max_steps": 4})
    lines = [told[:-1] + "".join(f', "{name}": {written}' for name in names) + "}"]
    for name in ("time", "epoch", "loss", "average", "seconds", "vram", "ram", "lr"):
        lines.append(f'{{"kind": "step", "step": 2, "{name}": {written}}}')
    for kind in ("step", "phase", "epoch", "validation", "sample", "saved", "compile", "warning", "failed", "finished"):
        for name in ("step", "done", "total", "bytes", "width", "height", "seed", "number", "graphs", "recompiles"):
            path = str(studio.folder / "a.png")
            told = {"kind": kind, "step": 3, "name": "x", "text": "x", "path": path, "prompt": "x"}
            lines.append(json.dumps({**told, "slot": 0}).replace('"slot": 0', f'"{name}": {written}'))
        for name in (
            "name",
            "note",
            "text",
            "path",
            "prompt",
            "option",
            "error",
            "remedy",
            "details",
            "kind",
            "loss",
            "time",
        ):
            lines.append(json.dumps({"kind": kind, "step": 3, "slot": 0}).replace('"slot": 0', f'"{name}": {written}'))
    (studio.folder / "a.safetensors").write_bytes(b"weights")
    lines.append(json.dumps({"kind": "saved", "step": 3, "path": str(studio.folder / "a.safetensors")}))
    lines.append('{"kind": "finished", "step": 3}')
    studio.run_folder(run).events_file.write_text("\n".join(lines) + "\n")
    studio.queue.store.update(run, state="finished", started=1.0, ended=2.0, place=None)
    for path in (f"run/{run}", f"run/{run}/curves", "board"):
        answer = studio.get(path)
        assert answer.status_code == 200, answer.text
        shown = {
            name: value for name, value in answer.json().items() if name != "marks"
        }  # drawn as text: test_chart.py
        assert "<img" not in json.dumps(shown)


def test_a_long_curve_is_sent_in_a_thousand_bins_and_finer_when_zoomed(studio):
    run = studio.over("long", steps(5000))
    whole = studio.get(f"run/{run}/curves").json()
    assert (whole["level"], whole["start"], whole["max_steps"]) == (3, 0, 5000)
    assert len(whole["bins"]) == 625
    near = studio.get(f"run/{run}/curves?first=101&last=300").json()
    assert (near["level"], near["start"], len(near["bins"])) == (0, 100, 200)
    assert near["bins"][0] == [101.0, *[pytest.approx(1 / 101, rel=1e-5)] * 3]
    assert whole["validation"] == [[5000.0, 0.5]]
    assert 0 < len(whole["seconds"]) <= 250
    assert len(whole["rates"]["unet"]) <= 250


def test_a_growing_curve_is_read_from_its_last_bin(studio):
    run = studio.wait("growing")
    log = studio.run_folder(run).log()
    studio.queue.store.update(run, state="finished", place=None)
    told = steps(2001)
    told(log)
    whole = studio.get(f"run/{run}/curves?level=2").json()
    assert len(whole["bins"]) == 501
    end = studio.get(f"run/{run}/curves?level=2&after=499").json()
    assert (end["start"], end["bins"]) == (499, whole["bins"][499:])
    assert studio.get(f"run/{run}/curves?level=2&after=9999").json()["bins"] == []


def test_marks_of_the_compiler_are_sent_to_a_page_that_does_not_have_them(studio):
    def told(log):
        log("compile", step=1, text="1 graph", compiled=[{"block": "Block", "why": ""}], broke=["a.py:3"])

    run = studio.over("marked", told)
    assert studio.get(f"run/{run}/curves?marks=0").json()["marks"] == [
        {"step": 1, "kind": "graph break", "lines": ["1 graph", "graph break at a.py:3"]}
    ]
    assert "marks" not in studio.get(f"run/{run}/curves?marks=1").json()


@pytest.mark.parametrize("asked", ["level=-1", "level=x", "after=1e9", "first=nan&last=inf", "level=99999999999999"])
def test_nonsense_in_a_request_for_a_curve_harms_nothing(studio, asked):
    run = studio.over("cat", steps(5))
    assert studio.get(f"run/{run}/curves?{asked}").status_code == 200


def test_the_console_is_searched_and_sent_again_only_when_it_grew(studio):
    run = studio.over("cat", steps(1))
    studio.run_folder(run).console.write_text("loading\n\x1b[1mstep 1\x1b[0m\nstep 2\n")
    told = studio.get(f"run/{run}/console").json()
    assert told["lines"] == [[1, "loading"], [2, "step 1"], [3, "step 2"]]
    assert studio.get(f"run/{run}/console?known={told['known']}").status_code == 204
    assert studio.get(f"run/{run}/console?find=STEP").json()["lines"] == [[2, "step 1"], [3, "step 2"]]
    assert studio.get(f"run/{run}/console?lines=1").json()["lines"] == [[3, "step 2"]]


# Files


def with_files(studio: Studio) -> int:
    """A run that reports an image, a model and a state, and of a text, a link and a lost file as samples."""
    folder = studio.folder / "out"
    (folder / "cat-state").mkdir(parents=True)
    (folder / "cat-state" / "progress.json").write_text("{}")
    (folder / "a.png").write_bytes(PNG)
    (folder / "secret.txt").write_text("secret")
    (folder / "cat.safetensors").write_bytes(b"weights")
    os.symlink(folder / "secret.txt", folder / "link.png")

    def tell(log: EventLog) -> None:
        for name in ("a.png", "secret.txt", "link.png", "gone.png"):
            log("sample", path=str(folder / name), step=4, prompt="a <b>cat</b>", seed=7, number=0, width=64, height=32)
        for name in ("cat.safetensors", "cat-state"):
            log("saved", path=str(folder / name), step=4, bytes=7)
        log("stopped", step=4)

    return studio.over("cat", tell)


def test_a_sample_comes_with_its_prompt_and_is_served_once_while_unchanged(studio):
    run = with_files(studio)
    sample = studio.get(f"run/{run}").json()["samples"][0]
    assert {name: sample[name] for name in ("step", "prompt", "seed", "number", "width", "height", "media")} == {
        **{"step": 4, "prompt": "a <b>cat</b>", "seed": 7, "number": 0, "width": 64, "height": 32, "media": "image"}
    }
    image = studio.browser.get(f"/{sample['url']}")
    assert (image.content, image.headers["content-type"]) == (PNG, "image/png")
    again = studio.browser.get(f"/{sample['url']}", headers={"If-None-Match": image.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_a_saved_model_is_downloaded_under_its_name(studio):
    answer = studio.get(f"run/{with_files(studio)}/file/0")
    assert answer.content == b"weights"
    assert 'attachment; filename="cat.safetensors"' in answer.headers["content-disposition"]


def two_runs_of_one_name(studio: Studio, kept_as: str, fingerprint: bool) -> tuple[int, int]:
    """The first run's model is kept as `kept_as` when the second writes its own."""
    folder = studio.folder / "out"
    folder.mkdir()
    path, runs = folder / "cat.safetensors", []
    for content in (b"first", b"other"):
        if runs:
            path.rename(folder / kept_as)
        path.write_bytes(content)
        if runs and not fingerprint:
            os.utime(path, (time.time() + 3600,) * 2)
        facts = {"mtime_ns": path.stat().st_mtime_ns} if fingerprint else {}

        def tell(log: EventLog, facts: dict[str, int] = facts) -> None:
            log("saved", path=str(path), step=4, bytes=5, **facts)
            log("finished", step=4)

        runs.append(studio.over("cat", tell))
    return runs[0], runs[1]


def test_an_older_runs_model_is_delivered_under_the_name_that_it_is_kept_under(studio):
    first, second = two_runs_of_one_name(studio, "cat-20250101-101112.safetensors", fingerprint=True)
    answer = studio.get(f"run/{first}/file/0")
    assert answer.content == b"first"
    assert 'filename="cat-20250101-101112.safetensors"' in answer.headers["content-disposition"]
    assert "cat-20250101-101112.safetensors" in studio.get(f"run/{first}").json()["sections"]["result"]
    assert studio.get(f"run/{second}/file/0").content == b"other"


@pytest.mark.parametrize("fingerprint", [True, False])
def test_an_older_run_never_delivers_the_model_of_a_later_one(studio, fingerprint):
    first, _ = two_runs_of_one_name(studio, "elsewhere.safetensors", fingerprint)
    answer = studio.get(f"run/{first}/file/0")
    assert answer.status_code == 404
    assert "overwritten by a later run" in answer.json()["error"]
    told = studio.get(f"run/{first}").json()["sections"]
    assert "overwritten by a later run" in told["files"]
    assert "Download" not in told["files"]
    assert "overwritten by a later run" in told["result"]


@pytest.mark.parametrize(
    "path",
    ["sample/1", "sample/2", "sample/3", "sample/4", "file/1", "file/2", "sample/-1", "sample/..%2f0", "file/0%00"],
)
def test_only_images_and_models_the_run_reported_are_served(studio, path):
    answer = studio.get(f"run/{with_files(studio)}/{path}")
    assert answer.status_code == 404
    assert b"secret" not in answer.content


def test_a_file_outside_of_the_allowed_folders_is_not_served(tmp_path):
    studio = Studio(tmp_path, AllowedPaths.within([tmp_path / "elsewhere"]))
    run = with_files(studio)
    for path in ("sample/0", "sample/0?poster=1", "file/0"):
        answer = studio.get(f"run/{run}/{path}")
        assert answer.status_code == 404
        assert "outside the allowed folders" in answer.json()["error"]


def test_a_clip_is_sent_in_parts_and_with_a_poster(studio):
    folder = studio.folder / "out"
    clip = make_clip(folder / "a.mp4", size=(64, 48))
    content = clip.read_bytes()
    (folder / "broken.mp4").write_bytes(content[:-9])
    (folder / "old.webp").write_bytes(b"RIFF")  # clips of before are animated images

    def tell(log: EventLog) -> None:
        told = {"step": 4, "media": "clip", "width": 64, "height": 48}
        for name in ("a.mp4", "broken.mp4", "old.webp"):
            log("sample", path=str(folder / name), number=0, frames=3, fps=12.5, **told)
        log("sample", path=str(clip), frames="many", fps=[], **told)  # anyone may write events

    run = studio.over("cat", tell)
    samples = studio.get(f"run/{run}").json()["samples"]
    assert [(each["ending"], each["frames"], each["fps"]) for each in samples] == [
        *((ending, 3, 12.5) for ending in (".mp4", ".mp4", ".webp")),
        (".mp4", 1, 0),
    ]
    whole, part, end, none = (
        studio.get(f"run/{run}/sample/0", headers={"Range": f"bytes={asked}"} if asked else {})
        for asked in ("", "4-7", "-5", f"{len(content)}-")
    )
    assert (whole.content, whole.headers["content-type"], whole.headers["accept-ranges"]) == (
        content,
        "video/mp4",
        "bytes",
    )
    assert "media-src 'self'" in whole.headers["content-security-policy"]  # else a tab of its own cannot play it
    assert (part.status_code, part.content) == (206, b"ftyp")
    assert part.headers["content-range"] == f"bytes 4-7/{len(content)}"
    assert (end.status_code, end.content) == (206, content[-5:])
    assert none.status_code == 416
    poster = studio.get(f"run/{run}/sample/0?poster=1")
    assert (poster.content[:3], poster.headers["content-type"]) == (b"\xff\xd8\xff", "image/jpeg")
    known = {"If-None-Match": poster.headers["etag"]}
    assert studio.get(f"run/{run}/sample/0?poster=1", headers=known).status_code == 304
    assert studio.get(f"run/{run}/sample/1?poster=1").json() == {"error": "broken.mp4 cannot be read as a clip"}
    assert studio.get(f"run/{run}/sample/2").headers["content-type"] == "image/webp"


# What can be done


def test_no_link_can_act_on_a_run(studio):
    run = studio.wait("cat")
    assert studio.get(f"run/{run}/remove").status_code == 405


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_a_json_object_is_refused(studio, body):
    assert studio.browser.post("/studio/queue", content=body).status_code == 400


def test_the_queue_is_reordered_emptied_and_paused(studio):
    a, b, c = (studio.wait(name) for name in "abc")

    def order() -> list[int]:
        return [row.id for row in studio.queue.store.queued()]

    for run, action, then in ((c, "first", [c, a, b]), (c, "down", [a, c, b]), (b, "up", [a, b, c])):
        assert studio.post(f"run/{run}/{action}").json() == {"ok": True}
        assert order() == then
    folder = studio.run_folder(a).path
    assert studio.post(f"run/{a}/remove").json() == {"ok": True}
    assert order() == [b, c]
    assert not folder.exists()
    studio.post("queue", {"paused": True, "after_failure": False})
    board = studio.get("board").json()
    assert (board["paused"], board["after_failure"], board["notice"]) == (True, False, "")
    studio.queue.store.pause(True, "b failed")
    assert studio.get("board").json()["notice"] == "b failed"


def test_impossible_actions_are_reported_in_a_sentence(studio):
    run = studio.over("cat", steps(2))
    for action, why in (("stop", "is not running"), ("up", "is not in the queue"), ("continue", "no complete state")):
        answer = studio.post(f"run/{run}/{action}")
        assert answer.status_code == 400
        assert why in answer.json()["error"]
    assert studio.post(f"run/{run}/dance").status_code == 404
    assert studio.post(f"run/{studio.wait('waits')}/forget").status_code == 400


def test_several_runs_that_are_over_are_removed_from_the_list_together(studio):
    runs = [studio.over(name, steps(1)) for name in "abc"]
    waiting = studio.wait("waits")
    assert studio.post("runs/forget", {"ids": [*runs[:2], waiting, 99]}).json() == {"ok": True, "removed": 2}
    assert studio.names() == ["waits", "c"]
    assert studio.post("runs/forget", {"ids": "all"}).status_code == 400


def test_a_run_removed_from_the_queue_is_put_back(studio):
    run = studio.wait("cat")
    studio.post(f"run/{run}/remove")
    assert studio.names() == []
    assert studio.post(f"run/{run}/put_back").json() == {"ok": True}
    assert studio.names() == ["cat"]
    assert studio.post(f"run/{run}/put_back").status_code == 400


def test_a_run_is_renamed_and_gets_a_note(studio):
    run = studio.over("cat", steps(1))
    known = studio.get(f"run/{run}").json()["known"]
    assert studio.post(f"run/{run}/describe", {"name": " the\tgood\none ", "note": "a\0b\nc"}).json() == {"ok": True}
    told = studio.get(f"run/{run}?known={known}").json()
    assert (told["name"], told["note"]) == ("the good one", "ab\nc")
    assert studio.get("board").json()["runs"][0]["note"] == "ab\nc"
    studio.post(f"run/{run}/describe", {"name": "  ", "note": ""})
    assert studio.names() == ["the good one"]
    for body in ({"name": 5}, {"note": "x" * 5000}):
        assert studio.post(f"run/{run}/describe", body).status_code == 400


def test_the_curve_of_a_continued_run_includes_the_previous_runs(studio):
    def tell(first: int, last: int, state: str, resumed: str = "") -> Callable[[EventLog], None]:
        def told(log: EventLog) -> None:
            log("started", max_steps=30, epochs=1, step=first - 1, **({"resumed_from": resumed} if resumed else {}))
            for step in range(first, last + 1):
                log("step", step=step, epoch=1, loss=float(last), lr={"unet": 1e-4})
            log("saved", path=state, step=last)

        return told

    runs = []
    for number, (first, last, resumed) in enumerate(
        [(1, 10, ""), (9, 20, "/out/cat-1-state"), (21, 30, "/out/cat-2-state")]
    ):
        runs.append(studio.over("cat", tell(first, last, f"/out/cat-{number + 1}-state", resumed)))
        studio.queue.store.update(runs[-1], started=float(number + 1), ended=number + 1.5)
    assert [studio.get(f"run/{run}").json()["before"] for run in runs] == [0, 1, 2]
    alone = studio.get(f"run/{runs[2]}/curves").json()
    assert [step for step, *_ in alone["bins"]] == list(range(21, 31))
    for _ in range(2):  # asked again it is the same
        joined = studio.get(f"run/{runs[2]}/curves?joined=1").json()
        assert [step for step, *_ in joined["bins"]] == list(range(1, 31))
        assert [joined["bins"][step - 1][3] for step in (8, 9, 20, 21)] == [10, 20, 20, 30]
        assert len(joined["rates"]["unet"]) == 30
    studio.post(f"run/{runs[1]}/forget")
    assert studio.get(f"run/{runs[2]}/curves?joined=1").status_code == 200


def test_a_run_is_removed_from_the_list_and_its_folder_stays(studio):
    run = studio.over("cat", steps(2))
    folder = studio.run_folder(run).path
    assert studio.post(f"run/{run}/forget").json() == {"ok": True}
    assert studio.names() == []
    assert folder.is_dir()


def test_a_running_run_acknowledges_commands_and_stops(studio):
    run = studio.wait("cat", TELLING)
    studio.queue.open()

    def controls() -> str:
        return str(studio.get(f"run/{run}").json()["sections"]["controls"])

    wait_for(lambda: studio.get(f"run/{run}").json()["curves"] > 1)
    assert 'data-action="stop"' in controls()
    assert studio.post(f"run/{run}/save").json() == {"ok": True}
    wait_for(lambda: "Saved at step" in controls())
    assert studio.post(f"run/{run}/stop").json() == {"ok": True}
    wait_for(lambda: studio.get(f"run/{run}").json()["state"] == "stopped")
    wait_for(lambda: studio.get("board").json()["runs"][0]["state"] == "stopped")
    assert "Load settings" in controls()


LEAVES_SLOWLY = """
import sys, time
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
log = RunFolder(Path(sys.argv[1])).log()
log("started", max_steps=1, epochs=1)
log("step", step=1, epoch=1, loss=0.5)
log("finished", step=1)
time.sleep(600)
"""
"""A training that is over while its process still leaves."""


def test_a_finished_run_shows_its_end_before_its_process_exits(studio):
    run = studio.wait("cat", LEAVES_SLOWLY)
    studio.queue.open()
    wait_for(lambda: studio.queue.watch(run).refresh().over)
    brief = studio.get("board").json()["runs"][0]
    assert (brief["state"], brief["word"]) == ("finished", "Finished")
    assert brief["ended"] is not None
    assert studio.queue.store.row(run).ended is None


# Past runs


SETTINGS: dict[str, Any] = {
    "pretrained_model_name_or_path": "m.safetensors",
    "train_data_dir": "data",
    "resolution": "64",
    "output_name": "cat",
}


def test_a_run_continues_from_its_newest_state_as_a_new_run_with_the_same_settings(studio):
    out = studio.folder / "out"

    def tell(log: EventLog) -> None:
        for name in ("cat-000001-state", "cat-000002-state"):
            (out / name).mkdir(parents=True)
            (out / name / "progress.json").write_text("{}")
            log("saved", path=str(out / name), step=4)
        log("stopped", step=4)

    settings = {**SETTINGS, **startable(studio.folder), "output_dir": str(out), "seed": 3}
    run = studio.over("cat", tell, **settings)
    assert studio.get("board").json()["runs"][0]["can_continue"]
    answer = studio.post(f"run/{run}/continue").json()
    assert answer["ok"]
    config = studio.run_folder(answer["id"]).config
    assert config.parent != studio.run_folder(run).path
    assert read_toml(config) == {**SDXL_LORA.identity, **settings, "resume": str(out / "cat-000002-state")}
    row = studio.queue.store.row(answer["id"])
    assert row
    assert (row.state, row.name, row.tab, row.family) == ("queued", "cat", "lora", "sdxl")


def test_a_run_has_its_compile_options_in_file_and_command_and_keeps_them_when_it_is_opened_and_continued(tmp_path):
    out = tmp_path / "out"
    inductor = ["shape_padding=True", "max_autotune_gemm_backends='ATEN,TRITON'"]
    options = {"compile": True, "compile_mode": "max-autotune", "compile_options": inductor}
    values = {**SETTINGS, **startable(tmp_path), "output_dir": str(out), **options}
    prepared = prepare(values, SDXL_LORA, {}, print_only=False)
    flags = ["--compile", "--compile_mode", "max-autotune", "--compile_options", *inductor]
    assert prepared.command.argv[-8:-2] == flags
    assert prepared.folder
    assert read_toml(prepared.folder.config).items() >= options.items()
    studio = Studio(tmp_path)
    run = studio.queue.add(plan(prepared, TABS["lora"], "sdxl"))
    assert open_file(prepared.folder.config, TABS["lora"]).values == values
    (out / "cat-state").mkdir()
    (out / "cat-state" / "progress.json").write_text("{}")
    row = studio.queue.store.row(run)
    assert row
    again = continued(row, out / "cat-state")
    assert again.argv[-8:-2] == flags


def test_a_run_without_an_output_name_is_called_like_its_files(tmp_path):
    named = {**SETTINGS, **startable(tmp_path), "output_dir": str(tmp_path)}
    unnamed = {name: value for name, value in named.items() if name != "output_name"}
    for values, name in ((unnamed, "last"), ({**unnamed, "output_name": "dog"}, "dog")):
        assert plan(prepare(values, SDXL_LORA, {}, print_only=False), TABS["lora"], "sdxl").name == name


def test_runs_are_compared_by_the_settings_in_which_they_differ(studio):
    one = studio.over("one", steps(1), **SETTINGS, network_dim=8, seed=1)
    two = studio.over("two", steps(1), **SETTINGS, network_dim=16, seed=1)
    gone = studio.over("gone", steps(1), **SETTINGS)
    studio.run_folder(gone).config.unlink()
    told = studio.get(f"compare?ids={one},{two}").json()
    assert [run["name"] for run in told["runs"]] == ["one", "two"]
    assert told["settings"] == [{"option": "network_dim", "label": told["settings"][0]["label"], "values": ["8", "16"]}]
    three = studio.get(f"compare?ids={one},{gone}").json()["settings"]
    assert {setting["option"]: setting["values"] for setting in three}["network_dim"] == ["8", "–"]
    assert studio.get(f"compare?ids={one}").status_code == 400


def test_secrets_reach_the_queue_without_being_written(tmp_path):
    values = {
        **SETTINGS,
        **startable(tmp_path),
        "output_dir": str(tmp_path),
        "wandb_api_key": "s3cret",
        "gpu_ids": "1, 0",
    }
    prepared = prepare(values, SDXL_LORA, {}, print_only=False)
    planned = plan(prepared, TABS["lora"], "sdxl")
    assert planned.secrets == {"WANDB_API_KEY": "s3cret"}
    assert "s3cret" not in str([planned.argv, planned.environment])
    studio = Studio(tmp_path)
    studio.queue.add(planned)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert written == []
    assert "s3cret" not in studio.get("board").text
