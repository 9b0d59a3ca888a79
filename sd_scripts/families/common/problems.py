"""Problems of components that do not fit together, and of the built-in network on the denoiser's layers."""

from collections.abc import Mapping
from typing import Any

from sd_scripts.families.cards.family_card import DENOISER, VAE, FamilyCard
from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.families.common.components import WeightSource
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, plan_layers
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.settings import Settings

Expected = Mapping[str, tuple[str, int]]
"""Component -> an entry of its configuration, and the value that the transformer expects: the width of a text or image
encoder's vectors, or the channels of a VAE's latents."""


def params_of(sources: Mapping[str, WeightSource]) -> Any:
    """Return the sizes of the opened transformer."""
    transformer: Any = sources[DENOISER].empty
    return transformer.params


def width_problems(sources: Mapping[str, WeightSource], card: FamilyCard, expected: Expected) -> list[str]:
    """Return a problem for each component whose outputs do not have the size that the transformer expects."""
    problems = []
    for component in card.files.components:
        source = sources.get(component.name)
        if source is None or component.name not in expected:
            continue
        entry, size = expected[component.name]
        what = "latents of {} channels" if component.name == VAE else "vectors of {} values"
        if (actual := getattr(source.empty.config, entry)) != size:
            problems.append(
                f"{component.option}: '{source.path}' produces {what.format(actual)}, but the transformer expects "
                f"{size}; choose the {component.kind} of {card.title}"
            )
    return problems


def network_problems(denoiser: WeightSource, target: LoraTarget, settings: Settings) -> list[str]:
    """Return problems of a built-in LoRA: block numbers beyond the last one, or nothing left to train."""
    network = settings.get(NetworkOptions)
    if not network or not is_built_in_network(network):
        return []
    try:
        args = NetworkArgs.read(settings, lambda _: None)
    except ValueError:
        return []  # reported by the network's own check
    try:
        args.rules.check(denoiser.empty)
        if network.network_train_unet_only and not network.dim_from_weights:
            plan_layers([AdaptedModule(module=denoiser.empty, target=target, lr=1.0)], args)
    except ValueError as error:
        return [str(error)]
    return []
