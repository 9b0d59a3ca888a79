"""Before a run is started under a name that is in use, the page asks."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.runs.overwriting import Taken, answered, find_taken, question
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    return RunQueue(RunStore(tmp_path / "runs.sqlite"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def taken(queue: RunQueue, out: Path, **values: Any) -> Taken | None:
    return find_taken({"output_dir": str(out), "output_name": "cat", **values}, queue)


def waiting(queue: RunQueue, out: Path, name: str) -> None:
    folder = new_run_folder(out / "runs", name)
    folder.config.write_text(f'output_dir = "{out.as_posix()}"\noutput_name = "{name}"\n')
    queue.store.add(folder.path, tab="lora", family="sdxl", state="queued", gpus="cpu", name=name)


def ways(found: Taken) -> list[str]:
    return re.findall('data-answer="(.*?)"', question(found))


def test_a_name_without_files_needs_no_question(queue, out):
    (out / "cat2.safetensors").touch()
    assert taken(queue, out) is None
    assert find_taken({"output_name": "cat"}, queue) is None


def test_files_of_an_earlier_run_are_named_and_can_be_kept_or_replaced(queue, out):
    for name in (
        "cat.safetensors",
        "cat-000001.safetensors",
        "cat-000002.safetensors",
        "cat-2.safetensors",
        "cat-ema.safetensors",
    ):
        (out / name).touch()
    found = taken(queue, out)
    assert ways(found) == ["rename:cat", "replace:cat"]
    files = "'cat-000001.safetensors', 'cat-000002.safetensors', 'cat-ema.safetensors' and 1 more"
    assert files in unescape(question(found))
    values = {"output_dir": str(out), "output_name": "cat", "seed": 1}
    assert answered(values, "rename:cat", found) == {**values, "output_name": "cat-3"}
    assert answered(values, "replace:cat", found) == {**values, "overwrite": True}
    assert find_taken({**values, "overwrite": True}, queue) is None
    assert find_taken({**values, "resume": "latest"}, queue) is None


def test_a_run_with_a_state_can_be_continued(queue, out):
    (out / "cat-000001-state").mkdir()
    found = taken(queue, out)
    assert ways(found) == ["rename:cat", "continue:cat", "replace:cat"]
    assert answered({}, "continue:cat", found) == {"resume": "latest"}


def test_a_waiting_run_reserves_its_name_before_it_has_files(queue, out, tmp_path):
    waiting(queue, out, "cat")
    waiting(queue, out, "cat-2")
    found = taken(queue, out)
    assert "a run that is queued" in question(found)
    assert ways(found) == ["rename:cat", "replace:cat"]
    assert found.free_name == "cat-3"
    (tmp_path / "elsewhere").mkdir()
    assert taken(queue, tmp_path / "elsewhere") is None


def test_an_answer_to_a_different_question_is_ignored(queue, out):
    (out / "cat.safetensors").touch()
    found = taken(queue, out)
    assert answered({}, "replace:dog", found) is None
    assert answered({}, "continue:cat", found) is None
    assert answered({}, "", found) is None


def test_a_run_without_a_name_is_called_last(queue, out):
    (out / "last.safetensors").touch()
    found = taken(queue, out, output_name=None)
    assert (found.name, found.free_name) == ("last", "last-2")
