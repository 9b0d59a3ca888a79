"""Runs that torch.compile fails in: told in plain words, and not lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from data_help import make_folder
from training_help import train

pytestmark = pytest.mark.usefixtures("no_graphs")


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


LIMITED = {"compile": True, "compile_backend": "eager", "compile_cache_size_limit": 1}


@pytest.fixture
def two_sizes(tmp_path: Path) -> dict[str, Any]:
    make_folder(tmp_path / "data" / "1_noise", [(96, 96), (64, 96)])
    return {"train_data_dir": tmp_path / "data", "resolution": "96,96", "max_train_steps": 8}


def test_graphs_beyond_the_limit_are_told_once_and_the_run_goes_on_eagerly(
    two_sizes: dict[str, Any], flux_miniature: Any, tmp_path: Path
) -> None:
    run = train(flux_miniature, tmp_path / "run", **two_sizes, **LIMITED)
    assert run.status == 0
    assert len(run.told("started")[0]["shapes"]) == 2
    assert run.losses == pytest.approx(train(flux_miniature, tmp_path / "plain", **two_sizes).losses, rel=1e-5)
    assert [event["text"] for event in run.told("warning")] == [
        "compile_cache_size_limit: 1 graphs for each kind of block are not enough; what comes after them runs "
        "uncompiled, which is slow. Set it to 0, which computes it"
    ]
    torch._dynamo.reset()
    enough = train(flux_miniature, tmp_path / "enough", **two_sizes, **{**LIMITED, "compile_cache_size_limit": 0})
    assert enough.told("warning") == []


def test_with_fullgraph_graphs_beyond_the_limit_end_the_run_in_one_sentence(
    two_sizes: dict[str, Any], flux_miniature: Any, tmp_path: Path
) -> None:
    run = train(flux_miniature, tmp_path / "run", compile_fullgraph=True, **two_sizes, **LIMITED)
    assert run.status == 1
    (failed,) = run.told("failed")
    assert failed["remedy"].startswith("set compile_cache_size_limit = 0, or turn compile_fullgraph off")
