"""Stop, save and sample, asked of a running run."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sd_scripts import flux_train_network
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.compiling import compile_progress
from sd_scripts.training.context import Context
from sd_scripts.training.reporting import StepReporter
from tests.support.suite.fresh import console_to, outcome, processes
from tests.support.training import equal, images, settings_for, train

pytestmark = pytest.mark.run


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask for something while a step is under way, as the page does: `ask(step, *listener)`."""

    def ask(step: int, *listener: Any) -> None:
        tell = StepReporter.step

        def told(reporter: StepReporter, facts: Any, *tensors: Any) -> None:
            if facts.step == step:
                for wish in listener:
                    RunFolder(reporter._context.run_dir).command(wish)
            tell(reporter, facts, *tensors)

        monkeypatch.setattr(StepReporter, "step", told)

    return ask


def test_a_stopped_run_ends_its_step_and_resumes_exactly(
    ask: Any, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = images(tmp_path / "images", count=3)
    whole = train(any_miniature, tmp_path / "whole", train_data_dir=root, max_train_steps=5)
    ask(2, "stop")
    stopped = train(any_miniature, tmp_path / "stopped", train_data_dir=root, max_train_steps=5)
    monkeypatch.undo()
    assert stopped.status == 0
    assert stopped.steps == [1, 2]
    assert stopped.events[-1]["kind"] == "stopped"
    assert stopped.files == ["short-step00000002-state", "short-step00000002.safetensors"]
    state = stopped.output / "short-step00000002-state"
    rest = train(any_miniature, tmp_path / "rest", train_data_dir=root, max_train_steps=5, resume=state)
    assert stopped.losses + rest.losses == whole.losses
    assert equal(rest.tensors(), whole.tensors())


def test_a_save_command_writes_file_and_state_and_the_run_continues(
    ask: Any, any_miniature: Any, tmp_path: Path
) -> None:
    ask(2, "save")
    made = train(any_miniature, tmp_path / "out")
    assert made.steps == [1, 2, 3]
    assert made.files == ["short-step00000002-state", "short-step00000002.safetensors", "short.safetensors"]
    assert [(event["command"], event["step"]) for event in made.events_of("heard")] == [("save", 2)]
    assert "saving" in [event["name"] for event in made.events_of("phase")]


def test_a_sample_command_generates_samples(ask: Any, any_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 1")
    ask(2, "sample")
    made = train(any_miniature, tmp_path / "out", sample_prompts=prompts)
    assert [event["step"] for event in made.events_of("sample")] == [2]


def test_a_sample_command_without_prompts_is_answered(ask: Any, any_miniature: Any, tmp_path: Path) -> None:
    ask(2, "sample")
    made = train(any_miniature, tmp_path / "out")
    assert made.steps == [1, 2, 3]
    assert "sample_prompts" in made.events_of("warning")[-1]["text"]


def test_a_stop_at_the_last_step_is_the_end(ask: Any, any_miniature: Any, tmp_path: Path) -> None:
    ask(3, "stop")
    made = train(any_miniature, tmp_path / "out")
    assert made.events[-1]["kind"] == "finished"


def test_a_command_left_by_an_earlier_run_in_this_folder_is_ignored(any_miniature: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out" / "run")
    folder.command("stop")
    log = folder.log()
    log("finished", step=3)
    log.close()
    assert train(any_miniature, tmp_path / "out").steps == [1, 2, 3]


def test_a_command_sent_during_startup_is_received(any_miniature: Any, tmp_path: Path) -> None:
    """Nothing is cached, so the first chance is the end of the first step."""
    folder = RunFolder(tmp_path / "out" / "run")
    folder.path.mkdir(parents=True)
    lines = [{"time": 1.0, "kind": "stop", "id": "a1"}, {"time": 2.0, "kind": "stop", "id": "b2"}]
    (folder.path / "commands.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = train(any_miniature, tmp_path / "out", cache_latents=None, cache_text_encoder_outputs=None)
    assert made.steps == [1]
    (poll,) = made.events_of("heard")
    assert (poll["command"], poll["ids"], poll["step"]) == ("stop", ["a1", "b2"], 1)


@pytest.mark.usefixtures("no_graphs")
def test_a_run_reports_what_its_page_shows(any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_progress, "EVERY", 0.0)  # a quick machine compiles both graphs between two events
    made = train(any_miniature, tmp_path / "out", train_batch_size=2, gradient_accumulation_steps=2)
    (started,) = made.events_of("started")
    assert started["family"] == any_miniature.family
    assert started["images_per_step"] == 2  # an epoch has one batch
    assert [event["name"] for event in made.events_of("phase") if "done" not in event] == [
        "reading the dataset", "loading", "caching latents", "caching text", "loading", "training", "saving",
    ]  # fmt: skip
    assert made.events_of("step")[0]["ram"] > 2**20
    compiled = train(any_miniature, tmp_path / "compiled", compile=True, compile_backend="eager")
    assert "training" not in [
        event["name"] for event in compiled.events_of("phase")
    ]  # which the first step reports itself
    compiling = [event for event in compiled.events_of("phase") if event["name"] == "compiling"]
    assert "compiling" not in {event["name"] for event in made.events_of("phase")}
    assert any(re.fullmatch(r"\d+ of about \d+ graphs?", event.get("note", "")) for event in compiling)
    assert compiling[-1]["time"] < compiled.events_of("step")[0]["time"]  # sent while the first step waits


def test_malformed_commands_are_ignored(any_miniature: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out" / "run")
    folder.path.mkdir(parents=True)
    (folder.path / "commands.jsonl").write_text('[]\n"stop"\n{"time": 1.0}\n{"time": 1.0, "kind": "dance"}\nhalf')
    made = train(any_miniature, tmp_path / "out")
    assert made.steps == [1, 2, 3]
    assert made.events_of("heard") == []


def test_ctrl_c_before_the_first_step_reports_that_nothing_was_trained(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Context, "phase", lambda context, name: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        made = train(any_miniature, tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.status == 130
    assert made.events[-1]["kind"] == "stopped"
    assert made.files == []
    assert "nothing was trained" in capsys.readouterr().err


@pytest.mark.parametrize("cached", ["caching latents", "caching text"])
def test_a_stop_command_is_received_while_caches_are_filled(
    cached: str, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = Context.phase

    def asked(context: Context, name: str) -> Any:
        if name == cached:
            RunFolder(context.run_dir).command("stop")
        return phase(context, name)

    monkeypatch.setattr(Context, "phase", asked)
    made = train(any_miniature, tmp_path / "out")
    assert made.status == 130
    assert made.events[-1]["kind"] == "stopped"
    assert made.events_of("phase")[-1]["name"] == cached
    assert [(event["command"], event["step"]) for event in made.events_of("heard")] == [("stop", 0)]
    assert made.files == []


def test_a_run_restores_the_ctrl_c_handler(any_miniature: Any, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    train(any_miniature, tmp_path / "out", max_train_steps=1)
    assert signal.getsignal(signal.SIGINT) is before


def _train_in_a_terminal(config: Path, console: Path) -> int:
    """In a process of its own, which receives a terminal's signals; a job in the background may ignore it."""
    console_to(console)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(flux_train_network.main(["--config_file", str(config)]))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for other processes")
@pytest.mark.parametrize("ending", ["SIGINT", "SIGHUP"])
def test_ctrl_c_and_a_closed_terminal_end_the_step_save_and_exit_with_0(
    ending: str, any_miniature: Any, tmp_path: Path
) -> None:
    output, config, console = tmp_path / "out", tmp_path / "run.toml", tmp_path / "console.txt"
    values = {
        **settings_for(any_miniature),
        **{"train_data_dir": images(tmp_path / "images"), "output_dir": output, "run_dir": output / "run"},
    }
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    write_toml(config, {**plain, "max_train_steps": 100_000})
    process = processes().Process(target=_train_in_a_terminal, args=(config, console))
    process.start()
    tail = RunFolder(output / "run").events()
    end = time.monotonic() + 60
    while not any(event["kind"] == "step" for event in tail):
        assert process.is_alive(), console.read_text()
        assert time.monotonic() < end
        time.sleep(0.1)
    assert process.pid
    os.kill(process.pid, signal.Signals[ending])
    assert outcome(process) == 0, console.read_text()
    assert "Traceback" not in console.read_text()
    events = list(RunFolder(output / "run").events())
    assert events[-1]["kind"] == "stopped"
    step = events[-1]["step"]
    assert (output / f"short-step{step:08d}.safetensors").is_file()
    assert (output / f"short-step{step:08d}-state" / "state.pt").is_file()
