"""Wan 2.2 5B: a model with a VAE of its own, and clips that begin with an image."""

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sd_scripts.families.wan.sampling import keeping_start
from sd_scripts.families.wan_5b.full_size import modules
from sd_scripts.testing import clips
from tests.families.wan.test_wan import DIFFUSERS, OFFICIAL, shapes_in, shapes_of
from tests.support.training import train


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
        compile_backend="eager", **values,
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
