"""Which layers of Anima a LoRA adapts: patterns, and train_llm_adapter, as in sd-scripts."""

from sd_scripts.families.cards import layer_patterns
from sd_scripts.options.networks.layer_rules import Rules, Warn
from sd_scripts.options.networks.network_args import NetworkArguments

MODULATIONS, ADAPTER = r".*adaln_modulation.*", r"llm_adapter\..*"


def read_rules(arguments: NetworkArguments, warn: Warn) -> Rules:
    """Read the patterns; modulations are adapted only if a pattern includes them."""
    excluded = MODULATIONS if arguments.flag("train_llm_adapter") else f"{MODULATIONS}|{ADAPTER}"
    return layer_patterns.read_rules(arguments, warn, title="Anima", excluded=excluded)
