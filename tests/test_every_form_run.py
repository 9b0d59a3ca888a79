"""Runs whose layers have adapters of all forms in turn: each family trains them all, and resumes bit for bit."""

from pathlib import Path
from typing import Any

import pytest
from conftest import MINIATURES
from every_form import FORMS, adapted_model
from training_help import equal, train


@pytest.mark.run
@pytest.mark.parametrize("family", MINIATURES)
def test_a_run_of_every_form_learns_and_resumes_bit_for_bit(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    miniature: Any = request.getfixturevalue(MINIATURES[family])
    model = adapted_model(miniature, family)
    layers = [layer for layer in model.layers if layer.name.startswith("lora_unet")]
    assert {layer.form for layer in layers} == set(FORMS)
    file = model.save(tmp_path / "start.safetensors", layers)
    own = {
        "network_weights": str(file),
        "dim_from_weights": True,
        "network_dim": None,
        "network_train_unet_only": True,
        "max_train_steps": 2,
    }
    whole = train(miniature, tmp_path / "out", **own, save_state=True, save_every_n_steps=1)
    assert whole.status == 0
    (state,) = sorted(whole.output.glob("*step*-state"))[:1]
    again = train(miniature, tmp_path / "again", **own, resume=state)
    assert again.steps == [2]
    assert equal(again.tensors(), whole.tensors())
    learned = whole.tensors()
    for layer in layers:
        moved = [e for e, t in layer.tensors.items() if e != "alpha" and not t.equal(learned[f"{layer.name}.{e}"])]
        assert moved, f"{layer.form}: {layer.name}"
