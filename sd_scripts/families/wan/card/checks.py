"""Rules between options that concern Wan only; see `settings/checks/between.py`."""

from sd_scripts.families.wan.card.options import RECOMMENDED, WanSamplingOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues


def timesteps_not_recommended(values: OptionValues) -> Findings:
    if values[FlowOptions].timestep_sampling == "sigma":
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma, the default of sd-scripts, suits Wan badly; recommended: {recommended}"


def skipped_blocks_that_are_swapped(values: OptionValues) -> Findings:
    memory = values.get(MemoryOptions)
    if values[WanSamplingOptions].slg_mode and memory and memory.blocks_to_swap:
        yield "slg_mode", "cannot leave out blocks that blocks_to_swap loads in turn; leave out one of the two"


PROBLEMS = (skipped_blocks_that_are_swapped,)
REMARKS = (timesteps_not_recommended,)
