"""The float32 masters of a LoRA: copies and gradients to and fro, norms, the file."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sd_scripts.networks.network import AdapterNetwork
from sd_scripts.training.methods.lora import LoraTrainable
from tests.support.networks.lora import adapt, fill_ups, plain_gradients


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1), nn.Flatten(2), nn.Linear(16, 5))


RANKS, ALPHAS = {"0": 3, "1": 1, "3": 4}, {"0": 1.0, "1": 2.0, "3": 4.0}


def backward(network: AdapterNetwork, of: nn.Module, x: Tensor) -> None:
    of(x).square().sum().backward()
    network.collect_gradients()


def test_a_fresh_lora_changes_nothing() -> None:
    base, x = model(), torch.randn(2, 3, 4, 4)
    before = base(x)
    network = adapt(base, RANKS, ALPHAS)
    assert not torch.equal(base(x), before)
    with torch.no_grad():
        for layer in network.layers:
            layer.up.zero_()
    network.refresh()
    assert torch.equal(base(x), before)


def test_downs_are_initialised_like_a_torch_layer_and_repeat_with_the_seed() -> None:
    one, other = (adapt(nn.Sequential(nn.Linear(64, 8)), 32) for _ in range(2))
    down = one.layers[0].down
    assert down.abs().max() <= 1 / 8  # 1 / sqrt(64): Kaiming uniform with a = sqrt(5)
    assert down.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert torch.equal(down, other.layers[0].down)


def test_gradients_of_several_micro_steps_add_up() -> None:
    base = model()
    network = adapt(base, RANKS, ALPHAS)
    batch = torch.randn(4, 3, 4, 4)
    backward(network, base, batch)
    whole = network.gradients.clone()
    network.zero_grad()
    for part in batch.split(2):
        backward(network, base, part)
    torch.testing.assert_close(network.gradients, whole, rtol=1e-4, atol=1e-4)
    network.zero_grad()
    backward(network, base, batch)
    assert torch.equal(network.gradients, whole), "what an earlier step left is forgotten"


def test_the_gradient_buffer_has_no_memory_between_steps() -> None:
    base = model()
    network = adapt(base)
    assert network.gradients.untyped_storage().nbytes() == 0
    backward(network, base, torch.randn(2, 3, 4, 4))
    assert network.gradients.untyped_storage().nbytes() == 4 * network.masters.numel()
    network.zero_grad()
    assert network.gradients.untyped_storage().nbytes() == 0


def test_a_layer_that_the_loss_does_not_reach_has_gradient_zero() -> None:
    base = model()
    network = adapt(base)
    base[0](torch.randn(2, 3, 4, 4)).square().sum().backward()
    network.collect_gradients()
    grads = {layer.name: (layer.down.grad, layer.up.grad) for layer in network.layers}
    assert all(grad is not None and grad.any() for grad in grads["0"])
    assert not any(grad is None or grad.any() for name in ("1", "3") for grad in grads[name])


def test_a_frozen_layer_has_gradient_zero_and_the_others_theirs() -> None:
    base, x = model(), torch.randn(2, 3, 4, 4)
    network = adapt(base)
    backward(network, base, x)
    free = [layer.up.grad.clone() for layer in network.layers if layer.up.grad is not None]
    network.zero_grad()
    network.freeze([network.layers[0].down, network.layers[0].up])
    backward(network, base, x)
    first, *others = network.layers
    assert not any(p.grad is None or p.grad.any() for p in (first.down, first.up))
    assert all(p.up.grad is not None and torch.equal(p.up.grad, g) for p, g in zip(others, free[1:], strict=True))


def test_the_layers_compute_with_copies_of_the_masters_in_the_models_dtype() -> None:
    base = model().to(torch.bfloat16)
    network = adapt(base, RANKS, ALPHAS)
    for layer in network.layers:
        assert layer.down.dtype == layer.up.dtype == torch.float32
        assert torch.equal(layer.layer.lora_down, layer.down.to(torch.bfloat16))
        assert torch.equal(layer.layer.lora_up, (layer.up * layer.alpha / layer.rank).to(torch.bfloat16))
    backward(network, base, torch.randn(2, 3, 4, 4, dtype=torch.bfloat16))
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for a in network.layers for p in (a.down, a.up))


def test_gradients_through_bf16_copies_match_float32_up_to_rounding() -> None:
    base, x = nn.Sequential(nn.Linear(64, 32)), torch.randn(128, 64)
    network = adapt(base.to(torch.bfloat16), 4, 2.0)
    backward(network, base, x.to(torch.bfloat16))
    layer = network.layers[0]
    exact = nn.Sequential(nn.Linear(64, 32))
    exact.load_state_dict({key: value.float() for key, value in base.state_dict().items() if "lora" not in key})
    twin = adapt(exact, 4, 2.0).layers[0]
    for parameter, expected in zip((layer.down, layer.up), plain_gradients(twin, x), strict=False):
        assert parameter.grad is not None
        assert (parameter.grad - expected).norm() < 0.02 * expected.norm()


def test_an_optimizer_moves_masters_by_less_than_bf16_resolves() -> None:
    base = model().to(torch.bfloat16)
    network = adapt(base)
    trainable = LoraTrainable(network, [{"params": [network.layers[0].down], "lr": 1e-6, "name": "unet"}], [base])
    optimizer, before = torch.optim.AdamW(trainable.parameter_groups(), weight_decay=0), network.masters.clone()
    for _ in range(3):
        backward(network, base, torch.randn(2, 3, 4, 4, dtype=torch.bfloat16))
        optimizer.step()
        trainable.updated()
    moved = (network.masters - before).abs()
    assert 0 < moved.max() < 4e-6


def test_masters_may_be_bf16_themselves() -> None:
    base = model().to(torch.bfloat16)
    network = adapt(base, masters_dtype=torch.bfloat16)
    backward(network, base, torch.randn(2, 3, 4, 4, dtype=torch.bfloat16))
    assert {network.masters.dtype, network.gradients.dtype} == {torch.bfloat16}
    assert {tensor.dtype for tensor in network.file_tensors(None).values()} == {torch.bfloat16}


def test_clipping_matches_torch() -> None:
    base, x = model(), torch.randn(2, 3, 4, 4)
    network = adapt(base, RANKS, ALPHAS)
    trainable = LoraTrainable(network, [], [base])
    masters = [p for layer in network.layers for p in (layer.down, layer.up)]
    for limit in (0.5, 1e6):
        backward(network, base, x)
        copies = [nn.Parameter(p.detach()) for p in masters]
        for copy, p in zip(copies, masters, strict=True):
            assert p.grad is not None
            copy.grad = p.grad.clone()
        expected = torch.nn.utils.clip_grad_norm_(copies, limit)
        torch.testing.assert_close(trainable.gradients.clip(limit), expected)
        for copy, p in zip(copies, masters, strict=True):
            torch.testing.assert_close(p.grad, copy.grad)
        trainable.updated()


def full_norm(layer: Any) -> Tensor:
    """Of alpha / rank · up · down, as one matrix."""
    return (layer.alpha / layer.rank * layer.up.flatten(1) @ layer.down.flatten(1)).norm()


def test_scale_weight_norms_scales_only_norms_above_the_limit() -> None:
    base = model()
    network = adapt(base, RANKS, ALPHAS)
    with torch.no_grad():
        network.layers[0].up.mul_(10)
        network.layers[1].up.mul_(0.01)
        network.layers[2].up.zero_()
    norms = [full_norm(layer) for layer in network.layers]
    before = [(layer.down.clone(), layer.up.clone()) for layer in network.layers]
    network.limit_norms(1.0)

    assert norms[0] > 1 > norms[1] > norms[2] == 0
    assert full_norm(network.layers[0]).item() == pytest.approx(1)
    shrunk = (1 / norms[0]).sqrt()  # shared by both matrices
    torch.testing.assert_close(network.layers[0].down.detach(), before[0][0] * shrunk)
    torch.testing.assert_close(network.layers[0].up.detach(), before[0][1] * shrunk)
    for layer, (down, up) in zip(network.layers[1:], before[1:], strict=True):
        assert torch.equal(layer.down, down)
        assert torch.equal(layer.up, up)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_the_file_contains_the_masters_in_the_requested_dtype(dtype: torch.dtype | None) -> None:
    network = adapt(model().to(torch.bfloat16), RANKS, ALPHAS)
    tensors = network.file_tensors(dtype)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype or torch.float32}
    assert len(tensors) == 9
    for layer in network.layers:
        assert tensors[f"{layer.name}.alpha"].item() == layer.alpha
        assert tensors[f"{layer.name}.alpha"].shape == ()
        assert torch.equal(tensors[f"{layer.name}.lora_down.weight"], layer.down.to(dtype or torch.float32))
        assert torch.equal(tensors[f"{layer.name}.lora_up.weight"], layer.up.to(dtype or torch.float32))
    assert tensors["0.lora_down.weight"].shape == (3, 3, 3, 3)
    assert tensors["0.lora_up.weight"].shape == (6, 3, 1, 1)
    assert tensors["1.lora_down.weight"].shape == (1, 6, 1, 1)
    copied = {tensor.untyped_storage().data_ptr() for key, tensor in tensors.items() if not key.endswith("alpha")}
    assert len(copied) == 1, "all masters are copied together"
    network.masters.zero_()
    assert all(tensor.any() for key, tensor in tensors.items() if key.endswith("lora_down.weight"))


def test_a_network_that_loads_a_file_computes_like_its_writer() -> None:
    base, x = model(), torch.randn(2, 3, 4, 4)
    twin = model()
    twin.load_state_dict(base.state_dict())
    network, other = adapt(base, RANKS, ALPHAS), adapt(twin, RANKS, 0.5)
    fill_ups(other, seed=9)
    assert other.load_tensors(network.file_tensors(None)) == []
    other.refresh()
    torch.testing.assert_close(twin(x), base(x), rtol=1e-5, atol=1e-5)


def test_a_file_of_a_different_rank_is_refused_with_the_remedy() -> None:
    network = adapt(nn.Sequential(nn.Linear(6, 8)), 2)
    file = adapt(nn.Sequential(nn.Linear(6, 8)), 3).file_tensors(None)
    with pytest.raises(ValueError, match="network_weights: 0 has rank 3 in the file and 2 here; set network_dim to"):
        network.load_tensors(file)


def test_a_file_of_different_widths_is_refused() -> None:
    network = adapt(nn.Sequential(nn.Linear(6, 8)), 2)
    file = adapt(nn.Sequential(nn.Linear(6, 10)), 2).file_tensors(None)
    with pytest.raises(ValueError, match="network_weights: 0 has a different shape in the file than in this model"):
        network.load_tensors(file)


def test_layers_that_the_file_lacks_are_named_and_keep_their_initial_values() -> None:
    network = adapt(model(), 2)
    before = network.layers[0].down.clone()
    file = {key: tensor for key, tensor in network.file_tensors(None).items() if not key.startswith("0.")}
    assert network.load_tensors(file) == ["0"]
    assert torch.equal(network.layers[0].down, before)


def test_a_state_of_a_different_network_is_refused() -> None:
    trainable = LoraTrainable(adapt(model(), 2), [], [])
    with pytest.raises(ValueError, match="resume: the state belongs to a different network; restore network_dim"):
        trainable.load_state_dict(LoraTrainable(adapt(model(), 3), [], []).state_dict())
