"""Checks that families trained by flow matching share."""

from collections.abc import Callable, Mapping

from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues


def recommends(title: str, recommended: Mapping[str, object]) -> Callable[[OptionValues], Findings]:
    """Return a check for a family with this title that remarks the default timesteps, which suit it badly."""

    def timesteps_not_recommended(values: OptionValues) -> Findings:
        flow = values[FlowOptions]
        if flow.timestep_sampling == "sigma" and flow.discrete_flow_shift == FlowOptions.discrete_flow_shift:
            advice = ", ".join(f"{name} = {value}" for name, value in recommended.items())
            yield "timestep_sampling", f"sigma with its default shift suits {title} badly; recommended: {advice}"

    return timesteps_not_recommended
