"""The demo: a model and images made on the spot, small, the same every time, and worth training on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import gui
from sd_scripts import demo
from sd_scripts.families.cards.registry import module_of
from sd_scripts.families.common.family import Family
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.sdxl import tiny
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.keys import VAE_SCALE
from sd_scripts.families.sdxl.vae import encode_images
from sd_scripts.families.wan.family import WAN
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing import demo_images
from sd_scripts.testing.miniature import images
from tests.support.miniatures import sdxl_settings
from tests.support.suite.fresh import outcome, processes

pytestmark = pytest.mark.run


def test_a_dozen_images_of_several_sizes_with_captions(each_miniature: Any) -> None:
    folder = each_miniature.data_dir / demo_images.FOLDER
    sizes = {Image.open(path).size for path in folder.glob("*.png")}
    captions = {path.read_text().strip() for path in folder.glob("*.txt")}
    assert len(list(folder.glob("*.png"))) == 12
    assert sizes == set(demo_images.SIZES)
    assert captions == set(demo_images.captions())


def test_the_files_are_small(each_miniature: Any) -> None:
    assert sum(path.stat().st_size for path in each_miniature.files.values()) < 25_000_000


def test_every_block_type_of_sdxl_is_in_the_checkpoint(miniature: Any) -> None:
    unet = SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load().denoiser
    assert [type(block).__name__ for block in unet.down_blocks] == list(tiny.UNET["down_block_types"])
    assert [type(block).__name__ for block in unet.up_blocks] == list(tiny.UNET["up_block_types"])


def write_miniatures(families: list[str], folder: Path, other: int) -> None:
    """In another process, whose hashes are not `other`."""
    assert hash("image") != other
    for name in families:
        module_of(name, "tiny").write_miniature(folder / name)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no forkserver")
def test_it_is_the_same_every_time(miniature: Any, flux_miniature: Any, tmp_path: Path) -> None:
    """In another process, where sets and tables have another order."""
    made = {model.family: model.checkpoint.parent for model in (miniature, flux_miniature)}
    process = processes().Process(target=write_miniatures, args=(list(made), tmp_path, hash("image")))
    process.start()
    assert outcome(process) == 0
    for name, folder in made.items():
        again = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert len(again) > 24
        for path in again:
            assert path.read_bytes() == (folder / path.relative_to(tmp_path / name)).read_bytes(), path


def test_latents_have_the_spread_that_sdxls_have(miniature: Any) -> None:
    parts = SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load()
    latents = encode_images(parts, images()) * VAE_SCALE
    torch.testing.assert_close(latents.mean((0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(latents.std((0, 2, 3)), torch.ones(4), atol=1e-2, rtol=0)


def test_latents_have_the_spread_that_flux_learns_from(flux_miniature: Any) -> None:
    settings = Settings(script_for("flux", "lora"), {k: str(path) for k, path in flux_miniature.files.items()})
    parts = FLUX.open(settings, torch.float32, torch.device("cpu")).load()
    latents = FLUX.encode_images(parts, images())
    torch.testing.assert_close(latents.mean((0, 2, 3)), torch.zeros(16), atol=1e-3, rtol=0)
    torch.testing.assert_close(latents.std((0, 2, 3)), torch.ones(16), atol=1e-2, rtol=0)


@pytest.mark.parametrize("family", [SDXL, FLUX, WAN], ids=lambda family: family.card.name)
def test_the_demo_writes_settings_that_training_accepts(family: Family, tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    assert demo.main([family.card.name, "--folder", str(folder), "--make"]) == 0
    settings = from_values(script_for(family.card.name, "lora"), read_toml(folder / "demo.toml"))
    assert settings.problems() == []
    assert settings.remarks == []
    assert family.check(settings) == []


@pytest.mark.usefixtures("warm_python")
def test_the_demo_trains_by_its_own_settings_and_by_the_flags_that_are_added(tmp_path: Path) -> None:
    """Its settings compile."""
    run = RunFolder(tmp_path / "run")
    flags = ["--max_train_steps", "3", "--resolution", "64,64", "--compile_backend", "eager", "--output_name", "it"]
    assert demo.main(["flux", "--folder", str(tmp_path / "demo"), *flags, "--run_dir", str(run.path)]) == 0
    events = list(run.events())
    assert len({event["loss"] for event in events if event["kind"] == "step"}) == 3
    assert [event["graphs"] for event in events if event["kind"] == "compile"] == [2]
    assert len(load_file(tmp_path / "demo" / "output" / "it.safetensors")) > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fluxx"], "'fluxx' has no demo; choose sdxl or flux"),
        (["flux", "--make", "--seed", "3"], "--make does not train, so --seed would do nothing"),
    ],
)
def test_what_the_demo_cannot_do_is_reported(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        demo.main(words)
    assert leaving.value.code == 2
    assert told in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as leaving:
        demo.main(["--make", "--folder", str(tmp_path / "file" / "demo")])
    assert leaving.value.code == 2
    assert f"--folder: '{tmp_path / 'file' / 'demo'}' cannot be written (Not a directory)" in capsys.readouterr().err


def test_the_page_lists_a_run_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME", str(tmp_path / "state"))
    run = new_run_folder(tmp_path / "demo" / "output" / "runs", "demo")
    log = run.log()
    log("started", family="flux", method="lora", max_steps=1)
    log("finished", step=1)
    log.close()
    demo.add_to_list(run.path)
    assert [(row.folder, row.family, row.state) for row in RunStore().rows()] == [(run.path, "flux", "finished")]


@pytest.mark.skipif(os.name != "posix", reason="the list is in a different folder")
def test_a_list_that_cannot_be_written_does_not_fail_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    demo.add_to_list(tmp_path / "demo" / "output" / "runs" / "demo")
    assert "The run is not in the tab Runs: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("flux", "flux"),
        ("qwen", "qwen_image"),
        ("kontext", "flux_kontext"),
        ("edit", "qwen_image_edit"),
        ("wan", "wan"),
        ("sd3", None),
    ],
)
def test_a_part_of_its_name_chooses_a_family(name: str, family: str | None) -> None:
    assert demo.family_named(name) == family


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a process cannot become another one")
def test_the_gui_becomes_the_demo_with_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def replace_process(_: str, command: list[str], __: object) -> None:
        commands.append(command)
        raise SystemExit

    monkeypatch.setattr(os, "execve", replace_process)
    with pytest.raises(SystemExit):
        gui.main(["--demo", "kontext", "--make", "--folder", "x"])
    assert commands[0] == [sys.executable, "-m", "sd_scripts.demo", "kontext", "--make", "--folder", "x"]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a test cannot send Ctrl+C to a terminal's processes alone")
def test_ctrl_c_lets_what_runs_in_the_terminal_end_by_itself() -> None:
    saves = """
import sys, time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    sys.exit(5)
"""
    waits = "import os, sys; from sd_scripts.runs.process import run_in_terminal as run; "
    waits += "sys.exit(run([sys.executable, '-c', sys.argv[1]], os.environ))"
    with subprocess.Popen(
        [sys.executable, "-c", waits, saves],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored if the tests run in the background
    ) as started:
        assert started.stdout
        assert started.stdout.readline() == b"ready\n"
        os.killpg(started.pid, signal.SIGINT)
        _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (5, b"")
