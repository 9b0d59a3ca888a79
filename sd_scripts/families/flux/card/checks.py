"""Rules between options that concern FLUX.1 only; see `settings/checks/between.py`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.families.flux.card.options import (
    RECOMMENDED,
    FluxModelOptions,
    FluxNetworkOptions,
    trains_t5xxl,
)
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.spec import Findings, OptionValues


def t5_trained_from_cached_outputs(values: OptionValues, number: int = 1) -> Findings:
    """`number`: index of T5 among the text encoders."""
    cache = values[CacheOptions]
    network = values[NetworkOptions]
    optimizer = values[OptimizerOptions]
    layers = values[FluxNetworkOptions]
    trained = not network.network_train_unet_only and network.rate_of_encoder(number, optimizer.learning_rate)
    if cache.caches_text and trained and trains_t5xxl(network, layers):
        yield "train_t5xxl", "T5 cannot be trained while its outputs are cached; turn off one of the two"


def t5_lr_without_t5_training(values: OptionValues, number: int = 1) -> Findings:
    network = values[NetworkOptions]
    optimizer = values[OptimizerOptions]
    layers = values[FluxNetworkOptions]
    if not trains_t5xxl(network, layers):
        return
    if network.network_train_unet_only:
        yield "train_t5xxl", "has no effect with network_train_unet_only"
    elif not network.rate_of_encoder(number, optimizer.learning_rate):
        position = ", its second value" if number else ""
        yield "train_t5xxl", f"has no effect: text_encoder_lr is 0 for T5{position}"


def layer_ranks_with_external_network(values: OptionValues) -> Findings:
    network = values[NetworkOptions]
    layers = values[FluxNetworkOptions]
    if is_built_in_network(network):
        return
    for field in fields(layers):  # type: ignore[arg-type]
        if field.name != "train_t5xxl" and getattr(layers, field.name) != field.default:
            yield field.name, f"has no effect on {network.network_module}, which reads only network_args"


def prediction_type_not_recommended(
    values: OptionValues, title: str = "FLUX.1", recommendations: Mapping[str, Any] = RECOMMENDED
) -> Findings:
    objective = values[FlowOptions]
    if objective.model_prediction_type == recommendations["model_prediction_type"]:
        return
    recommended = ", ".join(f"{name} = {value}" for name, value in recommendations.items())
    yield (
        "model_prediction_type",
        f"{objective.model_prediction_type} does not match what {title} predicts; recommended: {recommended}",
    )


def type_of_another_model(values: OptionValues) -> Findings:
    if values[FluxModelOptions].model_type == "chroma":
        yield "model_type", "chroma needs the scripts of Chroma; set flux, or use those"


PROBLEMS = (t5_trained_from_cached_outputs, type_of_another_model)
REMARKS = (t5_lr_without_t5_training, layer_ranks_with_external_network, prediction_type_not_recommended)
