"""Text typed into a field is checked when the field is left."""

from typing import Any

import pytest

from kohya_gui.form.field_check import check
from sd_scripts.settings.reading import from_values
from tests.support.scripts import FLUX_LORA, SDXL_LORA


def problem(name: str, value: object, **more: Any) -> str:
    body = {"tab": "lora", "family": "sdxl", "name": name, "value": value, **more}
    return check(None, body)["problem"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("learning_rate", value) for value in ("0,003", "-2e-4", "fast", "1e12")),
        *(("network_dim", value) for value in ("-3", "4.5", "1000001")),
        *(("network_alpha", "-0.5"), ("lr_warmup_steps", "-7"), ("max_train_epochs", "ten"), ("seed", "-1")),
        *(("mixed_precision", "fp12"), ("text_encoder_lr", "quick"), ("min_snr_gamma", "-5")),
    ],
)
def test_a_wrong_value_is_reported_in_the_words_of_start(name: str, value: str) -> None:
    why = problem(name, value)
    assert why
    assert f"{name}: {why}" in from_values(SDXL_LORA, {name: value}).wrong_values()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("learning_rate", "3e-4"), ("unet_lr", ""), ("network_dim", "12"), ("lr_warmup_steps", "0.2")),
        *(("output_name", "a"), ("train_data_dir", "/not/there"), ("no_option", "x"), ("network_args", "a=1\nb=2")),
    ],
)
def test_a_value_that_start_accepts_has_no_problem(name: str, value: str) -> None:
    assert problem(name, value) == ""


def test_the_family_decides_what_a_value_may_be() -> None:
    assert problem("timestep_sampling", "never", family="flux")
    assert (
        f"timestep_sampling: {problem('timestep_sampling', 'never', family='flux')}"
        in from_values(FLUX_LORA, {"timestep_sampling": "never"}).wrong_values()
    )


@pytest.mark.parametrize("more", [{"tab": "x"}, {"family": None}, {"value": ["1"]}, {"value": 3}, {"tab": ["lora"]}])
def test_a_request_without_a_field_of_a_form_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not name"):
        problem("seed", **{"value": "1", **more})
