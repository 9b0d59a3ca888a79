"""Rules between options that concern Chroma only, like FLUX.1's; T5 is its only text encoder."""

from functools import partial

from sd_scripts.families.chroma.card.options import RECOMMENDED
from sd_scripts.families.flux.card.checks import (
    layer_ranks_with_external_network,
    prediction_type_not_recommended,
    t5_lr_without_t5_training,
    t5_trained_from_cached_outputs,
)

PROBLEMS = (partial(t5_trained_from_cached_outputs, number=0),)
REMARKS = (
    partial(t5_lr_without_t5_training, number=0),
    layer_ranks_with_external_network,
    partial(prediction_type_not_recommended, title="Chroma", recommendations=RECOMMENDED),
)
