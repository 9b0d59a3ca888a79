"""Rules between options that concern Qwen-Image only; see `settings/checks/between.py`."""

from sd_scripts.families.cards.flow_defaults import untouched
from sd_scripts.families.qwen_image.card.options import RECOMMENDED, QwenImageModelOptions
from sd_scripts.options.optimization.flow import FlowOptions
from sd_scripts.options.spec import Findings, OptionValues


def version_of_another_model(values: OptionValues) -> Findings:
    model = values[QwenImageModelOptions]
    match model.model_version:
        case "edit" | "edit-2509" | "edit-2511" as version:
            yield "model_version", f"{version} needs the scripts of Qwen-Image-Edit; set original, or use those"
        case "layered" as version:
            yield "model_version", f"{version} is not supported; choose a Qwen-Image file and set original"


def timesteps_not_recommended(values: OptionValues) -> Findings:
    if untouched(values[FlowOptions]):
        recommended = ", ".join(f"{name} = {value}" for name, value in RECOMMENDED.items())
        yield "timestep_sampling", f"sigma with its default shift suits Qwen-Image badly; recommended: {recommended}"


PROBLEMS = (version_of_another_model,)
REMARKS = (timesteps_not_recommended,)
