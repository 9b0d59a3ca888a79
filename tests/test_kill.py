"""A process may be killed anywhere: its newest state is whole, and the same command given again ends as if nothing had
been."""

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh import console_to, outcome, processes
from training_help import FULL, Run, equal, images, train

from sd_scripts.formats.atomic_files import GONE, OLD, PART
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.recovery import newest_state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills processes that fork")

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
class Moment:
    """When a process dies: the `time`-th time that something happens which `matches`."""

    what: str
    """Kind of an event of the run; or what Python's audit hook calls it, just before it is done."""
    matches: str = ""
    """In the values of the event, or the arguments of what is done."""
    time: int = 1
    later: float = 0.0
    """So many seconds after it."""
    within: float = 0.0
    """In the write that fills the file to this share of the model's size."""

    def __str__(self) -> str:
        how = f" within {self.within}" if self.within else " later" if self.later else ""
        return f"{self.what} {self.matches} {self.time}{how}".replace("\\", "")


MOMENTS = (
    # reading and loading
    Moment("open", r"noise.*\.png', 'r'"),
    Moment("phase", "loading", later=0.05),
    # caching
    Moment("phase", "caching latents", time=2),
    Moment("open", r"_(sdxl|te_outputs)\.safetensors\.\d+\.part", time=2),
    Moment("os.rename", r"_(sdxl|te_outputs)\.safetensors", time=3),
    Moment("os.rename", r"_(sdxl|te_outputs)\.safetensors", time=4),
    # steps
    Moment("started"),
    Moment("step", "'step': 1,"),
    Moment("step", "'step': 2,", later=0.01),
    Moment("step", "'step': 3,", later=0.02),
    Moment("epoch"),
    # a file
    Moment("open", r"\.short-step00000002\.safetensors\.\d+\.part", within=0.5),
    Moment("os.rename", r"short-step00000003\.safetensors'"),
    Moment("saved", r"short-step00000003\.safetensors"),
    # a state
    Moment("os.mkdir", r"\.short-step00000002-state\.\d+\.part"),
    Moment("os.mkdir", r"\.short-step00000003-state\.\d+\.part", within=0.5),
    Moment("open", r"\.short-step00000003-state\.\d+\.part/progress\.json"),
    Moment("os.rename", r"short-step00000003-state'"),
    # what leaves the window
    Moment("os.remove", r"short-step00000001\.safetensors'"),
    Moment("os.rename", r"short-step00000001-state'.*\.gone"),
    Moment("os.remove", r"'(state\.pt|progress\.json)'"),
    # samples
    Moment("phase", "sampling", later=0.01),
    Moment("os.rename", r"\.png"),
    # the end
    Moment("open", r"\.short\.safetensors\.\d+\.part", within=0.5),
    Moment("os.rename", r"short\.safetensors'"),
    Moment("os.rename", r"short-state'"),
    Moment("finished"),
)


@pytest.fixture(scope="module")
def undisturbed(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a method that nobody kills. Do not write to it."""
    runs: dict[str, Run] = {}

    def run(method: str) -> Run:
        if method not in runs:
            runs[method] = begin(miniature, tmp_path_factory.mktemp(method) / "out", method)
            assert runs[method].status == 0
        return runs[method]

    return run


def begin(miniature: Any, output: Path, method: str) -> Run:
    """The command of this test, always the same."""
    prompts = output.with_name("prompts.txt")
    prompts.write_text("a red circle --w 64 --h 64 --s 1 --d 7")
    data = images(output.with_name("images"), count=3)
    values = {**SETTINGS, **OF_METHOD[method], "sample_prompts": prompts, "train_data_dir": data}
    return train(miniature, output, method, **values)


def begin_and_die(miniature: Any, output: Path, method: str, moment: Moment | None, size: int) -> None:
    """In a process of its own."""
    output.parent.mkdir(exist_ok=True)
    console_to(output.parent / "console.txt")
    if moment:
        die_at(moment, size)
    sys.exit(begin(miniature, output, method).status)


def die_at(moment: Moment, size: int) -> None:
    """Let this process be killed at that moment; `size`: bytes of the model's file."""
    left = moment.time

    def happens(what: str, details: object) -> None:
        nonlocal left
        if what != moment.what or not re.search(moment.matches, str(details)):
            return
        left -= 1
        if left:
            return
        if moment.later:
            signal.signal(signal.SIGALRM, die)
            signal.setitimer(signal.ITIMER_REAL, moment.later)
        elif moment.within:
            import resource

            signal.signal(signal.SIGXFSZ, die)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(moment.within * size), resource.RLIM_INFINITY))
        else:
            die()

    tell = EventLog.__call__

    def told(log: EventLog, kind: Any, **facts: Any) -> None:
        tell(log, kind, **facts)
        happens(kind, facts)

    EventLog.__call__ = told  # type: ignore[method-assign]
    sys.addaudithook(happens)


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ending(*arguments: Any) -> int:
    """Exit code of a process that begins the run."""
    process = processes().Process(target=begin_and_die, args=arguments)
    process.start()
    return outcome(process)


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_killed_run_that_is_begun_again_ends_as_if_nothing_had_been(
    method: str, moment: Moment, undisturbed: Any, miniature: Any, tmp_path: Path
) -> None:
    whole: Run = undisturbed(method)
    output, size = tmp_path / "out", (whole.output / "short.safetensors").stat().st_size
    assert ending(miniature, output, method, moment, size) == -signal.SIGKILL

    killed = Run(-signal.SIGKILL, output, RunFolder(output / "run"))
    states = [event["step"] for event in killed.told("saved") if event["path"].endswith("-state")]
    starts = len(killed.told("started"))
    newest = newest_state(output, "short")
    if newest:
        assert {"learning", "optimizer"} < torch.load(newest.folder / "state.pt", weights_only=True).keys()
    assert (newest.progress.step if newest else 0) >= max(states, default=0)

    assert ending(miniature, output, method, None, size) == 0
    again = Run(0, output, RunFolder(output / "run"))
    begun = again.told("started")[starts:]
    resumed = [str(newest.folder) if newest else None] if moment.what != "finished" else []
    assert [event.get("resumed_from") for event in begun] == resumed
    assert [name for name in again.files if name != "sample"] == [name for name in whole.files if name != "sample"]
    assert not [path for path in output.rglob("*") if path.name.endswith((f".{PART}", f".{OLD}", f".{GONE}"))]
    for name in (name for name in whole.files if name.endswith(".safetensors")):
        assert equal(again.tensors(name), whole.tensors(name)), name
