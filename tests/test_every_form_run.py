"""Runs whose layers have adapters of all forms: compiled they learn what they do uncompiled, and resume bit for bit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import MINIATURES
from every_form import FORMS, TUCKER_FORMS, AdaptedLayer, adapted_model
from torch import nn
from training_help import Run, equal, train

from sd_scripts.networks import network
from sd_scripts.networks.adapters.dora import DoraLinear
from sd_scripts.networks.adapters.lokr import LokrLinear
from sd_scripts.networks.adapters.lora import LoraLinear
from sd_scripts.networks.folding import Fold, fold
from sd_scripts.networks.layers import AdaptedConv2d, AdaptedLinear
from sd_scripts.options.compile import CompileOptions
from sd_scripts.training import compiling

BACKEND = "eager"
"""Dynamo alone: it takes the paths of our layers that the other backends do, in a third of their time. What these make
of each kind is tested on single layers."""


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
def test_a_run_of_every_form_learns_and_resumes_bit_for_bit(training: Training, tmp_path: Path) -> None:
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
@pytest.mark.parametrize("training", ["sdxl"], indirect=True)
def test_a_compiled_run_of_every_form_learns_what_it_does_uncompiled(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SDXL: it alone has convolutions, and layers that compute in one product with their base weights."""
    folds: list[Fold] = []

    def noted(*layers: Any) -> list[Fold]:
        folds.extend(found := fold(*layers))
        return found

    monkeypatch.setattr(network, "fold", noted)
    monkeypatch.setattr(compiling, "compile_model", compile_adapted)
    values = {"compile": True, "compile_backend": BACKEND, "compile_fullgraph": True}
    run = train(training.miniature, tmp_path / "run", **training.options, **values)
    assert run.told("warning") == training.run.told("warning")
    assert {type(layer) for each in folds for layer in each.layers} == {LoraLinear, DoraLinear, LokrLinear}
    assert run.losses == pytest.approx(training.run.losses, rel=1e-5)
    compiled, plain = run.tensors(), training.run.tensors()
    for layer in training.layers:
        for ending, start in layer.tensors.items():
            name = f"{layer.name}.{ending}"
            difference, change = compiled[name] - plain[name], plain[name] - start
            bound = 1e-3 * change.norm() + 1e-7 * start.norm()  # which is how well float32 tells the change
            assert difference.norm() <= bound, f"{layer.form}: {name}"


def compile_adapted(
    options: CompileOptions, model: nn.Module, blocks: Sequence[Iterable[nn.Module]], **more: Any
) -> nn.Module:
    """Compile only the blocks that have adapters: the others would take as long and show nothing."""
    return COMPILE_MODEL(options, model, [filter(has_adapters, part) for part in blocks], **more)


COMPILE_MODEL = compiling.compile_model


def has_adapters(block: nn.Module) -> bool:
    return any(isinstance(layer, AdaptedLinear | AdaptedConv2d) for layer in block.modules())
