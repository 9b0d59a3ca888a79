"""On a GPU: padding of captions that attention leaves out, compiled blocks, fp8 and swapped blocks of Qwen-Image."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.data import make_folder
from tests.support.training import Run, train

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its attention and Triton run nowhere else"),
    pytest.mark.usefixtures("no_graphs"),
]
HALF = {"mixed_precision": "bf16", "train_batch_size": 2, "max_train_steps": 6}


def trained(miniature: Any, folder: Path, name: str, **values: Any) -> Run:
    """Six steps on batches of captions of two lengths."""
    root = folder / "images"
    if not root.exists():
        for number, image in enumerate(make_folder(root / "1_noise", [(64, 64)] * 4)):
            image.with_suffix(".txt").write_text("a red circle " * (1 + 7 * (number % 2)))
    run = train(miniature, folder / name, train_data_dir=root, **HALF, **values)
    assert run.status == 0
    return run


def test_compiled_runs_train_like_eager_ones_in_one_graph(qwen_image_miniature: Any, tmp_path: Path) -> None:
    eager = trained(qwen_image_miniature, tmp_path, "eager")
    compiled = trained(qwen_image_miniature, tmp_path, "compiled", compile=True)
    assert compiled.losses == pytest.approx(eager.losses, rel=0.02)
    assert [event["graphs"] for event in compiled.events_of("compile") if event.get("graphs")] == [1]
    assert compiled.events_of("warning") == []


@pytest.mark.parametrize(
    "memory",
    [
        {"compile": True, "compile_mode": "reduce-overhead"},
        {"compile": True, "gradient_checkpointing": True},
        {"blocks_to_swap": 3, "gradient_checkpointing": True},
        {"fp8_base": True, "blocks_to_swap": 2},
        {"fp8_compute": True, "compile": True},
    ],
    ids=lambda memory: " ".join(memory),
)
def test_options_that_save_time_or_memory_change_losses_little(
    memory: dict[str, Any], qwen_image_miniature: Any, tmp_path: Path
) -> None:
    plain = trained(qwen_image_miniature, tmp_path, "plain")
    assert trained(qwen_image_miniature, tmp_path, "other", **memory).losses == pytest.approx(plain.losses, rel=0.05)
