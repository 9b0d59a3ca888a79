"""Problems of the built-in network that depend on the denoiser's blocks and layers."""

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.families.common.components import WeightSource
from sd_scripts.networks.plan import AdaptedModule, plan_layers, read_args
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.settings import Settings


def network_problems(denoiser: WeightSource, target: LoraTarget, settings: Settings) -> list[str]:
    """Return problems of a built-in LoRA: block numbers beyond the last one, or nothing left to train."""
    network = settings.get(NetworkOptions)
    if not network or not is_built_in_network(network):
        return []
    try:
        args = read_args(settings, lambda _: None)
    except ValueError:
        return []  # reported by the network's own check
    try:
        args.rules.check(denoiser.empty)
        if network.network_train_unet_only and not network.dim_from_weights:
            plan_layers([AdaptedModule(module=denoiser.empty, target=target, lr=1.0)], args)
    except ValueError as error:
        return [str(error)]
    return []
