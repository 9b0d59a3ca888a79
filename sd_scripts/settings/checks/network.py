"""Checks of the trained parts: the network, the embeddings of new tokens, text encoders."""

from sd_scripts.families.cards.registry import card_by_network, is_built_in_network
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.full import FullOptions
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.networks.network_args import LARGEST_RANK, problems
from sd_scripts.options.networks.network_types import LYCORIS, MODULE, read_items
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.spec import Findings
from sd_scripts.settings.checks.run_values import RunValues


def text_encoder_training_conflicts(values: RunValues) -> Findings:
    cache = values[CacheOptions]
    network = values[NetworkOptions]
    optimizer = values[OptimizerOptions]
    partly = values.card.has("partial_text_cache")
    trained = any(network.rate_of_encoder(number, optimizer.learning_rate) for number in (0, 1))
    if cache.caches_text and trained and not network.network_train_unet_only and not partly:
        yield (
            "cache_text_encoder_outputs",
            "text encoders cannot be trained from cached outputs; set network_train_unet_only or turn the cache off",
        )


def built_in_network_conflicts(values: RunValues) -> Findings:
    network = values[NetworkOptions]
    if not is_built_in_network(network):
        return
    for problem in problems(network.built_in.arguments):
        yield "network_args", problem.removeprefix("network_args: ")
    # for LoKr, a larger rank means whole matrices
    if network.built_in.adapter != "lokr" and (network.network_dim or 0) > LARGEST_RANK:
        yield (
            "network_dim",
            f"{network.network_dim} is above {LARGEST_RANK}, more than any layer has; 8 to 32 suits most. Only LoKr "
            "accepts a larger number, which means whole matrices",
        )
    plain = network.built_in.adapter == "lora" and not network.algorithm and not network.dora_wd
    if network.lora_init != "default" and not plain:
        yield "lora_init", f"{network.lora_init} is for plain LoRA; leave it unset"


def network_type_given_twice(values: RunValues) -> Findings:
    network = values[NetworkOptions]
    if not network.network_type:
        return
    if network.module == LYCORIS or MODULE.fullmatch(network.module) or not is_built_in_network(network):
        yield (
            "network_type",
            f"network_module = {network.network_module} chooses the trained network; leave one of the two unset",
        )
    elif "adapter" in read_items(network.network_args):
        yield "network_type", "adapter in network_args chooses the trained network; leave one of the two unset"


def network_of_another_family(values: RunValues) -> Findings:
    card = values.card
    network = values[NetworkOptions]
    other = card_by_network(network.network_module or "")
    if other and not card.trains(other.name):
        yield (
            "network_module",
            f"{network.network_module} makes LoRAs for {other.title}, but this run trains {card.title}; leave it "
            f"unset, or train {other.title}",
        )


def text_encoders_trained_and_cached(values: RunValues) -> Findings:
    cache = values[CacheOptions]
    full = values[FullOptions]
    if full.train_text_encoder and cache.caches_text:
        yield (
            "cache_text_encoder_outputs",
            "text encoders cannot be trained from cached outputs; turn off train_text_encoder or the cache",
        )


def token_missing(values: RunValues) -> Findings:
    embedding = values[EmbeddingOptions]
    network = values.get(NetworkOptions)
    full = values.get(FullOptions)
    if network is None and full is None and not embedding.token_string:
        yield "token_string", "not set; write the new word that the captions contain, such as mycat"


def embedding_learning_rate_missing(values: RunValues) -> Findings:
    if not values.get(EmbeddingOptions):
        return
    optimizer = values[OptimizerOptions]
    network = values.get(NetworkOptions)
    if network is None and not optimizer.learning_rate:
        yield "learning_rate", "is 0, so nothing would be trained; set it above 0"


def cached_captions_with_new_token(values: RunValues) -> Findings:
    cache = values[CacheOptions]
    embedding = values[EmbeddingOptions]
    if cache.caches_text and embedding.token_string and values.card.has("learns_embeddings"):
        yield (
            "cache_text_encoder_outputs",
            "captions with a token that is being trained change at every step, so they cannot be cached; turn it off",
        )


def new_token_with_external_network(values: RunValues) -> Findings:
    embedding = values[EmbeddingOptions]
    network = values[NetworkOptions]
    if embedding.token_string and not is_built_in_network(network) and values.card.has("learns_embeddings"):
        yield (
            "token_string",
            "embeddings cannot be trained together with an external network; leave network_module unset, or train the "
            "embedding first and alone",
        )


def adapter_with_external_network(values: RunValues) -> Findings:
    network = values[NetworkOptions]
    if network.training_adapter and not is_built_in_network(network):
        yield "training_adapter", "works with the built-in networks only; leave network_module unset"


def embedding_options_without_token(values: RunValues) -> Findings:
    embedding = values[EmbeddingOptions]
    for name in embedding.without_token():
        yield name, "has no effect without token_string"


def embedding_named_otherwise(values: RunValues) -> Findings:
    saving = values[SavingOptions]
    embedding = values[EmbeddingOptions]
    network = values.get(NetworkOptions)
    if network is None and embedding.token_string and not saving.output_name:
        yield (
            "output_name",
            f"not set, so the file would be named last; set it to {embedding.token_string}, because programs "
            "refer to an embedding by its file name",
        )


def lr_without_training(values: RunValues) -> Findings:
    network = values[NetworkOptions]
    if network.network_train_unet_only and network.text_encoder_lr:
        yield "text_encoder_lr", "has no effect with network_train_unet_only"
    if network.network_train_text_encoder_only and network.unet_lr is not None:
        yield "unet_lr", "has no effect with network_train_text_encoder_only"
