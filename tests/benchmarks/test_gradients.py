"""The comparison of gradients: the kinds of layers, distances, the table."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.gradients.__main__ import FAMILIES, main
from benchmarks.gradients.comparison import on_meta
from benchmarks.gradients.table import ALL, Row, distances, kind_of, table
from sd_scripts.families.common.family import family_of
from sd_scripts.networks.targets import adaptable

KINDS = {"attention": r"attn_", "MLP": r"mlp_"}
REFERENCE = {
    "b0_attn_q.lora_down.weight": torch.tensor([3.0, 0.0]),
    "b0_attn_q.lora_up.weight": torch.tensor([0.0, 4.0]),
    "b0_mlp_0.lora_up.weight": torch.tensor([12.0]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_adapted_layer_has_one_kind_and_each_kind_has_layers(family: str) -> None:
    models = import_module(f"benchmarks.gradients.{family}")
    target = replace(family_of(family).lora, extra_modules=())  # without in_dims they are not adapted
    denoiser = on_meta(lambda: models.make_denoiser(miniature=True))
    adapted = [target.name(path) for path, _ in adaptable(denoiser, target, conv=False)]
    kinds = [kind_of(f"{name}.lora_up.weight", models.KINDS) for name in adapted]
    assert set(kinds) == set(models.KINDS)


def test_a_distance_is_of_all_tensors_of_a_kind_together() -> None:
    gradients = REFERENCE | {"b0_attn_q.lora_down.weight": torch.tensor([3.0, 1.0])}
    found = distances(gradients, REFERENCE, KINDS)
    assert found == pytest.approx({ALL: 1 / 13, "attention": 1 / 5, "MLP": 0.0})


def test_the_table_has_mean_distances_and_their_ratio_to_one_row() -> None:
    base = Row(losses=[1.0, 2.0], distances=[{ALL: 0.01, "MLP": 0.02}, {ALL: 0.03, "MLP": 0.02}])
    other = Row(losses=[1.0, 2.5], distances=[{ALL: 0.01, "MLP": 0.03}, {ALL: 0.01, "MLP": 0.03}])
    lines = table({"theirs": base, "ours": other}, Row(losses=[1.0, 2.0]), "theirs", ["MLP"]).splitlines()
    assert lines[0] == "| layers | reference | theirs | ours |"
    assert lines[2:] == [
        "| all | | 2.00e-02 (1.00) | 1.00e-02 (0.50) |",
        "| MLP | | 2.00e-02 (1.00) | 3.00e-02 (1.50) |",
        "| loss | 1.500000 | 1.500000 | 1.750000 |",
    ]


def test_a_folder_without_sd_scripts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "flux", "--sd_scripts", str(tmp_path)]) == 2
    assert "is not a copy of sd-scripts" in capsys.readouterr().err
