"""How Wan's samples are guided at each step."""

from typing import Any

import pytest
import torch

from sd_scripts.families.common.encoders.umt5 import STATES
from sd_scripts.families.wan.card.options import WanSamplingOptions
from sd_scripts.families.wan.guidance import StepCounter, guided_steps, guided_velocity, steps_of
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.families.wan.objective import predict
from sd_scripts.families.wan.tiny import PARAMS
from sd_scripts.testing.miniature import T5_WIDTH

OFF = WanSamplingOptions(
    **{"timestep_boundary": None, "guidance_scale_high_noise": None, "cfg_skip_mode": "none", "cfg_apply_ratio": None},
    **{"slg_mode": None, "slg_layers": None, "slg_scale": 3.0, "slg_start": 0.0, "slg_end": 0.3},
    sample_solver="unipc",
)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", "1111111111"),
        ("early", "0000001111"),
        ("late", "1111000000"),
        ("early_late", "0001111000"),
        ("middle", "1100000011"),
        ("alternate", "0010100101"),
    ],
)
def test_the_negative_prompt_is_left_out_where_the_mode_says(mode: str, expected: str) -> None:
    assert "".join(str(int(each)) for each in guided_steps(mode, 0.4, 10)) == expected


@torch.no_grad()
def test_skip_layer_guidance_leads_away_from_the_model_without_some_blocks() -> None:
    torch.manual_seed(0)
    model = WanTransformer(PARAMS)
    for parameter in model.parameters():
        parameter.normal_(std=0.05)
    negative, prompt = ({STATES: torch.randn(1, 8, T5_WIDTH)} for _ in range(2))
    latents, t = torch.randn(1, 16, 1, 4, 4), torch.tensor(0.5)

    def plain(caption: dict[str, Any], skipped: Any = ()) -> torch.Tensor:
        return predict(model, latents, t.expand(1), caption, {}, skipped)

    def guided(**values: Any) -> torch.Tensor:
        options = WanSamplingOptions(**{**{name: getattr(OFF, name) for name in vars(OFF)}, **values})
        step = StepCounter(steps_of(options, 4))
        velocity = guided_velocity(
            model, captions=[negative, prompt], scale=5.0, conditions={}, step=step, options=options
        )
        return step.counting(velocity)(latents, t)

    usual = plain(negative) + 5 * (plain(prompt) - plain(negative))
    torch.testing.assert_close(guided(), usual)
    torch.testing.assert_close(guided(cfg_skip_mode="early", cfg_apply_ratio=0.5), plain(prompt))
    away = usual + 3 * (plain(prompt) - plain(prompt, {1, 2}))
    torch.testing.assert_close(guided(slg_mode="original", slg_layers="1, 2"), away)
    without = plain(negative, {1, 2})
    torch.testing.assert_close(guided(slg_mode="uncond", slg_layers="1,2"), without + 5 * (plain(prompt) - without))
    torch.testing.assert_close(guided(slg_mode="original", slg_layers="1,2", slg_start=0.25), usual)


def test_wrong_lists_of_blocks_are_reported() -> None:
    assert [name for name, _ in _with(slg_mode="original").check()] == ["slg_layers"]
    assert [name for name, _ in _with(slg_layers="nine").check()] == ["slg_layers"]
    assert [name for name, _ in _with(cfg_skip_mode="late").check()] == ["cfg_apply_ratio"]
    assert [*OFF.check()] == []


def _with(**values: Any) -> WanSamplingOptions:
    return WanSamplingOptions(**{**{name: getattr(OFF, name) for name in vars(OFF)}, **values})
