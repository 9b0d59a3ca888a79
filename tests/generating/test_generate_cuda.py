"""Batches on a GPU: images made together are those made one by one, compiled too."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.generating.test_generate import generator_of, several, values_of

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
