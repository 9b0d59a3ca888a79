"""Runs in which torch.compile fails: reported in plain words, and not lost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL

from sd_scripts.machine import compile_cache
from sd_scripts.training.reporting import StepReporter
from tests.support.backends import FailingCode, backends
from tests.support.data import make_folder
from tests.support.training import Run, images, train, train_whole

pytestmark = [
    pytest.mark.deep,
    pytest.mark.usefixtures("no_graphs"),
]


BROKEN = {"cpp.cxx": (None, "/no/such/compiler"), "force_disable_caches": True}
"""For inductor. SDXL's first block needs its compiler soonest."""


@pytest.fixture(scope="module")
def plain(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps, not compiled. Do not write to it."""
    return train(any_miniature, tmp_path_factory.mktemp("plain") / "out", network_args=["train_blocks=single"])


def test_a_compiler_failure_is_reported_and_the_run_continues(miniature: Any, tmp_path: Path) -> None:
    with torch._inductor.config.patch(BROKEN):
        run = train(miniature, tmp_path / "run", compile=True, compile_dynamic="false")
    assert run.status == 0
    assert run.losses == pytest.approx(train(miniature, tmp_path / "plain").losses, rel=1e-5)
    (warning,) = [event["text"] for event in run.events_of("warning") if "torch.compile failed" in event["text"]]
    assert "The run continues without compiling" in warning
    assert "install a C++ compiler" in warning


def test_with_fullgraph_a_compiler_that_fails_ends_the_run_in_one_sentence(
    miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch._inductor.config.patch(BROKEN):
        run = train(miniature, tmp_path / "run", compile=True, compile_fullgraph=True)
    assert run.status == 1
    (failed,) = run.events_of("failed")
    assert "torch.compile failed" in failed["error"]
    assert "compile_fullgraph" in failed["remedy"]
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def stances(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How guards were evaluated in each step that configured the compiler."""
    noted, set_stance = list[dict[str, Any]](), torch.compiler.set_stance

    def note(stance: str, **how: Any) -> Any:
        if how:
            noted.append(how)
        return set_stance(stance, **how)

    monkeypatch.setattr(torch.compiler, "set_stance", note)
    return noted


QUICK: dict[str, Any] = {"compile": True, "network_args": ["train_blocks=single"]}
"""Double blocks without LoRA are traced in half the time."""
TRACED: dict[str, Any] = {**QUICK, "compile_backend": "eager"}


def test_guards_are_not_skipped_with_the_option_off(
    any_miniature: Any, stances: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = train(any_miniature, tmp_path / "run", **TRACED, compile_skip_guards=False)
    assert run.status == 0
    assert stances == []


def test_a_graph_that_is_gone_while_guards_are_skipped_is_compiled_again(
    any_miniature: Any, stances: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = [], StepReporter.step

    def forgets(self: StepReporter, *report: Any, **more: Any) -> float:
        steps.append(report)
        if len(steps) == 3:  # the third of which skips guards already
            torch._dynamo.reset()
        return step(self, *report, **more)

    whole = train(any_miniature, tmp_path / "whole", **TRACED, max_train_steps=5)
    assert stances == [{"skip_guard_eval_unsafe": True}] * 3  # of five steps, all but the first two
    monkeypatch.setattr(StepReporter, "step", forgets)
    run = train(any_miniature, tmp_path / "run", **TRACED, max_train_steps=5)
    assert run.losses == whole.losses
    assert run.events_of("warning") == whole.events_of("warning") == []
    assert [event["step"] for event in run.events_of("compile") if event.get("graphs")][-1] == 4


LIMITED = {**TRACED, "compile_cache_size_limit": 1}


@pytest.fixture
def two_sizes(tmp_path: Path) -> dict[str, Any]:
    make_folder(tmp_path / "data" / "1_noise", [(96, 96), (64, 96)])
    return {"train_data_dir": tmp_path / "data", "resolution": "96,96", "max_train_steps": 4}


def test_graphs_beyond_the_limit_are_reported_once_and_the_run_continues_eagerly(
    two_sizes: dict[str, Any], any_miniature: Any, tmp_path: Path
) -> None:
    run = train(any_miniature, tmp_path / "run", **two_sizes, **LIMITED)
    assert run.status == 0
    assert len(run.events_of("started")[0]["shapes"]) == 2
    assert [event["text"] for event in run.events_of("warning")] == [
        "compile_cache_size_limit: 1 graphs for each kind of block are not enough; further shapes run "
        "uncompiled, which is slow. Set it to 0, which computes it"
    ]
    torch._dynamo.reset()
    enough = train(any_miniature, tmp_path / "enough", **two_sizes, **{**LIMITED, "compile_cache_size_limit": 0})
    assert enough.events_of("warning") == []
    assert run.losses == pytest.approx(enough.losses, rel=1e-5)


def test_with_fullgraph_graphs_beyond_the_limit_end_the_run_in_one_sentence(
    two_sizes: dict[str, Any], any_miniature: Any, tmp_path: Path
) -> None:
    run = train(any_miniature, tmp_path / "run", compile_fullgraph=True, **two_sizes, **LIMITED)
    assert run.status == 1
    (failed,) = run.events_of("failed")
    assert failed["remedy"].startswith("set compile_cache_size_limit = 0, or turn compile_fullgraph off")


FAILING = {"compile": True, "compile_backend": "eager", "max_train_steps": 3}


def plain_error() -> Exception:
    return RuntimeError("graph recording observed an input tensor deallocate")


ACCUMULATED = {**FAILING, "gradient_accumulation_steps": 2, "network_args": ["rank_dropout=0.3"]}


@pytest.fixture(scope="module")
def eager(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of two batches each, not compiled. Do not write to it."""
    values = {**ACCUMULATED, "compile": False, "compile_backend": "inductor"}
    return train(any_miniature, tmp_path_factory.mktemp("eager") / "out", **values)


@pytest.mark.parametrize(
    ("in_backward", "nth"),
    [(False, 1), (True, 23)],  # the second of a step's two batches, while guards are skipped
    ids=["forward of the first step", "backward of a later one"],
)
def test_an_error_of_compiled_code_in_any_step_is_reported_and_the_step_restarts_without_it(
    in_backward: bool, nth: int, eager: Run, any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FailingCode(nth, plain_error, in_backward=in_backward)
    monkeypatch.setitem(backends(), "eager", backend)
    run = train(any_miniature, tmp_path / "run", **ACCUMULATED)
    assert backend.left == 0
    assert run.status == 0
    assert run.losses == pytest.approx(eager.losses, rel=1e-5)
    (warning,) = [event["text"] for event in run.events_of("warning") if "torch.compile failed" in event["text"]]
    assert warning.startswith("torch.compile failed: RuntimeError: graph recording observed an input tensor")


def test_weights_that_a_failed_fused_backward_had_updated_are_updated_once(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGD at one rate: a second update of the first partitions would be twice as far from where they began."""
    values = {
        **FAILING, "mixed_precision": "bf16", "full_bf16": True, "fused_backward_pass": True, "max_train_steps": 1,
        "save_state": True,
    }  # fmt: skip
    backend = FailingCode(3, plain_error, in_backward=True)
    monkeypatch.setitem(backends(), "eager", backend)
    run = train_whole(any_miniature, tmp_path / "run", **values)
    assert backend.left == 0
    assert run.status == 0
    state = torch.load(run.output / "short-state" / "state.pt", weights_only=True)["optimizer"]
    assert {partition["steps"] for partition in state["portions"]} == {1}


def test_running_out_of_memory_is_not_a_compiler_error(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FailingCode(2, lambda: torch.OutOfMemoryError("CUDA out of memory"), in_backward=False)
    monkeypatch.setitem(backends(), "eager", full)
    run = train(any_miniature, tmp_path / "run", **FAILING)
    assert run.status == 1
    assert "the GPU is out of memory" in run.events_of("failed")[0]["error"]


REDUCED = {**QUICK, "compile_mode": "reduce-overhead"}
BY_OPTION = {**QUICK, "compile_options": ["triton.cudagraphs=True"]}


@pytest.fixture
def compiled_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[FailingCode], list[bool]]:
    """Let a backend compile what inductor would; gives back whether it was asked for CUDA graphs, graph by graph."""

    def use(backend: FailingCode) -> list[bool]:
        asked: list[bool] = []

        def compile_fx(graph: torch.fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
            asked.append(bool(how["config_patches"].get("triton.cudagraphs")))
            return backend(graph, inputs)

        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
        return asked

    return use


def test_a_run_reports_a_warm_start_and_locks_its_cache(
    compiled_with: Callable[[FailingCode], list[bool]],
    any_miniature: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, used = tmp_path / "cache", list[bool]()

    class Watching(FailingCode):
        def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            used.append(bool(compile_cache.users_of(folder)))
            return super().__call__(graph, inputs)

    monkeypatch.setenv(compile_cache.VARIABLE, str(folder))
    compiled_with(Watching(0, plain_error, in_backward=False))
    with torch._inductor.config.patch({"compile_threads": 1}):
        cold = train(any_miniature, tmp_path / "cold", compile_vae=True, max_train_steps=1)
        for key in ("akey", "bkey"):
            (folder / "aotautograd" / key).mkdir(parents=True)
        torch._dynamo.reset()
        warm = train(any_miniature, tmp_path / "warm", compile_vae=True, max_train_steps=1)
    assert "cached_before" not in cold.events_of("compile")[0]
    assert warm.events_of("compile")[0]["text"] == "Warm start: the compiler cache contains 2 graphs of earlier runs"
    assert used
    assert all(used)
    assert compile_cache.users_of(folder) == []


@pytest.mark.parametrize(
    ("values", "option", "continues"),
    [
        (REDUCED, "compile_mode", "with compile_mode = default"),
        (BY_OPTION, "compile_options", "without triton.cudagraphs"),
    ],
)
def test_failing_cuda_graphs_are_dropped_and_the_run_stays_compiled(
    values: dict[str, Any],
    option: str,
    continues: str,
    compiled_with: Callable[[FailingCode], list[bool]],
    plain: Run,
    any_miniature: Any,
    tmp_path: Path,
) -> None:
    asked = compiled_with(FailingCode(10, plain_error, in_backward=False))
    run = train(any_miniature, tmp_path / "run", **values)
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)
    (warning,) = [event["text"] for event in run.events_of("warning") if "compile" in event["text"]]
    assert warning.startswith(f"{option}: CUDA graphs failed: RuntimeError: graph recording observed")
    assert f"The run continues {continues}, which compiles again" in warning
    assert asked == sorted(asked, reverse=True)
    assert asked.count(True) == asked.count(False)  # every graph was made again


def test_blocks_have_no_cuda_graphs_with_gradient_checkpointing(
    compiled_with: Callable[[FailingCode], list[bool]], any_miniature: Any, tmp_path: Path
) -> None:
    """Nor can the step be recorded as a whole if a layer draws random numbers."""
    asked = compiled_with(FailingCode(0, plain_error, in_backward=False))
    values = {"gradient_checkpointing": True, "network_dropout": 0.1, "max_train_steps": 1}
    run = train(any_miniature, tmp_path / "run", **BY_OPTION, **values)
    assert run.status == 0
    assert asked
    assert not any(asked)
    assert [event["text"] for event in run.events_of("warning") if "compile" in event["text"]] == [
        "compile_options: a step cannot be recorded as a CUDA graph with network_dropout, so it runs compiled without "
        "CUDA graphs"
    ]


def test_an_error_before_the_first_step_is_not_attributed_to_cuda_graphs(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*arguments: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AutoencoderKL, "encode", encode)
    run = train(any_miniature, tmp_path / "run", train_data_dir=images(tmp_path / "images"), **REDUCED)
    (failed,) = run.events_of("failed")
    assert failed["error"] == "the GPU is out of memory"
