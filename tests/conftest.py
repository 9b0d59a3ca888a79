"""What several test modules need: a miniature model of each family for the whole run."""

import atexit
import gc
import logging
import os
import pickle
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import kohya_gui.server.lean_gradio  # noqa: F401  # before a test imports Gradio
from tests.support.miniatures import MINIATURES
from tests.support.suite import tiers

SUITE = "tests.support.suite"
pytest_plugins = [f"{SUITE}.balance", f"{SUITE}.spending", f"{SUITE}.warm_python", "pytester"]

gc.disable()  # until everything is imported
# every server that the tests talk to is on this machine, where a proxy of the environment does not lead
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join([*filter(None, [os.environ.get(name)]), "localhost", "127.0.0.1", "::1"])
# compiled code is very slow with more threads than free cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
# inductor tries in each process, with a compiler and a fresh Python for each, which vector instructions it may use:
# longer than compiling what a test is about
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# and compiles in a pool of processes, each of which imports PyTorch first
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# what runs remember of their speed is not for the user who tests
state = tempfile.mkdtemp(prefix="tests-state-")
atexit.register(shutil.rmtree, state, ignore_errors=True)
os.environ["LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME"] = state


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m fast alone, modules of other tiers are not even imported, which takes a third of the time."""
    return True if config.option.markexpr == "fast" and tiers.tier_of_file(collection_path) != "fast" else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = tiers.tier_of(item.path, [mark.name for mark in item.iter_markers()])
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name not in tiers.TIERS]
        item.add_marker(tier)
    for module in {item.getparent(pytest.Module) for item in items} - {None}:  # else a test of another tier had two
        module.own_markers[:] = [mark for mark in module.own_markers if mark.name not in tiers.TIERS]


def pytest_collection_finish() -> None:
    """The garbage collector need not look at all that was imported, again and again: half a second each time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # when nothing else is known to stay, Python's own lead to full collections
    gc.enable()
    if guards := sys.modules.get("torch._dynamo.guards"):
        # how long guards take is only for PyTorch's logs; it empties the processor's caches for it, 30 ms a graph
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
        # with TORCHINDUCTOR_VEC_ISA_OK inductor still tries some extensions of the vector instructions: it does without
        from torch._inductor.cpu_vec_isa import VecISA

        VecISA.check_build = lambda *_: False  # type: ignore[method-assign]
        # PyTorch describes each graph at length if this logger has a handler, which pytest gives to those like it
        logging.getLogger("torch.__trace").propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    (tiers.current,) = {mark.name for mark in item.iter_markers()}.intersection(tiers.TIERS)
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()  # again: which fixtures were made just now depends on the order of the tests


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """After an uncompiled run, later ones in this process compile as configured."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames and (left := frames._stance.stance) != "default":
        sys.modules["torch"].compiler.set_stance("default")  # only the test that left it fails
        raise AssertionError(f"the stance of the compiler is still {left}")


def _seed() -> None:
    """Let random numbers of a test not depend on the tests before it."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        # torch.manual_seed keeps, for each kind of device that is not in use yet, a description of who called it
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture
def no_graphs() -> Iterator[None]:
    """The compiler knows no graphs and counts none, before and after."""
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _miniature(family: str, name: str) -> Any:
    @pytest.fixture(scope="session", name=name)
    def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
        """The files of a tiny model, its tokenizers next to them, captioned images, and control images if it reads
        them. Do not write to it."""
        from sd_scripts.families.cards.registry import module_of

        return _written_once(name, module_of(family, "tiny").write_miniature, tmp_path_factory)

    return make


def _written_once(name: str, write: Callable[[Path], Any], folders: pytest.TempPathFactory) -> Any:
    """Let the first process of pytest-xdist write a miniature; return this process's copy."""
    own = folders.mktemp(name)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return write(own)
    common = folders.getbasetemp().parent / name
    with FileLock(f"{common}.lock"):
        if not common.exists():
            made = write(own)
            Path(f"{common}.pickle").write_bytes(pickle.dumps((made, own)))
            shutil.copytree(own, f"{common}.part")
            Path(f"{common}.part").rename(common)
            return made
    shutil.copytree(common, own, dirs_exist_ok=True)
    made, place = pickle.loads(Path(f"{common}.pickle").read_bytes())
    files = {option: own / path.relative_to(place) for option, path in made.files.items()}
    return replace(made, files=files, data_dir=own / made.data_dir.relative_to(place))


for family, name in MINIATURES.items():  # a fixture of each family's miniature, by the name that tests ask for
    globals()[f"{family}_fixture"] = _miniature(family, name)


@pytest.fixture(scope="session")
def any_miniature(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Behaviour that depends on no family is tested on a FLUX.1 of two blocks of each kind, too few to be swapped,
    which trains twice as fast as SDXL. Do not write to it."""
    from sd_scripts.families.flux.tiny import SHAPE, write_miniature

    shape = replace(SHAPE, double_blocks=2, single_blocks=2)
    return _written_once("any_miniature", lambda folder: write_miniature(folder, shape), tmp_path_factory)


@pytest.fixture(scope="session", params=["sdxl", "flux", "qwen_image"])
def each_miniature(request: pytest.FixtureRequest) -> Any:
    """Behaviour common to families is tested on each that has code of its own; the contract is tested on all."""
    return request.getfixturevalue(MINIATURES[request.param])
