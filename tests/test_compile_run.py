"""Runs with torch.compile through the trainer: the same training, told as it compiles, and not lost when it fails."""

from pathlib import Path
from typing import Any

import pytest
import torch
from data_help import make_folder
from training_help import train

COMPILED = {"compile": True, "compile_backend": "aot_eager"}


@pytest.fixture(autouse=True)
def _forget_graphs() -> Any:
    torch._dynamo.reset()
    yield
    torch.compiler.set_stance("default")


def test_compiled_and_eager_runs_learn_the_same(miniature: Any, tmp_path: Path) -> None:
    """float32, same seed. aot_eager runs the same kernels in another order of sums: six digits agree."""
    eager = train(miniature, tmp_path / "eager")
    fast = train(miniature, tmp_path / "fast", **COMPILED)
    assert fast.status == 0
    assert fast.losses == pytest.approx(eager.losses, rel=1e-5)
    ours, theirs = fast.tensors(), eager.tensors()
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }
    (told, *later) = fast.told("compile")
    assert told["graphs"] > 0
    assert told["breaks"] == 0
    assert later == []


def test_no_size_is_left_to_run_eagerly(miniature: Any, tmp_path: Path) -> None:
    """The miniature's blocks are all of one width: each depth of its U-Net needs graphs that weights do not tell."""
    make_folder(tmp_path / "three" / "1_noise", [(128, 128), (160, 96), (192, 64)])
    sizes = {"resolution": "128,128", "max_bucket_reso": 192}
    run = train(miniature, tmp_path / "run", train_data_dir=tmp_path / "three", **sizes, **COMPILED)
    assert len(run.told("started")[0]["shapes"]) == 3
    first, *others = [event["graphs"] for event in run.told("compile")]
    assert others == [2 * first, 3 * first]


def test_gradient_checkpointing_and_compile_go_together(miniature: Any, tmp_path: Path) -> None:
    both = train(miniature, tmp_path / "both", gradient_checkpointing=True, **COMPILED)
    plain = train(miniature, tmp_path / "plain")
    assert both.losses == pytest.approx(plain.losses, rel=1e-5)
    assert both.told("compile")[0]["breaks"] == 0


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
