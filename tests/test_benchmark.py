"""What the benchmark times is a real step: on the miniature U-Net it learns, with every kind of row."""

import pytest
import torch
from diffusers import UNet2DConditionModel

from sd_scripts.benchmark import ROWS, Row, prepare, table
from sd_scripts.families.sdxl.tiny import UNET

SIZES = ((128, 128), (128, 192))
RESULT = {
    **dict.fromkeys(("median", "mean", "min", "p90", "allocated", "reserved", "first", "loss"), 1.0),
    **{"graphs": 14, "breaks": 0, "modules": 722, "card": "a card", "torch": "2.13.0"},
}


@pytest.mark.parametrize(
    "row",
    [
        Row(name="plain", title="plain"),
        Row(name="sizes", title="sizes", sizes=SIZES),
        Row(name="sum", title="sum", accumulation=2, batch=2),
        Row(name="checkpointing", title="checkpointing", checkpointing=True),
    ],
    ids=lambda row: row.name,
)
def test_the_step_learns(row: Row) -> None:
    unet = UNet2DConditionModel(**UNET).requires_grad_(False)
    prepared = prepare(
        Row(**{**vars(row), "sizes": row.sizes if row.sizes == SIZES else SIZES[:1]}), unet, torch.device("cpu")
    )
    losses = [float(prepared.run(number)) for number in range(8)]
    assert losses[-1] < losses[len(prepared.inputs) - 1]
    assert prepared.layers == 192


def test_the_table_has_a_line_for_each_row() -> None:
    lines = table({row.name: RESULT for row in ROWS}).splitlines()
    assert [line.split(" | ")[0].lstrip("| ") for line in lines[4:]] == [row.title for row in ROWS]
    assert len({line.count("|") for line in lines[2:]}) == 1
