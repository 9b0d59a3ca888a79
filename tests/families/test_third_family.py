"""A family in a folder of its own, which no line elsewhere knows: 5-D latents, one text encoder, a VAE of factor 4."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.run

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
THIRD = HERE / "third_family"


def python(*arguments: str, timeout: int = 600) -> str:
    """Return the output of a Python that finds the third family next to the others."""
    path = os.pathsep.join(map(str, (ROOT, THIRD)))
    environment = {**os.environ, "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a dozen runs, and the recognised kind of the model's file."""
    told = python(str(THIRD / "driver.py"), str(tmp_path_factory.mktemp("third")))
    return json.loads(told.partition("RESULT")[2])


@pytest.fixture
def runs(found: dict[str, Any]) -> dict[str, Any]:
    return found["runs"]


def test_lora_and_full_training_finish_and_are_saved(runs: dict[str, Any]) -> None:
    assert {name: run["status"] for name, run in runs.items()} == dict.fromkeys(runs, 0)
    assert all("short.safetensors" in run["files"] for run in runs.values())
    assert all(layer.startswith("lora_unet_blocks_") for layer in runs["lora"]["layers"])
    assert runs["full"]["layers"] == ["denoiser", "text_encoder1", "vae"]


def test_caches_on_disk_are_read_again(runs: dict[str, Any]) -> None:
    assert runs["again"]["losses"] == runs["lora"]["losses"]


def test_compiled_runs_train_identically(runs: dict[str, Any]) -> None:
    assert runs["compiled"]["graphs"] > 0
    assert runs["compiled"]["losses"] == pytest.approx(runs["again"]["losses"], rel=1e-5)


def test_the_family_chooses_the_compiled_parts_of_its_text_encoder_and_vae(runs: dict[str, Any]) -> None:
    assert runs["text"]["graphs"] > runs["compiled"]["graphs"]
    assert any(layer.startswith("lora_te_") for layer in runs["text"]["layers"])
    assert "compile_vae: this VAE has no repeated blocks, so it is not compiled" in runs["text"]["warnings"]


def test_a_resumed_run_ends_like_an_uninterrupted_one(runs: dict[str, Any]) -> None:
    assert runs["resumed"]["losses"] == runs["whole"]["losses"][2:]


def test_clips_and_images_are_trained_together_cached_and_resumed(runs: dict[str, Any]) -> None:
    assert runs["clips_cached"]["losses"] == pytest.approx(runs["clips"]["losses"], rel=1e-5)
    assert runs["clips_resumed"]["losses"] == runs["clips"]["losses"][2:]


def test_the_plan_counts_clips_and_their_parts(found: dict[str, Any]) -> None:
    """Two clips of 9 frames: nine parts of one frame each, one of five, and an image; each ten times."""
    assert found["plan"] == [
        ["Images", "3 (210 per epoch with repeats)"],
        ["Clips", "2 clips give 20 samples of 1 to 5 frames"],
        ["Buckets", "2: 64x64 (190), 64x64x5 (20)"],
    ]


def test_samples_are_clips(runs: dict[str, Any]) -> None:
    assert runs["lora"]["samples"] == [[".mp4", "clip", 3, 12.0]]


def test_clips_are_generated_and_compared(found: dict[str, Any]) -> None:
    assert found["generated"] == {"suffix": ".mp4", "frames": 5, "fps": 8.0, "preview": True}
    assert found["compared"] == [".mp4", ".mp4", "grid.mp4"]


def test_a_saved_model_is_trained_on(runs: dict[str, Any]) -> None:
    assert len(runs["goes_on"]["losses"]) == 1


def test_its_file_is_recognised(found: dict[str, Any]) -> None:
    assert found["variant"] == "Reel checkpoint"


PAGE = """
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import gui
from kohya_gui.app import build
from kohya_gui.lora_gui import LORA
from kohya_gui.finetune_gui import FINETUNE
from kohya_gui.form.configuration import families_of
from kohya_gui.form.prompt_editor import inserts, meaning
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore

panels = [[panel.title for panel in tab.panels] for tab in (LORA, FINETUNE)]
config = build(RunQueue(RunStore(Path(sys.argv[1])))).config
ids = [part["props"].get("elem_id") for part in config["components"]]
printed = StringIO()
with redirect_stdout(printed):
    status = gui.main(["--config", sys.argv[2], "--print-command"])
assert "torch" not in sys.modules
print(json.dumps([panels, [i for i in ids if i and "reel" in i], families_of("lora"), status, printed.getvalue()]))
print("EDITOR" + meaning("a cat --f 4 --fps 12 --i x.png", Path("prompts.txt"), "reel", ""))
print("OFFERED" + inserts("reel"))
"""


def test_the_page_has_its_panel_and_its_command(tmp_path: Path) -> None:
    settings, model = tmp_path / "reel.toml", tmp_path / "m.safetensors"
    settings.write_text(
        'family = "reel"\nmethod = "lora"\nresolution = "64"\nlearning_rate = 1e-3\nreel_text_scale = 0.5\n'
        f'pretrained_model_name_or_path = "{model}"\ntrain_data_dir = "{tmp_path}"\noutput_dir = "{tmp_path}"\n'
    )
    told = python("-c", PAGE, str(tmp_path / "runs.sqlite"), str(settings))
    told, _, editor = told.partition("EDITOR")
    panels, ids, families, status, command = json.loads(told)
    assert all("Reel" in titles for titles in panels)
    assert {"lora-reel_text_scale", "lora-panel-reel", "finetune-panel-reel"} <= set(ids)
    assert families[-1] == "reel"
    assert not status
    assert str(THIRD / "sd_scripts" / "reel_train_network.py") in command
    assert "--reel_text_scale 0.5" in command
    assert "3 frames, 0.2 s at 12 fps" in editor
    assert "4 frames become 3: clips have a multiple of 2 frames, plus one" in editor
    assert "--i has no effect for Reel" in editor
    assert 'data-insert="f"' in editor.partition("OFFERED")[2]
    assert 'data-insert="ei"' not in editor
