"""FLUX.1 Kontext as a record for the trainer: FLUX.1's parts, whose sequences contain control images too.

Black Forest Labs, 2025. The transformer has the keys and shapes of FLUX.1 dev. The tokens of control images follow
the noisy image's; the first coordinate of their positions is the number of the control image, from 1.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sd_scripts.families.common.components import DENOISER, WeightSource
from sd_scripts.families.flux import load
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux_kontext.card import ARCHITECTURE, CARD
from sd_scripts.options.optimization.flow import FlowOptions


def problems(sources: Mapping[str, WeightSource], flow: FlowOptions) -> list[str]:
    """Return the problems of FLUX.1, and one if the transformer is schnell's."""
    transformer: Any = sources[DENOISER].empty
    flux_problems = load.problems(sources, flow)
    if transformer.shape.guidance:
        return flux_problems
    path = sources[DENOISER].path
    schnell = (
        f"pretrained_model_name_or_path: '{path}' is FLUX.1 schnell, not {CARD.title}; choose {CARD.files.base_file}"
    )
    return [schnell, *flux_problems]


FAMILY = KONTEXT = replace(
    FLUX,
    card=CARD,
    identity=replace(FLUX.identity, base_model_version=CARD.name, architecture=lambda components: ARCHITECTURE),
    blocks=replace(FLUX.blocks, title=CARD.title),
    problems=lambda sources, settings: problems(sources, settings[FlowOptions]),
)
