"""A job that is killed leaves no folder of copies, and the same command continues."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.image_models.tiny import draw, edit
from tests.support.runs import wait_for

pytestmark = pytest.mark.deep


def test_a_killed_job_leaves_no_folder_and_continues(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number in range(24):
        draw(photos / f"{number:02}.bmp", (900, 900))
    job = subprocess.Popen([sys.executable, "-m", "sd_scripts.tools.images", str(photos)], env=os.environ)
    done = tmp_path / ".photos-converted.unfinished" / "done.jsonl"
    wait_for(lambda: done.is_file() and done.stat().st_size)
    job.kill()
    job.wait()
    assert not (tmp_path / "photos-converted").exists()
    assert edit(photos) == 0
    assert {path.name for path in (tmp_path / "photos-converted").iterdir()} == {f"{n:02}.png" for n in range(24)}
    assert {path.suffix for path in photos.iterdir()} == {".bmp"}
    assert not list(tmp_path.rglob("*.part"))
