"""LoRA that starts from its base weight: as peft does it, and without a change of the base model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from sd_scripts.networks.adapters.lora import StartedLora
from tests.support.networks.adapters import adapted, gradients, inputs, linear
from tests.support.networks.lora_sdxl import base, losses, prepare, save
from tests.support.training import equal, train

pytestmark = pytest.mark.run


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_the_initial_weights_match_peft(start: str) -> None:
    """The part that peft moves from the base weight to the LoRA."""
    torch.manual_seed(0)
    layer = linear(torch.float32)
    theirs: Any = inject_adapter_in_model(
        LoraConfig(r=4, lora_alpha=2, target_modules=["0"], init_lora_weights=start),
        nn.Sequential(linear(torch.float32)),
    )[0]
    theirs_base = theirs.base_layer.weight + theirs.get_delta_weight("default")
    layer.weight.data.copy_(theirs_base)
    _, network = adapted(layer, "lora", 4, {"start": start}, random=0.0)
    (adapter,) = network.layers
    assert isinstance(adapter, StartedLora)
    ours = adapter.scale * adapter.up @ adapter.down
    torch.testing.assert_close(ours, theirs.get_delta_weight("default"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_the_layer_computes_with_its_change_since_initialisation(start: str) -> None:
    torch.manual_seed(0)
    layer = linear()
    x = inputs(layer)
    fresh, _ = adapted(layer, "lora", 4, {"start": start}, random=0.0)
    torch.testing.assert_close(fresh(x), layer(x))
    model, network = adapted(layer, "lora", 4, {"start": start})
    (adapter,) = network.layers
    change = adapter.delta(adapter.file_tensors(), layer.weight).double()
    y, _ = gradients(model, x)
    torch.testing.assert_close(y, x @ (layer.weight + change).t() + layer.bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(adapter.norm(), change.norm(), rtol=1e-5, atol=1e-5)
    network.collect_gradients()
    plain, reference = adapted(layer, "lora", 4, {}, random=0.0)
    with torch.no_grad():
        reference.masters.copy_(network.masters)
    reference.refresh()
    gradients(plain, x)
    reference.collect_gradients()
    torch.testing.assert_close(network.gradients, reference.gradients)  # the start is constant


def test_a_file_of_a_lora_with_initial_weights_is_for_the_unchanged_base_model(miniature: Any, tmp_path: Path) -> None:
    model = miniature.checkpoint
    prepared = prepare(model, tmp_path, lora_init="pissa", network_dim=4)
    with torch.no_grad():
        torch.testing.assert_close(losses(prepared.components), losses(base(model)), rtol=1e-4, atol=1e-5)
        prepared.network.masters.add_(torch.randn(prepared.network.masters.shape) * 0.05)
        prepared.network.refresh()
        expected = losses(prepared.components)
        file = save(prepared, tmp_path / "x.safetensors")
        again = prepare(model, tmp_path, network_weights=str(file), dim_from_weights=True, network_dim=None)
        assert {layer.rank for layer in again.network.layers} == {8}
        torch.testing.assert_close(losses(again.components), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.run
def test_a_run_resumes_bit_for_bit(flux_miniature: Any, tmp_path: Path) -> None:
    own = {"lora_init": "olora", "use_ema": True}
    whole = train(flux_miniature, tmp_path / "out", **own, save_state=True, save_every_n_steps=1)
    again = train(flux_miniature, tmp_path / "again", **own, resume=whole.output / "short-step00000002-state")
    assert again.steps == [3]
    assert equal(again.tensors(), whole.tensors())
    assert equal(again.tensors("short-ema.safetensors"), whole.tensors("short-ema.safetensors"))
