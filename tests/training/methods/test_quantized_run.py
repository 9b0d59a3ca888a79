"""Runs on quantized weights: their training, compiled and checkpointed, with text encoders, and when resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.placing import placement_of
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import format_of
from tests.support.miniatures import MINIATURES, sdxl_settings
from tests.support.training import GRAPHS, TEXT_ENCODERS_TOO, equal, train

INT8 = {"quantize_base": "int8", "quantize_text_encoders": "int8"}
NF4 = {"quantize_base": "nf4", "quantize_text_encoders": "nf4"}

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.mark.parametrize(
    ("family", "precision", "near"),
    [("sdxl", INT8, 2e-2), ("qwen_image", INT8, 2e-2), ("flux", INT8, 2e-2), ("flux", NF4, 1e-1)],
    ids=["sdxl int8", "qwen_image int8", "flux int8", "flux nf4"],
)
def test_quantized_weights_train_nearly_the_same(
    family: str, precision: dict[str, str], near: float, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    miniature = request.getfixturevalue("any_miniature" if family == "flux" else MINIATURES[family])
    plain = train(miniature, tmp_path / "plain")
    run = train(miniature, tmp_path / "out", **precision, gradient_checkpointing=precision is NF4)
    assert run.losses != plain.losses
    assert run.losses == pytest.approx(plain.losses, rel=near)
    assert {key: tensor.shape for key, tensor in run.tensors().items()} == {
        key: tensor.shape for key, tensor in plain.tensors().items()
    }


@pytest.mark.parametrize("more", [INT8, {**NF4, "gradient_checkpointing": True}], ids=["int8", "nf4 checkpointed"])
def test_compiled_training_on_quantized_weights_is_identical_with_the_same_number_of_graphs(
    more: dict[str, Any], any_miniature: Any, tmp_path: Path
) -> None:
    """Dynamo alone decides which graphs there are; test_quantized.py tests autograd on them."""
    values = {**more, "compile_backend": "eager"}
    eager, compiled = (train(any_miniature, tmp_path / str(on), **values, compile=on) for on in (False, True))
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)
    assert [(told["graphs"], told["breaks"]) for told in compiled.events_of("compile")] == [(GRAPHS["flux"], 0)]


def test_text_encoders_and_a_u_net_in_fp8_train_too(miniature: Any, tmp_path: Path) -> None:
    given = {**TEXT_ENCODERS_TOO, "mixed_precision": "bf16", "max_train_steps": 2}
    plain, held = (train(miniature, tmp_path / str(on), fp8_base=on, **given) for on in (False, True))
    assert held.losses != plain.losses
    assert held.losses == pytest.approx(plain.losses, rel=5e-2)
    ups = {key: tensor for key, tensor in held.tensors().items() if "te2" in key and key.endswith("lora_up.weight")}
    assert sum(bool(up.any()) for up in ups.values()) > len(ups) / 2


def test_an_external_network_trains_on_nf4(any_miniature: Any, tmp_path: Path) -> None:
    given = {"network_module": "tests.support.networks.foreign_network", **TEXT_ENCODERS_TOO}
    plain, held = (train(any_miniature, tmp_path / str(len(more)), **given, **more) for more in ({}, NF4))
    assert held.losses != plain.losses
    assert held.losses == pytest.approx(plain.losses, rel=1e-1)
    assert held.tensors().keys() == plain.tensors().keys()


def test_weights_are_quantized_once_from_the_file_with_base_weights_merged(miniature: Any) -> None:
    """Were base_weights added to quantized weights, small changes would be rounded away."""
    settings = sdxl_settings(miniature.checkpoint, **NF4)

    def opened() -> Components:
        return SDXL.open(settings, torch.bfloat16, torch.device("cpu"))

    changed, plain = opened(), opened()
    names = ("text_encoder1", "text_encoder2", "denoiser")

    def change(name: str) -> None:
        for layer in changed.module(name).modules():
            if isinstance(layer, torch.nn.Linear):
                assert layer.weight.is_floating_point(), "not quantized yet"
                layer.weight.mul_(1.01)

    changed.on_load = change
    for components in (changed, plain):
        components.load(*names)
        SDXL.place(components, placement_of(settings), torch.device("cpu"))
    quantized = 0
    for name in names:
        others = dict(plain.module(name).named_modules())
        for path, layer in changed.module(name).named_modules():
            if format_of(layer):
                quantized += 1
                assert isinstance(format_of(layer), Nf4)
                same = layer.weight == others[path].weight
                assert same.float().mean() > 0.99, "values that are scaled together are as far from each other"
                torch.testing.assert_close(layer.weight_scale, 1.01 * others[path].weight_scale)
    assert quantized > 60


def test_a_resumed_run_on_nf4_equals_an_uninterrupted_one_bit_for_bit(flux_miniature: Any, tmp_path: Path) -> None:
    given = {**NF4, "blocks_to_swap": 2, "save_every_n_steps": 2, "save_state": True}
    whole = train(flux_miniature, tmp_path / "whole", **given)
    state = next(path for path in whole.output.iterdir() if path.is_dir() and "000002" in path.name)
    resumed = train(flux_miniature, tmp_path / "resumed", **given, resume=state)
    assert resumed.losses == whole.losses[2:]
    assert equal(resumed.tensors(), whole.tensors())
