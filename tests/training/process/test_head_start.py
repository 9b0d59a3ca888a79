"""Work that is started before PyTorch is imported."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.families.cards.registry import card_of
from sd_scripts.settings.settings import Settings
from sd_scripts.training.process import head_start
from tests.support.miniatures import sdxl_settings
from tests.support.scripts import FLUX_LORA
from tests.support.suite.fresh import found_by_processes


def test_the_prefetched_files_are_the_ones_the_run_reads(tmp_path: Path) -> None:
    options = ("pretrained_model_name_or_path", "clip_l", "t5xxl", "ae")
    files = {name: tmp_path / f"{name}.safetensors" for name in options}
    for file in files.values():
        file.write_bytes(b"x")
    values: dict[str, Any] = {name: str(file) for name, file in files.items()}
    wanted = {
        "all": (values, {*files.values()}),
        "captions on disk": (
            {**values, "cache_text_encoder_outputs_to_disk": True},
            {files["pretrained_model_name_or_path"], files["ae"]},
        ),
        "no such file": ({**values, "ae": str(tmp_path / "none")}, {*files.values()} - {files["ae"]}),
        "a folder": ({**values, "ae": str(tmp_path)}, {*files.values()} - {files["ae"]}),
    }
    found = {
        case: {*head_start.model_files(Settings(FLUX_LORA, given), card_of("flux"))}
        for case, (given, _) in wanted.items()
    }
    assert found == {case: files for case, (_, files) in wanted.items()}


def test_a_checkpoint_is_read_once(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"x")
    assert head_start.model_files(sdxl_settings(model), card_of("sdxl")) == [model]


def test_a_missing_driver_and_a_vanished_file_are_not_reported_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1000000")  # no such GPU, where there is a driver
    assert head_start.make_cuda_context() is None
    head_start.read_ahead([tmp_path / "none.safetensors"])


def test_the_head_start_needs_no_torch() -> None:
    code = "import sys, sd_scripts.training.process.head_start; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=found_by_processes()).returncode == 0
