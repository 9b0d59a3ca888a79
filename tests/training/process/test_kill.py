"""A process may be killed anywhere: its newest state is whole, and repeating the command ends like an uninterrupted
run."""

import json
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sd_scripts.formats.atomic_files import GONE, OLD, PART
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.saving.recovery import clean_up, newest_state
from tests.support.suite.fresh import console_to, outcome, processes
from tests.support.suite.moments import Moment, linked_tree, put_back, record, recorded
from tests.support.training import FULL, Run, equal, images, train

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes that fork"),
]

IMAGES = 3
SETTINGS: dict[str, Any] = {
    "max_train_steps": 4,
    "save_every_n_steps": 1,
    "save_last_n_steps": 1,
    "save_state": True,
    "resume": "latest",
    "cache_latents": None,
    "cache_latents_to_disk": True,
    "cache_text_encoder_outputs": None,
    "cache_text_encoder_outputs_to_disk": True,
    "sample_every_n_steps": 3,
}
"""Three images are an epoch; at step 3 files and states leave the window."""
OF_METHOD: dict[str, dict[str, Any]] = {
    "lora": {"network_args": ["rank_dropout=0.3"]},
    "full": {**FULL, "mixed_precision": "bf16", "save_precision": "float", "use_ema": True},
}


@dataclass(frozen=True)
class Recording:
    """An uninterrupted run, and its files at each moment."""

    model: Any
    method: str
    root: Path
    store: Path
    moments: list[Moment]
    recovered: dict[frozenset[str], Moment] = field(default_factory=dict)
    """The results of recovery at the moments: the paths there are -> the first moment that leads to them."""

    @property
    def output(self) -> Path:
        return self.root / "out"

    @property
    def left(self) -> Run:
        """Files of a killed run."""
        return Run(-signal.SIGKILL, self.output, RunFolder(self.output / "run"))

    def files(self, ending: str = "") -> dict[str, str]:
        """Return name -> hash of the content of the files in the whole run's output folder."""
        found = {
            path.removeprefix("out/"): content for path, content in self.moments[-1].tree.items() if path[:4] == "out/"
        }
        return {name: content for name, content in found.items() if name.endswith(ending)}

    @property
    def losses(self) -> list[float]:
        """The losses of the whole run."""
        events = map(json.loads, (self.store / self.files()["run/events.jsonl"]).read_text().splitlines())
        return [event["loss"] for event in events if event["kind"] == "step"]

    def faults(self) -> list[str]:
        """Return how the run, restarted from the current files, ends differently from the whole one."""
        before = len(self.left.events_of("started"))
        newest = newest_state(self.output, "short")
        finished = newest and newest.progress.step == SETTINGS["max_train_steps"]
        some_cached = 0 < len(list(self.root.rglob("[!.]*_te_outputs.*"))) < IMAGES
        again = begin(self.model, self.root, self.method)
        faults = [] if again.status == 0 else [f"status {again.status}: {again.events_of('failed')}"]
        begun = [event.get("resumed_from") for event in again.events_of("started")[before:]]
        if begun != ([] if finished else [str(newest.folder) if newest else None]):
            faults.append(f"resumed from {begun}")
        wanted = {path.partition("/")[0] for path in self.files()} - {"run"}
        strange = ({*again.files} ^ wanted) - {"sample"}  # of a step that is not done again
        if not newest:  # files without a state belong to an earlier run
            strange = {name for name in strange if not re.match(r"short-\d{8}-\d{6}-", name)}
        faults += [f"files: {sorted(strange)}"] if strange else []
        faults += [f"left over: {path}" for path in self.output.rglob("*") if path.name.endswith(LEFTOVERS)]
        if some_cached:  # the others are encoded in a different batch and rounded differently
            return faults + ([] if again.losses == pytest.approx(self.losses, rel=1e-4) else ["other losses"])
        return faults + [
            f"other tensors: {name}"
            for name, content in self.files(".safetensors").items()
            if not equal(again.tensors(name), safetensors.torch.load_file(self.store / content))
        ]


LEFTOVERS = (f".{PART}", f".{OLD}", f".{GONE}")
WHOLE = (".safetensors", ".pt", ".json", ".png")


@pytest.fixture(scope="module", params=["lora", "full"])
def recording(
    request: pytest.FixtureRequest, any_miniature: Any, tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    root, store = tmp_path_factory.mktemp(request.param), tmp_path_factory.mktemp("store") / "store"
    prepare(root)
    process = processes().Process(target=record, args=(root, store, begin_apart, any_miniature, root, request.param))
    process.start()
    assert outcome(process) == 0
    return Recording(any_miniature, request.param, root, store, recorded(store))


def prepare(root: Path) -> None:
    images(root / "images", count=IMAGES)
    (root / "prompts.txt").write_text("a red circle --w 64 --h 64 --s 1 --d 7")


def begin(model: Any, root: Path, method: str) -> Run:
    """The command of this test, always the same."""
    values = {
        **SETTINGS,
        **OF_METHOD[method],
        "sample_prompts": root / "prompts.txt",
        "train_data_dir": root / "images",
    }
    return train(model, root / "out", method, **values)


def begin_apart(model: Any, root: Path, method: str) -> int:
    console_to(root.with_name(f"{root.name}.console.txt"))
    return begin(model, root, method).status


def recover(recording: Recording, moment: Moment) -> list[str]:
    """Clean up after a run that was killed at this moment, and return the problems left."""
    put_back(moment, recording.root, recording.store, os.link)
    told = [event["step"] for event in recording.left.events_of("saved") if event["path"].endswith("-state")]
    newest = newest_state(recording.output, "short")
    step = newest.progress.step if newest else 0
    clean_up(recording.output, "short", recording.output / "run")
    everything = linked_tree(recording.root, recording.store)
    there = {path for path in everything if not path.startswith("out/run")}
    leftovers = {path for path in everything if path.endswith(LEFTOVERS)}
    finished = {"finished"} if recording.left.events_of("finished") else set()
    recording.recovered.setdefault(frozenset(there - leftovers | finished), moment)
    lost = [f"step {max(told)} is lost, the newest state is of {step}"] if step < max(told, default=0) else []
    return lost + [f"left over: {path}" for path in leftovers if path.startswith("out/")]


@pytest.fixture(scope="module")
def recovered(recording: Recording) -> dict[str, list[str]]:
    """The problems after recovery, for each moment."""
    return {moment.label: recover(recording, moment) for moment in recording.moments}


def test_after_a_kill_at_any_moment_the_newest_state_is_found_and_nothing_is_left_over(
    recording: Recording, recovered: Any
) -> None:
    assert len(recording.moments) > 100
    assert {label: wrong for label, wrong in recovered.items() if wrong} == {}


def test_no_file_is_ever_incomplete_under_its_name(recording: Recording) -> None:
    contents: dict[str, set[str]] = {}
    for path, content in ((path, content) for moment in recording.moments for path, content in moment.tree.items()):
        if path.endswith(WHOLE) and "/." not in path:
            contents.setdefault(path, set()).add(content)
    assert {path.rpartition(".")[2] for path in contents} == {ending[1:] for ending in WHOLE}
    assert [path for path, different in contents.items() if len(different) > 1] == []


def test_each_state_contains_the_trained_weights_and_their_optimizer(recording: Recording) -> None:
    states = {
        content
        for moment in recording.moments
        for path, content in moment.tree.items()
        if path.endswith("-state/state.pt")
    }
    assert len(states) == 4
    for content in states:
        assert {"learning", "optimizer"} < torch.load(recording.store / content, weights_only=True).keys()


@pytest.mark.parametrize("recording", ["full"], indirect=True, scope="module")
def test_a_killed_and_restarted_run_equals_an_uninterrupted_one(recording: Recording, recovered: Any) -> None:
    """From all that recovery can lead to, which is the same for a LoRA but for what its state holds."""
    assert len(recording.recovered) > 15
    wrong = {}
    for moment in recording.recovered.values():
        put_back(moment, recording.root, recording.store)
        if faults := recording.faults():
            wrong[moment.label] = faults
    assert wrong == {}


@pytest.mark.parametrize("where", ["within a file", "between file and state", "in a step"])
@pytest.mark.parametrize("recording", ["lora"], indirect=True, scope="module")
def test_a_process_that_is_really_killed_leaves_a_consistent_state(
    where: str, recording: Recording, any_miniature: Any, tmp_path: Path
) -> None:
    """Its folder is one of those that were recorded, but for the times in it."""
    prepare(tmp_path)
    size = (recording.store / recording.files()["short.safetensors"]).stat().st_size
    process = processes().Process(target=begin_and_die, args=(where, size, any_miniature, tmp_path, recording.method))
    process.start()
    assert outcome(process) == -signal.SIGKILL
    left = {re.sub(r"\d{3,7}(?=\.)", "", str(path.relative_to(tmp_path))) for path in tmp_path.rglob("*")}
    known = [{re.sub(r"\d{3,7}(?=\.)", "", path) for path in moment.tree} for moment in recording.moments]
    assert left in known
    killed = Recording(any_miniature, recording.method, tmp_path, recording.store, recording.moments)
    assert killed.faults() == []


def begin_and_die(where: str, size: int, model: Any, root: Path, method: str) -> None:
    """In a process of its own; `size`: bytes of the model's file."""

    def about_to(what: str, arguments: tuple[Any, ...]) -> None:
        if where == "within a file" and what == "open" and ".short-step00000002.safetensors." in str(arguments[0]):
            import resource

            signal.signal(signal.SIGXFSZ, die)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))
        if where == "between file and state" and what == "os.rename" and str(arguments[1]).endswith("00000003-state"):
            die()

    def told(log: EventLog, kind: Any, **payload: Any) -> None:
        tell(log, kind, **payload)
        if where == "in a step" and kind == "step" and payload["step"] == 2:
            signal.signal(signal.SIGALRM, die)
            signal.setitimer(signal.ITIMER_REAL, 0.001)

    tell = EventLog.__call__
    EventLog.__call__ = told  # type: ignore[method-assign]
    sys.addaudithook(about_to)
    begin_apart(model, root, method)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
