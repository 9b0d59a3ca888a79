"""Defaults of musubi-tuner's options for flow matching, which the families have that its commands train."""

from sd_scripts.options.optimization.flow import FlowOptions

MUSUBI = {"discrete_flow_shift": 1.0}
MUSUBI_GUIDED = {**MUSUBI, "guidance_scale": 1.0}
"""Of models that were distilled with an embedded guidance."""


def untouched(flow: FlowOptions) -> bool:
    """Return whether timesteps are sampled uniformly, as by a musubi-tuner command that sets none of its flags."""
    return flow.timestep_sampling == "sigma" and flow.discrete_flow_shift == MUSUBI["discrete_flow_shift"]
