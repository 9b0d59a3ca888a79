"""A run folder that comes from elsewhere: its events name no file of this machine that is not an output of the run."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.tools.publish.__main__ import main
from sd_scripts.tools.publish.trained import read_run
from tests.support.data import make_image

POSIX = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")


class Foreign:
    """A run folder with events that its maker chose, in a folder next to the private files of its user."""

    def __init__(self, folder: Path) -> None:
        self.output, self.private = folder / "out", folder / "private"
        self.private.mkdir()
        self.run = new_run_folder(self.output / "runs", "cat")
        write_toml(self.run.config, {"family": "sdxl", "method": "lora", "output_dir": str(self.private)})
        self.file = self.weights(self.output / "cat.safetensors")
        self.log("started", family="sdxl", method="lora", max_steps=1)
        self.log("saved", path=str(self.file), step=1)

    def log(self, kind: Any, **payload: Any) -> None:
        log = self.run.log()
        log(kind, **payload)
        log.close()

    def sample(self, path: Path, number: int) -> None:
        self.log("sample", path=str(path), step=1, number=number, prompt="a cat")

    def weights(self, path: Path) -> Path:
        save_file({"lora_unet_x.lora_down.weight": torch.ones(2, 2)}, path)
        return path

    def names(self) -> list[str]:
        zip_file = self.output / "published.zip"
        assert main([str(self.run.path), "--zip", str(zip_file)]) == 0
        with zipfile.ZipFile(zip_file) as packed:
            return sorted(packed.namelist())


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


@POSIX
def test_only_images_of_the_output_folder_are_published(foreign: Foreign, capsys: pytest.CaptureFixture[str]) -> None:
    out, private = foreign.output, foreign.private
    good = make_image(out / "sample" / "good.png", (8, 8))
    photo = make_image(private / "photo.png", (8, 8))
    (out / "sample" / "link.png").symlink_to(photo)
    (out / "sample" / "text.png").write_text("not an image")
    (out / "sample" / "image.txt").write_bytes(good.read_bytes())
    (out / "sample" / "cut.png").write_bytes(good.read_bytes()[:60])
    os.mkfifo(out / "sample" / "pipe.png")
    (out / "up").symlink_to(private)
    bad = [photo, *(out / "sample" / f"{name}" for name in ("link.png", "text.png", "image.txt", "cut.png"))]
    bad += [out / "up" / "photo.png", out / "runs" / ".." / ".." / "private" / "photo.png", Path("/etc/hostname")]
    for number, path in enumerate([*bad, good, out / "sample" / "pipe.png"]):
        foreign.sample(path, number)
    assert foreign.names() == ["README.md", "cat.safetensors", "images/sample-1.png"]
    lines = capsys.readouterr().out.splitlines()
    assert f"images/sample-1.png: '{good}'" in lines
    assert [path for path in bad if not any(f"'{path}' " in line and "left out" in line for line in lines)] == []
    assert main([str(foreign.run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["contents"]["images/sample-1.png"] == str(good)
    assert len(told["left_out"]) == len(bad)


@POSIX
def test_only_safetensors_of_the_output_folder_are_published(
    foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    out, private = foreign.output, foreign.private
    secret = foreign.weights(private / "model.safetensors")
    (private / "key.pem").write_text("key")
    (out / "link.safetensors").symlink_to(secret)
    (out / "text.safetensors").symlink_to(private / "key.pem")
    (out / "cat.ckpt").write_bytes(b"weights")
    (out / "web.safetensors").write_text("<html>")
    names = (secret, private / "key.pem", out / "link.safetensors", out / "text.safetensors", out / "cat.ckpt")
    for file in (*names, out / "web.safetensors"):
        foreign.log("saved", path=str(file), step=2)
        assert main([str(foreign.run.path), "--zip", str(out / "a.zip")]) == 2
        said = capsys.readouterr().err
        assert f"'{file}' " in said
        assert len(said.splitlines()) == 1
        assert "?" not in said
        assert said.endswith("so it is not published\n")
    assert not (out / "a.zip").exists()
    foreign.log("saved", path=str(foreign.file), step=3)
    (out / "cat-embedding.safetensors").symlink_to(secret)
    assert foreign.names() == ["README.md", "cat.safetensors"]


@POSIX
def test_a_model_card_that_leads_elsewhere_is_not_published(
    foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    (foreign.private / "key.pem").write_text("key")
    (foreign.output / "cat-README.md").symlink_to(foreign.private / "key.pem")
    for flags in (["--json"], ["--zip", str(foreign.output / "a.zip")]):
        assert main([str(foreign.run.path), *flags]) == 2
        assert "is not published as the model card" in capsys.readouterr().err


def test_a_run_next_to_its_outputs_is_published_too(foreign: Foreign) -> None:
    foreign.run.path.rename(foreign.output / "run")
    assert read_run(foreign.output / "run").files == (foreign.file,)
