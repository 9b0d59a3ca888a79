"""Rules between options that concern Anima only; see `settings/checks/between.py`."""

from sd_scripts.families.anima.card.options import PARTS, RECOMMENDED
from sd_scripts.options.full import FullOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues


def block_lr_of_another_length(values: OptionValues) -> Findings:
    full = values[FullOptions]
    if len(full.block_rates) not in (0, len(PARTS) + 1):
        yield "block_lr", f"has {len(full.block_rates)} values; give {len(PARTS) + 1}"


def timesteps_not_recommended(values: OptionValues) -> Findings:
    flow = values[FlowOptions]
    if flow.timestep_sampling == "sigma" and flow.discrete_flow_shift == FlowOptions.discrete_flow_shift:
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma with its default shift suits Anima badly; recommended: {recommended}"


PROBLEMS = (block_lr_of_another_length,)
REMARKS = (timesteps_not_recommended,)
