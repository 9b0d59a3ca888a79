"""Rules between options that concern Wan only; see `settings/checks/between.py`."""

from sd_scripts.families.wan.card.options import RECOMMENDED
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues


def timesteps_not_recommended(values: OptionValues) -> Findings:
    if values[FlowOptions].timestep_sampling == "sigma":
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma, the default of sd-scripts, suits Wan badly; recommended: {recommended}"


PROBLEMS = ()
REMARKS = (timesteps_not_recommended,)
