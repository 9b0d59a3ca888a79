"""A captioning job that is killed: no caption is lost, and the same command continues."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.captioning_models.tagging import (
    CaptionServer,
    caption,
    caption_server,
    captions,
    reply,
    write_colours,
)
from tests.support.runs import wait_for

pytestmark = pytest.mark.deep
__all__ = ["caption_server"]


def test_a_killed_job_loses_no_caption_and_continues(
    caption_server: CaptionServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    images = write_colours(tmp_path / "10_cat")
    (images / "red.txt").write_text("before\n")
    flags = [str(images), "--method", "endpoint", "--endpoint", caption_server.url, "--model", "m"]
    flags += ["--existing", "append", "--overwrite_hand"]
    caption_server.drips = True
    job = subprocess.Popen([sys.executable, "-m", "sd_scripts.tools.captioning", *flags], env=os.environ)
    wait_for(lambda: caption_server.requests)
    job.kill()
    job.wait()
    assert captions(images) == {"red": "before"}
    assert {file.suffix for file in images.iterdir()} == {".png", ".txt"}
    caption_server.drips = False
    caption_server.answers = lambda number: (200, {}, reply("after"))
    assert caption(*flags) == 0
    assert captions(images) == {"blue": "after", "green": "after", "red": "before after"}
