"""A rule that concerns Z-Image only; see `settings/checks/between.py`."""

from sd_scripts.options.spec import Findings, OptionValues
from sd_scripts.options.training import TrainingOptions


def overflows_in_fp16(values: OptionValues) -> Findings:
    if values[TrainingOptions].mixed_precision == "fp16":
        yield "mixed_precision", "Z-Image's activations overflow in fp16; set bf16"


REMARKS = (overflows_in_fp16,)
