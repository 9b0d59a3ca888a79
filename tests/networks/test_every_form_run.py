"""Layers with adapters of all forms: runs resume bit for bit, and compiled layers train like eager ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import attach
from tests.support.miniatures import MINIATURES
from tests.support.networks.adapters import Together, gradients
from tests.support.networks.every_form import FORMS, TUCKER_FORMS, AdaptedLayer, adapted_model, plan_of
from tests.support.training import Run, equal, train


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run that continues a file of all forms. Do not write to it."""

    miniature: Any
    layers: Sequence[AdaptedLayer]
    options: dict[str, Any]
    run: Run


@pytest.fixture(scope="module", params=["sdxl", "flux", "qwen_image"])
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    miniature, folder = request.getfixturevalue(MINIATURES[request.param]), tmp_path_factory.mktemp("every_form")
    model = adapted_model(miniature, request.param)
    layers = model.few_in_blocks()
    options = {
        "network_weights": str(model.save(folder / "start.safetensors", layers)),
        "dim_from_weights": True,
        "network_dim": None,
        "optimizer_type": "SGD",  # whose updates are as large as the gradients
        "optimizer_args": ["momentum=0.9"],
        "learning_rate": 0.3,
        "max_train_steps": 2,
        "train_data_dir": str(miniature.data_dir),
    }
    run = train(miniature, folder / "out", **options, save_state=True, save_every_n_steps=1)
    return Training(miniature=miniature, layers=layers, options=options, run=run)


@pytest.mark.run
def test_a_run_of_every_form_trains_and_resumes_bit_for_bit(training: Training, tmp_path: Path) -> None:
    forms = set(FORMS) if training.miniature.family == "sdxl" else set(FORMS) - TUCKER_FORMS
    assert {layer.form for layer in training.layers} == forms
    assert training.run.status == 0
    (state,) = sorted(training.run.output.glob("*step*-state"))[:1]
    again = train(training.miniature, tmp_path / "again", **training.options, resume=state)
    assert again.steps == [2]
    learned = training.run.tensors()
    assert equal(again.tensors(), learned)
    for layer in training.layers:
        moved = [e for e, t in layer.tensors.items() if e != "alpha" and not t.equal(learned[f"{layer.name}.{e}"])]
        assert moved, f"{layer.form}: {layer.name}"


@pytest.mark.deep
@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(32, 64), lambda: nn.Conv2d(32, 32, 3, padding=1)], ids=["linear", "conv"]
)
def test_compiled_layers_of_every_form_train_like_eager_ones(make: Callable[[], nn.Module]) -> None:
    """Dynamo takes the paths of our layers that all backends take; of each kind, AOTAutograd's are in
    test_adapter_kinds.py and, where they share one product with their base weights, in test_folded_lora.py."""
    found = []
    for backend in (None, CompileCounterWithBackend("eager")):
        torch.manual_seed(0)
        layers = Together(make().requires_grad_(False) for _ in FORMS)
        plans = [plan_of(form, f"x{n}", layers, str(n), layers[n]) for n, form in enumerate(FORMS)]
        network = attach(plans, Dropouts(), torch.Generator().manual_seed(0))
        with torch.no_grad():
            network.masters.add_(0.1 * torch.randn_like(network.masters))
        network.refresh()
        if backend:
            layers.compile(backend=backend, fullgraph=True)
        y, x_grad = gradients(layers, torch.randn(2, 32, 5, 32))
        network.collect_gradients()
        assert all(master.grad.any() for layer in network.layers for master in layer.masters)
        assert backend is None or backend.frame_count == 1
        found.append((y, x_grad, network.gradients.clone()))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
