"""Checkpoints compared on a GPU: compiled images with exchanged adapters, and the trainer's losses."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.training import images, train
from tests.tools.test_compare_checkpoints import HELD_OUT, compare, losses_of

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA"),
]

MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "fp32": ({}, 1e-4),
    "bf16": ({"mixed_precision": "bf16"}, 1e-2),
    "quantized": ({"mixed_precision": "bf16", "quantize_base": "int8"}, 2e-2),
    "swapped": ({"blocks_to_swap": 1}, 1e-4),
}
"""Settings, and how far the loss of a merged adapter may be from the loss of a separate adapter."""


@pytest.mark.parametrize("model", MODELS)
def test_losses_on_a_gpu_match_the_trainer(model: str, each_miniature: Any, tmp_path: Path) -> None:
    settings, far = MODELS[model]
    data = images(tmp_path / "images", count=5)
    run = train(each_miniature, tmp_path / "out", train_data_dir=data, **HELD_OUT, **settings)
    prompt = ("--prompt", "a red circle --w 64 --h 64 --s 2", "--strengths", "0.5", "1")
    told = compare(run, *prompt, "--compile")
    assert [each["loss"] for each in told["checkpoints"]] == pytest.approx(losses_of(run), rel=far)
    folder = run.folder.path / "comparison"
    assert len({(folder / cell["image"]).read_bytes() for cell in told["cells"]}) == len(told["cells"])
