"""Regularisation images made by the base model: a stopped job continues, and nothing is made before all is checked."""

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder
from sd_scripts.tools.regularisation.__main__ import COMMAND
from tests.support.data import make_folder
from tests.support.suite.fresh import needs_fork, outcome, processes
from tests.support.training import OF_FAMILY, SHORT

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # diffusers asks NumPy in an old way
]


@pytest.fixture
def training(any_miniature: Any, tmp_path: Path) -> Path:
    """The settings of a training on nine images of cats and two of dogs, in two sizes."""
    make_folder(tmp_path / "data" / "3_ohwx cat", [(64, 64), (64, 64), (128, 64)])
    make_folder(tmp_path / "data" / "1_dog", [(64, 64), (64, 64)])
    values = {**SHORT, **OF_FAMILY["flux"], **any_miniature.files, "train_data_dir": tmp_path / "data"}
    values |= {"resolution": "96,96"}
    file = tmp_path / "cat.toml"
    write_toml(file, {name: str(value) if isinstance(value, Path) else value for name, value in values.items()})
    return file


def generate(training: Path, to: Path, *flags: str) -> int:
    return COMMAND.main("regularisation", [str(training), "--reg_data_dir", str(to), "--steps", "1", *flags])


def pixels(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): np.array(Image.open(path)) for path in sorted(folder.rglob("*.png"))}


def test_a_stopped_job_continues_to_the_same_images(training: Path, tmp_path: Path) -> None:
    assert generate(training, tmp_path / "whole") == 0
    whole = pixels(tmp_path / "whole")
    assert sum(name.startswith("1_cat") for name in whole) == 9
    assert sum(name.startswith("1_dog") for name in whole) == 2
    assert {image.shape for image in whole.values()} == {(96, 96, 3), (64, 128, 3)}

    stopped = RunFolder(tmp_path / "run")
    stopped.path.mkdir()
    log = EventLog(stopped.commands_file)
    log("stop", time=time.time() + 3600)
    log.close()
    assert generate(training, tmp_path / "parts", "--run_dir", str(stopped.path)) == 130
    begun = pixels(tmp_path / "parts")
    assert len(begun) < len(whole)
    assert generate(training, tmp_path / "parts") == 0
    parts = pixels(tmp_path / "parts")
    assert parts.keys() == whole.keys()
    assert all((parts[name] == whole[name]).all() for name in whole)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*.png")}
    assert generate(training, tmp_path / "parts") == 0
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*.png")}


def test_a_full_disk_loses_no_image_and_the_next_job_makes_the_missing_ones(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, to = os.replace, tmp_path / "reg"

    def full(source: Any, target: Any) -> None:
        if Path(target).parent.name.startswith("1_cat") and Path(target).suffix == ".png":
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert generate(training, to) == 1
    assert "the disk is full" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in to.rglob("*.png")}
    assert kept
    assert not list(to.rglob("*.part"))
    assert generate(training, to) == 0
    assert len(pixels(to)) == 11
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


@needs_fork
def test_a_killed_job_leaves_whole_images_and_the_next_one_makes_the_rest(training: Path, tmp_path: Path) -> None:
    to = tmp_path / "reg"
    killed = processes().Process(target=die_at_the_third_image, args=(training, to))
    killed.start()
    assert outcome(killed) == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in to.rglob("*.png")}
    assert len(pixels(to)) == len(kept) == 2
    assert generate(training, to) == 0
    assert len(pixels(to)) == 11
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert {path.suffix for path in to.rglob("*") if path.is_file()} == {".png"}


def die_at_the_third_image(training: Path, to: Path) -> None:
    """In a process of its own."""
    named: list[object] = []

    def about_to(what: str, arguments: tuple[Any, ...]) -> None:
        if what == "os.rename" and str(arguments[1]).endswith(".png"):
            named.append(arguments[1])
            if len(named) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(about_to)
    generate(training, to)


def test_a_prompt_that_names_no_folder_becomes_the_caption(training: Path, tmp_path: Path) -> None:
    prompt = "a cat: sitting? --d 5 --w 64 --h 64"
    assert generate(training, tmp_path / "reg", "--prompt", prompt, "--images", "1") == 0
    (image,) = (tmp_path / "reg").rglob("*.png")
    assert image == tmp_path / "reg" / "1_a cat sitting" / "00000_5.png"
    assert image.with_suffix(".txt").read_text() == "a cat: sitting?\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--prompt", "a cat --w 77"], "prompt: width 77 is not a multiple of 16"),
        (["--prompt", " "], "prompt: number 1 is empty"),
        (["--reg_data_dir", os.devnull], "reg_data_dir: "),
        (["--config_file", "missing.toml"], "config_file: file not found"),
    ],
)
def test_mistakes_are_reported_before_anything_is_made(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    word = [] if "--config_file" in flags else [str(training)]
    assert COMMAND.main("regularisation", [*word, "--reg_data_dir", str(tmp_path / "reg"), *flags]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "reg").exists()
