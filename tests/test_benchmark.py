"""What the benchmark times is a real step: on miniatures of both families it learns, with every kind of row."""

from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel

from sd_scripts.benchmark import SUBJECTS, Row, curve_table, prepare, settings_of, table
from sd_scripts.families.family import Components
from sd_scripts.families.flux import full_size as flux
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.sdxl import full_size as sdxl
from sd_scripts.families.sdxl.tiny import UNET
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.training.master_weights import held_dtype

SIZES = ((128, 128), (128, 192))
SMALL = ((128, 128),)
RESULT = {
    **dict.fromkeys(("median", "mean", "min", "p90", "allocated", "reserved", "first", "loss"), 1.0),
    **{"graphs": 14, "breaks": 0, "modules": 722, "card": "a card", "torch": "2.13.0"},
}
HALF = {"full_bf16": True, "fused_backward_pass": True, "max_grad_norm": 0.0}
ROWS: dict[tuple[str, str], list[Row]] = {
    ("sdxl", "full"): [
        Row(name="masters", title="masters", sizes=SMALL),
        Row(name="half", title="half", sizes=SMALL, options=HALF),
    ],
    ("flux", "full"): [
        Row(name="swap", title="swap", sizes=SMALL, options=HALF | {"blocks_to_swap": 1}),
    ],
    ("sdxl", "lora"): [
        Row(name="plain", title="plain", sizes=SMALL),
        Row(name="sizes", title="sizes", sizes=SIZES),
        Row(name="sum", title="sum", sizes=SMALL, batch=2, options={"gradient_accumulation_steps": 2}),
        Row(name="checkpointing", title="checkpointing", sizes=SMALL, options={"gradient_checkpointing": True}),
    ],
    ("flux", "lora"): [
        Row(name="plain", title="plain", sizes=SMALL),
        Row(name="swap", title="swap", sizes=SMALL, options={"blocks_to_swap": 1, "gradient_checkpointing": True}),
        Row(name="fp8", title="fp8", sizes=SMALL, options={"fp8_base": True}),
    ],
}
PARTS = {("sdxl", "lora"): 192, ("flux", "lora"): 3 * 10 + 4 * 3}


def miniature(family: str) -> Components:
    torch.manual_seed(0)
    if family == "sdxl":
        unet = UNet2DConditionModel(**UNET).requires_grad_(False)
        prepare_unet(unet)
        return sdxl.components_of(unet)
    shape: dict[str, Any] = {"width": 64, "heads": 2, "mlp_width": 128, "text_width": 32, "pooled_width": 32}
    model = FluxTransformer(FluxParams(**shape, double_blocks=3, single_blocks=4)).bfloat16()
    return flux.components_of(model.requires_grad_(False))


@pytest.mark.parametrize(("what", "row"), [(what, row) for what, rows in ROWS.items() for row in rows], ids=str)
def test_the_step_learns(what: tuple[str, str], row: Row) -> None:
    subject = SUBJECTS[what]
    components = miniature(what[0])
    if what[1] == "full":
        components.denoiser.to(held_dtype(settings_of(subject, row)))
    prepared = prepare(subject, row, components, torch.device("cpu"))
    losses = [float(prepared.run(number)) for number in range(8)]
    assert losses[-1] < losses[len(prepared.inputs) - 1]
    assert prepared.components == PARTS.get(what, len(list(components.denoiser.parameters())))


@pytest.mark.parametrize("what", SUBJECTS)
def test_the_table_has_a_line_for_each_row(what: tuple[str, str]) -> None:
    subject = SUBJECTS[what]
    lines = table(subject, {row.name: RESULT for row in subject.rows}).splitlines()
    assert [line.split(" | ")[0].lstrip("| ") for line in lines[4:]] == [row.title for row in subject.rows]
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_a_curve_is_told_in_means_beside_each_other() -> None:
    results = {"one": {"losses": [2.0] * 20 + [1.0] * 10}, "other": {"losses": [4.0] * 30}}
    assert curve_table(results).splitlines()[2:] == ["| 1 to 20 | 2.0000 | 4.0000 |", "| 21 to 30 | 1.0000 | 4.0000 |"]
