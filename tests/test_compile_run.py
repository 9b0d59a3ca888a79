"""Runs that torch.compile fails in: told in plain words, and not lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_help import train


@pytest.fixture(autouse=True)
def _forget_graphs() -> Any:
    torch._dynamo.reset()
    yield
    torch.compiler.set_stance("default")


def test_a_compiler_that_fails_is_told_and_the_run_goes_on(miniature: Any, tmp_path: Path) -> None:
    broken = {"cpp.cxx": (None, "/no/such/compiler"), "force_disable_caches": True}
    with torch._inductor.config.patch(broken):
        run = train(miniature, tmp_path / "run", compile=True, compile_dynamic="false")
    assert run.status == 0
    assert run.losses == pytest.approx(train(miniature, tmp_path / "plain").losses, rel=1e-5)
    (warning,) = [event["text"] for event in run.told("warning") if "torch.compile failed" in event["text"]]
    assert "The run goes on without compiling" in warning
    assert "install a C++ compiler" in warning


def test_with_fullgraph_a_compiler_that_fails_ends_the_run_in_one_sentence(
    miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"cpp.cxx": (None, "/no/such/compiler"), "force_disable_caches": True}
    with torch._inductor.config.patch(broken):
        run = train(miniature, tmp_path / "run", compile=True, compile_fullgraph=True)
    assert run.status == 1
    (failed,) = run.told("failed")
    assert "torch.compile failed" in failed["error"]
    assert "compile_fullgraph" in failed["remedy"]
    assert "Traceback" not in capsys.readouterr().err
