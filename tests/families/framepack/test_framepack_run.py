"""Runs of FramePack on clips."""

from pathlib import Path
from typing import Any

import pytest

from sd_scripts.testing.clips import write_clips
from tests.support.training import train

pytestmark = pytest.mark.run
CLIPS: dict[str, Any] = {"target_frames": "37", "max_train_steps": 2, "min_bucket_reso": 64, "f1": True}


def test_clips_encoded_in_the_step_train_as_cached_ones(framepack_miniature: Any, tmp_path: Path) -> None:
    """SigLIP stays in memory for them when the text encoders are freed."""
    data = write_clips(tmp_path / "clips", (64, 64), frames=40, fps=30, count=2)
    cached = train(framepack_miniature, tmp_path / "cached", train_data_dir=data, **CLIPS)
    in_step = train(framepack_miniature, tmp_path / "in_step", train_data_dir=data, cache_latents=None, **CLIPS)
    assert cached.events_of("started")[0]["shapes"] == in_step.events_of("started")[0]["shapes"]
    assert len(cached.losses) == 2
    assert in_step.losses == pytest.approx(cached.losses, rel=1e-5)
    assert in_step.losses[0] != in_step.losses[1]
