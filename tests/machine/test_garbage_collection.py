"""Objects that stay are visited once, and garbage is still found."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch._dynamo.utils import counters

from sd_scripts.machine import garbage_collection
from sd_scripts.training.process import pauses
from tests.support.runs import wait_for
from tests.support.suite import fresh

pytestmark = pytest.mark.run


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def _is_preloaded() -> int:
    return 0 if "tests.support.suite.preloaded" in sys.modules and gc.get_freeze_count() > 100_000 else 1


@fresh.needs_fork
def test_fresh_processes_start_with_everything_imported(tmp_path: Path) -> None:
    assert fresh.together(1, tmp_path, _is_preloaded) == ([0], "")


TELLS = """
import json, os, sys
preloaded = "tests.support.suite.preloaded" in sys.modules
print(json.dumps([os.getppid(), os.getcwd(), dict(os.environ), sys.argv, preloaded]))
print("no end", file=sys.stderr)
sys.exit(3)
"""


@fresh.needs_fork
def test_a_forked_python_is_a_child_like_any_other(tmp_path: Path, warm_python: None) -> None:
    started = subprocess.run(
        [sys.executable, "-c", TELLS, "a b"], cwd=tmp_path, env={"NAME": "value"}, capture_output=True, text=True
    )
    assert (started.returncode, started.stderr) == (3, "no end\n")
    assert json.loads(started.stdout) == [os.getpid(), str(tmp_path), {"NAME": "value"}, ["-c", "a b"], True]


STARTS_A_READER = """
import subprocess, sys, time
reader = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE)
print(reader.pid, flush=True)
time.sleep(60)
"""


@fresh.needs_fork
def test_a_forked_python_notices_the_end_of_its_parent(warm_python: None) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS_A_READER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        reader = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not psutil.pid_exists(reader) or psutil.Process(reader).status() == psutil.STATUS_ZOMBIE, 30)


def _imports(folder: str) -> int:
    sys.path.insert(0, folder)
    gc.collect()
    before, collected = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
    with garbage_collection.importing():
        import many_objects  # type: ignore[import-not-found]

        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() - before >= len(many_objects.KEPT)
    assert gc.get_stats()[2]["collections"] == collected
    frozen, ring = gc.get_freeze_count(), weakref.ref(Ring())
    with garbage_collection.importing():
        import many_objects
    assert gc.get_freeze_count() == frozen  # nothing new was imported, and current garbage is still collected later
    gc.collect()
    assert ring() is None
    return 0


@fresh.needs_fork
def test_imported_objects_are_exempt_and_later_garbage_is_freed(tmp_path: Path) -> None:
    (tmp_path / "many_objects.py").write_text("KEPT = [[number] for number in range(200_000)]\n")
    codes, told = fresh.together(1, tmp_path, _imports, str(tmp_path))
    assert codes == [0], told


def _pauses() -> int:
    kept = [[number] for number in range(20_000)]
    with pauses.without_pauses(compiles=True):
        frozen = gc.get_freeze_count()
        pauses.PAUSE = 60.0
        gc.collect()
        assert gc.get_freeze_count() == frozen
        pauses.PAUSE = 0.0
        gc.collect(1)
        assert gc.get_freeze_count() == frozen
        ring = weakref.ref(Ring())
        gc.collect()
        assert ring() is None
        assert gc.get_freeze_count() - frozen >= len(kept)
    frozen = gc.get_freeze_count()
    kept += [[number] for number in range(20_000)]
    gc.collect()
    assert gc.get_freeze_count() == frozen
    return 0


@fresh.needs_fork
def test_after_a_long_collection_its_survivors_are_exempt(tmp_path: Path) -> None:
    codes, told = fresh.together(1, tmp_path, _pauses)
    assert codes == [0], told


def test_ctrl_c_during_a_collection_is_not_lost() -> None:
    def interrupted(phase: str, info: dict[str, Any]) -> None:
        gc.callbacks.remove(interrupted)
        signal.raise_signal(signal.SIGINT)

    def collect() -> None:
        gc.callbacks.append(interrupted)
        gc.collect()
        threading.Event().wait(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of the tests ignore it
    try:
        with pauses.without_pauses(compiles=False), pytest.raises(KeyboardInterrupt):
            collect()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin `gc.collect:UserWarning")
def test_collections_within_compiled_code_compile_nothing(no_graphs: None) -> None:
    @torch.compile(backend="eager")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        gc.collect(0)
        return x * 2

    doubled(torch.ones(3))
    frames = counters["frames"]["total"]
    with pauses.without_pauses(compiles=True):
        doubled(torch.ones(3))
    assert counters["frames"]["total"] == frames


def test_imports_that_fail_leave_the_collector_on() -> None:
    with pytest.raises(ImportError), garbage_collection.importing():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()
