"""Runs of HunyuanVideo and FramePack that no rule for every family covers: image to video, and whole models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from sd_scripts.families.hunyuan_video.tiny import PARAMS, write_miniature
from sd_scripts.testing.clips import write_clips
from tests.support.data import make_image
from tests.support.training import train, train_whole

pytestmark = pytest.mark.run


def test_an_image_to_video_model_trains_on_clips_and_needs_an_image_for_its_samples(tmp_path: Path) -> None:
    model = write_miniature(tmp_path / "model", replace(PARAMS, image_channels=16))
    make_image(tmp_path / "start.png", (80, 64))
    prompts = tmp_path / "prompts.txt"
    shape = "--w 64 --h 64 --f 5 --s 1 --d 1"
    prompts.write_text(f"a circle --i {tmp_path / 'start.png'} {shape}\na circle {shape}\n")
    run = train(
        model,
        tmp_path / "out",
        train_data_dir=write_clips(tmp_path / "clips", (64, 64), frames=5, count=2),
        sample_prompts=prompts,
        sample_every_n_steps=2,
        **{"target_frames": "5", "max_train_steps": 2, "min_bucket_reso": 64},
    )
    assert len(run.losses) == 2
    assert [(event["number"], event["frames"]) for event in run.events_of("sample")] == [(0, 5)]
    warnings = "\n".join(event["text"] for event in run.events_of("warning"))
    assert "line 2: SkyReels-V1 I2V makes clips from a start image; name one with --i" in warnings
    assert "the sample of prompt 2 could not be made" in warnings


@pytest.mark.parametrize("family", ["hunyuan_video", "framepack"])
def test_a_whole_transformer_is_trained_and_saved_in_the_layout_of_its_file(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    miniature: Any = request.getfixturevalue(f"{family}_miniature")
    run = train_whole(miniature, tmp_path / "out", max_train_steps=2)
    trained = run.tensors()
    with safe_open(miniature.checkpoint, "pt") as before:
        assert set(trained) == set(before.keys())
        changed = [key for key, tensor in trained.items() if not tensor.equal(before.get_tensor(key).to(tensor.dtype))]
    assert len(changed) > len(trained) / 2
