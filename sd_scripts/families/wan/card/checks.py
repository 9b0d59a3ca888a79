"""Rules between options that concern Wan only; see `settings/checks/between.py`."""

from sd_scripts.families.wan.card.experts import trains_both
from sd_scripts.families.wan.card.options import RECOMMENDED, WanSamplingOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.networks.network_types import read_items
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues, truth


def timesteps_not_recommended(values: OptionValues) -> Findings:
    if values[FlowOptions].timestep_sampling == "sigma":
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma, the default of musubi-tuner, suits Wan badly; recommended: {recommended}"


def skipped_blocks_that_are_swapped(values: OptionValues) -> Findings:
    memory = values.get(MemoryOptions)
    if values[WanSamplingOptions].slg_mode and memory and memory.blocks_to_swap:
        yield "slg_mode", "cannot leave out blocks that blocks_to_swap loads in turn; leave out one of the two"


def adapters_of_one_base_model(values: OptionValues) -> Findings:
    """Refuse adapters that start from the values of the base weights, if there are two sets of them."""
    network = values.get(NetworkOptions)
    if network is None or not trains_both(values):
        return
    arguments = {**network.shared_arguments, **read_items(network.network_args)}
    started = network.lora_init != "default" or arguments.get("lora_init", "default") != "default"
    norms = network.network_type == "dora" or network.dora_wd or bool(truth(arguments.get("dora_wd", "False")))
    noise = any(name in arguments for name in ("ggpo_beta", "ggpo_sigma"))
    for name, found in {"lora_init": started, "network_type": norms, "network_args": noise}.items():
        if found:
            what = {"lora_init": "lora_init", "network_type": "DoRA", "network_args": "ggpo"}[name]
            yield (
                name,
                f"{what} starts from the base weights, but a LoRA on both models has two sets of them; leave it out, "
                "or train each model in a run of its own",
            )


def base_weights_of_one_model(values: OptionValues) -> Findings:
    network = values.get(NetworkOptions)
    if network and network.base_weights and trains_both(values):
        yield "base_weights", "are merged into the model for low noise only"


def idle_model_without_effect(values: OptionValues) -> Findings:
    memory = values.get(MemoryOptions)
    if memory and memory.offload_inactive_dit and not trains_both(values):
        yield "offload_inactive_dit", "has no effect where a single model is trained"


PROBLEMS = (skipped_blocks_that_are_swapped, adapters_of_one_base_model)
REMARKS = (timesteps_not_recommended, base_weights_of_one_model, idle_model_without_effect)
