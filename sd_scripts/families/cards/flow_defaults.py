"""Defaults of musubi-tuner's options for flow matching, which the families have that its commands train."""

from collections.abc import Mapping
from typing import Any

from sd_scripts.families.cards.family_card import PageCard
from sd_scripts.options.optimization.flow import FlowOptions

MUSUBI = {"discrete_flow_shift": 1.0}
MUSUBI_GUIDED = {**MUSUBI, "guidance_scale": 1.0}
"""Of models that were distilled with an embedded guidance."""


def untouched(flow: FlowOptions) -> bool:
    """Return whether timesteps are sampled uniformly, as by a musubi-tuner command that sets none of its flags."""
    return flow.timestep_sampling == "sigma" and flow.discrete_flow_shift == MUSUBI["discrete_flow_shift"]


def musubi_page(recommended: Mapping[str, Any], model_panel: tuple[str, ...], **more: Any) -> PageCard:
    """Return the texts of such a family, and what it has on the page; arguments are fields of PageCard."""
    return PageCard(
        recommended=recommended,
        recommended_note="The defaults train all noise levels equally often.",
        model_panel=model_panel,
        use_hints={"full": "Your model. To use it, put it into <b>models/diffusion_models</b> (ComfyUI)."},
        demo=recommended,
        **more,
    )
