"""Qwen3 as a text encoder: its states are transformers', whichever of them a family reads."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from sd_scripts.families.common.encoders.qwen3 import config_of, language_layers, qwen3, states_of
from sd_scripts.families.common.encoders.tiny_qwen3 import tiny_config
from sd_scripts.families.common.loading import shapes_of

LAYERS = 4
IDS = torch.tensor([[3, 17, 42, 9, 1]])


@pytest.fixture(scope="module")
def whole() -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**tiny_config(50, LAYERS))).eval()


@pytest.mark.parametrize(
    "prefix",
    ["model.", "", "model.language_model.", "language_model."],
    ids=["Qwen3", "no prefix", "Qwen3-VL", "Qwen3-VL without its head"],
)
@pytest.mark.parametrize(
    ("last", "numbers"), [(3, (3,)), (3, (1, 2, 3)), (None, (4,))], ids=["one", "several", "the normed one"]
)
def test_states_need_no_layers_behind_them(whole: Any, last: int | None, numbers: tuple[int, ...], prefix: str) -> None:
    file = {key.replace("model.", prefix, 1): tensor for key, tensor in whole.state_dict().items()}
    state = language_layers(file | {"model.visual.blocks.0.norm1.weight": torch.ones(8)}, last)
    ours = qwen3(normed=last is None, **config_of(shapes_of(state)))
    ours.load_state_dict(state)
    mask = torch.ones_like(IDS)
    with torch.no_grad():
        found = states_of(ours.eval(), IDS, mask, numbers)
        expected = whole(IDS, output_hidden_states=True).hidden_states
    assert len(ours.layers) == (last or LAYERS)
    for number, each in zip(numbers, found, strict=True):
        torch.testing.assert_close(each, expected[number])
