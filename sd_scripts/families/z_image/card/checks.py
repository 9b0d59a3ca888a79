"""Rules that concern Z-Image only; see `settings/checks/between.py`."""

import re
from pathlib import PurePath

from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.spec import Findings, OptionValues
from sd_scripts.options.training import TrainingOptions

DISTILLED = re.compile("(?<!de)(?<!de[-_])turbo", re.IGNORECASE)
"""Turbo, but not De-Turbo, in names of files, which alone distinguish them."""


def overflows_in_fp16(values: OptionValues) -> Findings:
    if values[TrainingOptions].mixed_precision == "fp16":
        yield "mixed_precision", "Z-Image's activations overflow in fp16; set bf16"


def distilled_model_without_adapter(values: OptionValues) -> Findings:
    name = PurePath(values[ModelOptions].pretrained_model_name_or_path or "").name
    network = values.get(NetworkOptions)
    generating = values.get(TrainingOptions) is None
    if generating or (network and (network.training_adapter or network.base_weights)):
        return
    if DISTILLED.search(name):
        remedy = "set training_adapter, or train" if network else "train"
        yield MODEL, f"training makes Turbo lose its few steps; {remedy} Z-Image's base model"


REMARKS = (overflows_in_fp16, distilled_model_without_adapter)
