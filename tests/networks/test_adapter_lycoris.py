"""Adapter kinds against the lycoris package: the same weights and input give the same output and gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lycoris.modules import get_module, make_module
from lycoris.modules.boft import ButterflyOFTModule
from lycoris.modules.diag_oft import DiagOFTModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from torch import Tensor, nn

from sd_scripts.networks.adapter import read_layer
from sd_scripts.networks.lokr_sizes import factors
from tests.support.networks.adapters import adapted, conv, gradients, inputs, linear, theirs

Case = tuple[str, type[nn.Module], int, dict[str, Any], dict[str, Any]]
"""Kind, class in lycoris, rank, our options, theirs."""

FORMS: list[tuple[str, type[nn.Module], int, dict[str, Any], dict[str, Any]]] = [
    ("dora", LoConModule, 3, {}, {}),
    ("loha", LohaModule, 2, {}, {}),  # as a LoRA of rank 4
    ("loha", LohaModule, 6, {}, {}),  # formed
    ("lokr", LokrModule, 2, {"factor": -1}, {"factor": -1}),
    ("lokr", LokrModule, 1, {"factor": 4, "both": True}, {"factor": 4, "decompose_both": True}),
    ("lokr", LokrModule, 1, {"factor": 2}, {"factor": 2}),
    ("lokr", LokrModule, 9, {"factor": 2, "full": True}, {"factor": 2, "full_matrix": True}),
    ("lokr", LokrModule, 9, {"factor": 2, "unbalanced": True}, {"factor": 2, "unbalanced_factorization": True}),
]


def cases() -> Iterator[tuple[Callable[..., nn.Module], Case]]:
    """Yield every form on both kinds of layer, with and without trained norms, of convolutions also in Tucker form."""
    for make in (linear, conv):
        for axis in (None, "out", "in"):
            for tucker in (False, True) if make is conv else (False,):
                for kind, module_class, rank, ours, other in FORMS:
                    if kind == "dora" and not (axis or tucker):
                        continue  # plain LoRA
                    ours = {**ours, "axis": axis, "tucker": tucker}
                    other = {**other, "weight_decompose": bool(axis), "wd_on_out": axis == "out", "use_tucker": tucker}
                    yield make, (kind, module_class, rank, ours, other)


def rotations() -> Iterator[tuple[Callable[..., nn.Module], Case]]:
    for make in (linear, conv):
        for rescaled in (False, True):
            for constraint in (0.0, 0.05):
                options = {"rescaled": rescaled, "constraint": constraint}
                yield make, ("oft", DiagOFTModule, 4, options, options)
                yield make, ("boft", ButterflyOFTModule, 12, options, options)


def compare(make: Callable[..., nn.Module], case: Case, dtype: torch.dtype, *, shared: bool = False) -> None:
    kind, module_class, rank, options, other = case
    torch.manual_seed(0)
    layer = make(dtype)
    x = inputs(layer)
    model, network = adapted(layer, kind, rank, options, shared=shared)
    assert bool(network.gains.stacks) == shared
    adapter = network.layers[0]
    own = dict(zip([e for e in adapter.file_tensors() if e != "alpha"], adapter.masters, strict=True))
    reference = theirs(layer, module_class, rank, own, **other)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for ours, expected in zip(gradients(model, x), gradients(reference, x), strict=True):
        torch.testing.assert_close(ours, expected, **close)
    network.collect_gradients()
    wanted = dict(reference.named_parameters())
    for ending, master in own.items():
        assert master.grad is not None
        torch.testing.assert_close(master.grad.view(wanted[ending].shape), wanted[ending].grad, **close)
        assert wanted[ending].grad.abs().max() > 1e-2, "nothing is compared"
    if lycoris_reads(kind, options):
        again = across(layer, adapter.file_tensors())
        torch.testing.assert_close(again.train()(x), model(x), rtol=1e-4, atol=1e-5)


def lycoris_reads(kind: str, options: dict[str, Any]) -> bool:
    """Return whether the package can load a form again that it writes."""
    tucker = kind == "lokr" and options.get("tucker")
    return not (tucker or options.get("unbalanced") or options.get("axis") == "in")


def across(layer: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Return the layer as lycoris reads it from our file."""
    found, parameters = get_module({f"x.{ending}": tensor for ending, tensor in tensors.items()}, "x")
    with torch.no_grad():
        return make_module(found, parameters, "x", layer).to(layer.weight.dtype)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["dora", "loha", "lokr"])
def test_outputs_gradients_and_files_match_lycoris(kind: str) -> None:
    for make, case in cases():
        if case[0] == kind:
            compare(make, case, torch.float64)


def test_gains_that_layers_compute_together_match_lycoris() -> None:
    for make, case in cases():
        if make is linear and case[0] == "dora" and case[3]["axis"] == "out":
            compare(make, case, torch.float64, shared=True)


def test_rotations_match_lycoris() -> None:
    """In float32: lycoris inverts in that."""
    for make, case in rotations():
        compare(make, case, torch.float32)


def test_a_file_of_lycoris_is_merged_to_what_it_computes() -> None:
    """Its alpha, its forms and its constraint: the trained weight is the layer's plus its delta."""
    torch.manual_seed(0)
    for make, (_, module_class, rank, _, other) in (*cases(), *rotations()):
        layer = make(torch.float32)
        module: Any = module_class("x", layer, lora_dim=rank, alpha=3.0, **other)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
        tensors = {f"x.{ending}": tensor.detach() for ending, tensor in module.state_dict().items()}
        found = read_layer(tensors, "x")
        assert found is not None
        kind, of_layer = found
        x = inputs(layer)
        merged = make(torch.float32)
        merged.bias.data.copy_(layer.bias)  # type: ignore[union-attr, operator, arg-type]
        merged.weight.data.copy_(layer.weight + kind.delta(of_layer, layer.weight).view(layer.weight.shape))  # type: ignore[union-attr, operator, arg-type]
        torch.testing.assert_close(merged(x), module.train()(x), rtol=1e-4, atol=1e-4)


def test_sizes_are_split_as_lycoris_does() -> None:
    from lycoris.functional import factorization

    for size in (*range(1, 200), 320, 640, 1280, 3072, 5120, 10240, 12288):
        for factor in (-1, 1, 2, 3, 4, 8, 16, 100_000):
            assert factors(size, factor) == factorization(size, factor), (size, factor)
