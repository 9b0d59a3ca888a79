"""Rules between options that concern Qwen-Image only; see `options/checks.py`."""

from sd_scripts.families.qwen_image.options import RECOMMENDED
from sd_scripts.options.checks import Findings
from sd_scripts.options.flow import FlowOptions


def timesteps_not_recommended(objective: FlowOptions) -> Findings:
    if objective.timestep_sampling == "sigma" and objective.discrete_flow_shift == FlowOptions.discrete_flow_shift:
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma with its default shift suits Qwen-Image badly; recommended: {recommended}"


REMARKS = (timesteps_not_recommended,)
