"""Wan 2.2 5B: a model with a VAE of its own, and clips that begin with an image."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.umt5 import STATES
from sd_scripts.families.common.family import StepInputs
from sd_scripts.families.wan.model import WanTransformer
from sd_scripts.families.wan.sampling import keeping_start
from sd_scripts.families.wan_5b.family import FAMILY
from sd_scripts.families.wan_5b.full_size import modules
from sd_scripts.families.wan_5b.objective import loss, step_inputs
from sd_scripts.families.wan_5b.tiny import PARAMS
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import clips
from tests.families.wan.test_wan import DIFFUSERS, OFFICIAL, shapes_in, shapes_of
from tests.support.training import train


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("wan_5b", "lora"), values)


def test_full_size_has_the_official_keys() -> None:
    full = modules(layers=1)
    assert shapes_in(full["denoiser"].state_dict()) == shapes_of(OFFICIAL["dit.ti2v-5B"])
    assert shapes_in(full["vae"].state_dict()) == shapes_of(DIFFUSERS["vae2.2"])


def test_the_start_has_no_noise_and_timestep_0() -> None:
    seen: list[Any] = []
    start = torch.full((1, 2, 1, 2, 2), 7.0)
    velocity = keeping_start(lambda latents, t: seen.append((latents, t)) or latents, start)  # type: ignore[func-returns-value]
    velocity(torch.zeros(1, 2, 3, 2, 2), torch.tensor(0.5))
    ((latents, times),) = seen
    assert times.tolist() == [[0.0, 0.5, 0.5]]
    assert latents[:, :, 0].unique().tolist() == [7.0]
    assert not latents[:, :, 1:].any()


@torch.no_grad()
def test_a_first_frame_that_is_given_has_neither_noise_nor_a_loss() -> None:
    """Its timestep is 0. A clip of the same batch that is trained from text is trained as without the option."""
    options, without = (
        FAMILY.objective_options(settings_of(first_frame_conditioning_p=share, timestep_sampling="uniform"))
        for share in (0.5, 0.0)
    )
    model = WanTransformer(PARAMS)
    components = Components(denoiser=model, vae=torch.nn.Module(), text_encoders=[], tokenizers=[], source="")
    for parameter in model.parameters():
        parameter.normal_(std=0.1)
    latents, text = torch.randn(4, 48, 3, 4, 4), {STATES: torch.randn(4, 512, 48)}
    batch: Any = SimpleNamespace(loss_weight=torch.ones(4), mask=None)
    inputs = step_inputs(batch, latents, options, torch.Generator().manual_seed(1), None)
    plain = step_inputs(batch, latents, without, torch.Generator().manual_seed(1), None)
    given = inputs["given"]
    assert 0 < given.sum() < 4
    found = loss(components, StepInputs(model=inputs, text=text), options)
    for number in range(4):
        noisy, times = plain["noisy"][[number]], plain["timesteps"][[number], None].repeat(1, 3)
        if given[number]:
            noisy = torch.cat((latents[[number], :, :1], noisy[:, :, 1:]), dim=2)
            times[:, 0] = 0
        velocity = model(noisy, text[STATES][[number]], times)[0]
        first = int(given[number])
        expected = (velocity - plain["target"][number])[:, first:].square().mean()
        torch.testing.assert_close(found[number], expected)
    image = step_inputs(batch, latents[:, :, :1], options, torch.Generator().manual_seed(1), None)
    assert "given" not in image


@pytest.mark.run
def test_it_trains_on_clips_and_samples_begin_with_an_image(
    wan_5b_miniature: Any, wan_miniature: Any, tmp_path: Path
) -> None:
    data = clips.write_clips(tmp_path / "clips", size=(64, 64), frames=5, count=2)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "start.png")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"a red circle --w 64 --h 64 --f 5 --s 2 --d 1 --l 1 --i {tmp_path / 'start.png'}\n")
    values = {"target_frames": "1,5", "caption_extension": ".txt", "train_data_dir": data}
    run = train(
        wan_5b_miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=3, compile=True,
        compile_backend="eager", first_frame_conditioning_p=0.5, **values,
    )  # fmt: skip
    assert run.status == 0
    assert run.events_of("started")[0]["shapes"] == ["64x64x1", "64x64x5x1"]
    (sample,) = run.events_of("sample")
    with av.open(sample["path"]) as clip:
        frames = [frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)]
    assert len(frames) == 5
    assert np.isfinite(frames[0]).all()
    wrong = {"pretrained_model_name_or_path": wan_miniature.checkpoint}
    assert train(wan_5b_miniature, tmp_path / "wrong", **wrong, **values).status == 2
