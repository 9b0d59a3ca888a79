"""The objective that a model file or folder states: what the model predicts, and from which noise."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sd_scripts.formats.documents import read_json

SCHEDULER = "scheduler/scheduler_config.json"
EDM_KEYS = ("edm_mean", "edm_std", "edm_vpred.sigma_max")
"""Marker keys of Playground 2.5 and CosXL."""
FLOW, IMAGES = "by flow matching", "to predict images themselves"
OTHER_SCHEDULERS = (("EDM", "with EDM's noise levels"), ("FlowMatch", FLOW))
"""(prefix of a scheduler's class, how such a model was trained)."""
OTHER_PREDICTIONS = {
    **dict.fromkeys(("flow", "flow_prediction", "flow_matching", "rectified_flow"), FLOW),
    **dict.fromkeys(("sample", "x0", "x_0"), IMAGES),
}
"""Stated prediction type -> how the model was trained."""


@dataclass(frozen=True, kw_only=True)
class ModelObjective:
    """None: the model does not state it."""

    velocity: bool | None = None
    """Whether it predicts velocity (v-prediction); False: noise."""
    zero_terminal_snr: bool | None = None
    other: str = ""
    """How it was trained otherwise than models here are, such as "by flow matching"; empty if it was not."""
    unreadable: str = ""
    """The file that would state it but cannot be read; empty if there is none."""

    def disagreements(self, model: str, *, velocity: bool, zero_terminal_snr: bool) -> Iterator[str]:
        """Yield a sentence for each option, `velocity` being v_parameterization, that differs from what `model`
        states."""
        if self.other:
            yield f"pretrained_model_name_or_path: '{model}' was trained {self.other}, which is not supported here"
        if self.unreadable:
            yield (
                f"pretrained_model_name_or_path: '{model}' has a {self.unreadable} that cannot be read, so that "
                "v_parameterization and zero_terminal_snr are not compared with it; download it again"
            )
        if self.velocity and not velocity:
            yield f"v_parameterization: is off, but '{model}' is marked as a v-prediction model; turn it on"
        if self.velocity is False and velocity:
            yield (
                f"v_parameterization: is on, but '{model}' states that it predicts noise; turn it off, unless it is to "
                "become a v-prediction model"
            )
        if self.zero_terminal_snr and not zero_terminal_snr:
            yield f"zero_terminal_snr: is off, but '{model}' is marked as trained with it; turn it on"
        if self.zero_terminal_snr is False and zero_terminal_snr and self.velocity is not False:
            yield f"zero_terminal_snr: is on, but '{model}' states that it was trained without it; turn it off"

    def switches(self) -> dict[str, bool]:
        """Return the options that are on for images of this model, whatever the settings are."""
        stated = {"v_parameterization": self.velocity, "zero_terminal_snr": self.zero_terminal_snr}
        return {name: True for name, value in stated.items() if value}


def objective_of_file(keys: Collection[str], metadata: Mapping[str, str]) -> ModelObjective:
    """Read the marker keys that programs look for, and the metadata of modelspec."""
    prediction = metadata.get("modelspec.prediction_type", "").strip().lower()
    velocity = "v_pred" in keys or prediction in ("v", "v_prediction", "v-prediction")
    return ModelObjective(
        velocity=velocity or (False if prediction == "epsilon" else None),
        zero_terminal_snr="ztsnr" in keys or None,
        other="with EDM's noise levels"
        if any(key in keys for key in EDM_KEYS)
        else OTHER_PREDICTIONS.get(prediction, ""),
    )


def objective_of_folder(folder: Path) -> ModelObjective:
    """Read scheduler/scheduler_config.json of a diffusers folder."""
    try:
        config: Any = read_json(folder / SCHEDULER)
        predicted = config.get("prediction_type")
        rescaled = config.get("rescale_betas_zero_snr")
        scheduler = str(config.get("_class_name", ""))
    except (ValueError, AttributeError):
        return ModelObjective(unreadable=SCHEDULER if os.path.lexists(folder / SCHEDULER) else "")
    other = next((how for prefix, how in OTHER_SCHEDULERS if scheduler.startswith(prefix)), "")
    other = FLOW if config.get("use_flow_sigmas") is True else OTHER_PREDICTIONS.get(str(predicted), other)
    return ModelObjective(
        velocity={"v_prediction": True, "epsilon": False}.get(str(predicted)),
        zero_terminal_snr=rescaled if isinstance(rescaled, bool) else None,
        other=other,
    )
