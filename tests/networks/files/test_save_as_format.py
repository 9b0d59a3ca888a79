"""save_as_format: a trained LoRA under the key names of sd-scripts, of diffusers, or both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sd_scripts.families.common.family import family_of
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.runs.outputs import existing_outputs
from sd_scripts.settings import preflight
from sd_scripts.tools.lora.files import full_size_modules
from sd_scripts.training.methods.lora import Lora
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.networks.lora_sdxl import WITH_CONV, base, context, losses, prepare, save, say_something
from tests.support.networks.lora_tools import deltas
from tests.support.training import train

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def test_diffusers_loads_the_file_and_a_new_run_starts_from_it(miniature: Any, tmp_path: Path) -> None:
    prepared = prepare(miniature.checkpoint, tmp_path, network_args=WITH_CONV, save_as_format="diffusers")
    say_something(prepared)
    file = save(prepared, tmp_path / "trained.safetensors")
    assert {key.rpartition(".lora_")[2] for key in load_file(file)} == {"A.weight", "B.weight"}
    theirs = base(miniature.checkpoint)
    pipeline_of(theirs).load_lora_weights(file)
    again = prepare(miniature.checkpoint, tmp_path, network_weights=str(file), network_args=WITH_CONV)
    with torch.no_grad():
        expected = losses(prepared.components)
        torch.testing.assert_close(losses(theirs), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(losses(again.components), expected, rtol=1e-4, atol=1e-5)


def test_an_external_network_ignores_it_with_a_warning(miniature: Any, tmp_path: Path) -> None:
    settings = context(
        miniature.checkpoint, tmp_path, network_module="tests.support.networks.foreign_network", save_as_format="both"
    ).settings
    assert Lora().check(settings[NetworkOptions]) == []
    assert "save_as_format: has no effect on an external network_module" in preflight.remarks(settings)


@pytest.mark.run
def test_both_files_are_written_and_removed_together(flux_miniature: Any, tmp_path: Path) -> None:
    options = {
        "save_as_format": "both",
        "use_ema": True,
        "save_every_n_steps": 1,
        "save_last_n_steps": 1,
        "max_train_steps": 4,
    }
    run = train(flux_miniature, tmp_path / "out", **options)
    assert run.status == 0
    names = ("short", "short-step00000002", "short-step00000003")
    suffixes = ("", "-diffusers", "-ema", "-ema-diffusers")
    assert set(run.files) == {f"{name}{suffix}.safetensors" for name in names for suffix in suffixes}
    modules = full_size_modules(family_of("flux"))
    for suffix in ("", "-ema"):
        ours = deltas(run.output / f"short{suffix}.safetensors")
        read = read_lora("x", run.output / f"short{suffix}-diffusers.safetensors", modules).tensors
        save_file({key: tensor.contiguous() for key, tensor in read.items()}, tmp_path / "read.safetensors")
        theirs = deltas(tmp_path / "read.safetensors")
        assert theirs.keys() == ours.keys()
        assert all(torch.allclose(theirs[name], ours[name], rtol=1e-5, atol=1e-7) for name in ours)
    found = existing_outputs({"output_dir": str(run.output), "output_name": "short"})
    assert {path.name for path in found} == set(run.files)
