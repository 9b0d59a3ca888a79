"""Images on a GPU: those made together are those made one by one, compiled too; recorded steps change nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sd_scripts.generating import recorded_forward
from sd_scripts.settings.generate_settings import AdapterFile
from tests.generating.test_generate import generator_of, image_of, several, values_of, write_adapter

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("compiled", [{}, {"compile": True, "compile_mode": "default"}], ids=["eager", "compiled"])
def test_images_generated_together_equal_images_generated_one_by_one(
    each_miniature: Any, compiled: dict[str, Any], no_graphs: None
) -> None:
    generator = generator_of(each_miniature, **compiled)
    asked = values_of(each_miniature, images_per_prompt=4, width=256, height=256)
    alone, together = several(generator, **asked), several(generator, **asked, batch_size=4)
    differences = [np.abs(a.astype(int) - b) for a, b in zip(alone, together, strict=True)]
    assert max(each.mean() for each in differences) < 0.5
    assert max(each.max() for each in differences) <= 8


def test_recorded_steps_make_the_image_of_steps_that_are_not_and_follow_adapters(
    each_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_forward, "ROOM", 0)
    generator = generator_of(each_miniature)
    adapter = AdapterFile(write_adapter(tmp_path / "lora.safetensors", generator))
    image_of(generator, each_miniature, steps=5)
    recorded = generator.recorded
    assert recorded is not None
    assert recorded.graphs
    plain, adapted = image_of(generator, each_miniature), image_of(generator, each_miniature, adapter)
    recorded.drop()
    for made, files in ((plain, ()), (adapted, (adapter,))):
        expected = image_of(generator, each_miniature, *files)
        difference = np.abs(made.astype(int) - expected)
        assert difference.mean() < 0.5
        assert difference.max() <= 8
