"""Rules between options that concern Qwen-Image-Edit only; see `settings/checks/between.py`."""

from sd_scripts.families.qwen_image.card.options import QwenImageModelOptions
from sd_scripts.options.spec import Findings, OptionValues


def version_without_training(values: OptionValues) -> Findings:
    model = values[QwenImageModelOptions]
    match model.model_version:
        case "original":
            why = "original needs the scripts of Qwen-Image; set edit, edit-2509 or edit-2511, or leave it unset"
            yield "model_version", why
        case "layered" as version:
            yield (
                "model_version",
                f"{version} is not supported; choose a file of edit, edit-2509 or edit-2511",
            )
