"""Whole runs of Chroma: by sd-scripts' command lines, swapped in fp8, in full, and images with the result."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from sd_scripts import chroma_generate
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.chroma.keys import APPROXIMATOR
from sd_scripts.formats.toml_files import read_toml
from tests.support.data import make_folder
from tests.support.training import Run, equal, images, run, train, train_whole

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}


def flags_of(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def of_sd_scripts(chroma_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the command of sd-scripts' documentation. Do not write to it."""
    output = tmp_path_factory.mktemp("sd_scripts") / "out"
    values = {
        **chroma_miniature.files,
        **{"train_data_dir": images(output.parent / "images"), "output_dir": output, "output_name": "short"},
        **{"model_type": "chroma", "guidance_scale": 0.0, "timestep_sampling": "sigmoid"},
        **{"model_prediction_type": "raw", "resolution": "64,64", "network_module": "networks.lora_flux"},
        **{"network_dim": 2, "learning_rate": 1e-2, "max_train_steps": 2, "seed": 1, "run_dir": output / "run"},
        **{"t5xxl_max_token_length": 16, "max_data_loader_n_workers": 0},
    }
    return run([*flags_of(values), "--apply_t5_attn_mask"], output, "flux")


def test_the_script_of_flux_trains_chroma_for_commands_of_sd_scripts(of_sd_scripts: Run) -> None:
    assert of_sd_scripts.status == 0
    assert of_sd_scripts.steps == [1, 2]
    assert read_toml(of_sd_scripts.folder.config)["family"] == "chroma"
    with safe_open(of_sd_scripts.output / "short.safetensors", "pt") as file:
        known = file.metadata()
        names = {key.partition(".")[0] for key in file.keys()}  # noqa: SIM118
    expected = {
        **{"ss_base_model_version": "chroma", "ss_model_type": "chroma", "ss_apply_t5_attn_mask": "True"},
        **{"ss_guidance_scale": "0.0", "ss_timestep_sampling": "sigmoid", "modelspec.architecture": "chroma/lora"},
    }
    assert {key: known.get(key) for key in expected} == expected
    assert len(names) == 3 * 8 + 4 * 2, "without network_train_unet_only, T5 is trained with train_t5xxl alone"


def test_generating_uses_the_lora(of_sd_scripts: Run, chroma_miniature: Any, tmp_path: Path) -> None:
    values = {
        **chroma_miniature.files,
        **{"prompt": "a red circle", "width": 64, "height": 64, "steps": 2, "dtype": "fp32", "image_seed": 7},
        "t5xxl_max_token_length": 16,
    }
    lora = {"lora_weights": of_sd_scripts.output / "short.safetensors"}
    for name, more in {"base": {}, "lora": lora}.items():
        assert chroma_generate.main(flags_of({**values, **more, "image_dir": tmp_path / name})) == 0
    base, changed = (next((tmp_path / name).iterdir()).read_bytes() for name in ("base", "lora"))
    assert base != changed


def test_swapped_fp8_blocks_train_like_resident_ones(chroma_miniature: Any, tmp_path: Path) -> None:
    resident, swapped = (
        train(chroma_miniature, tmp_path / str(number), **BF16, fp8_base=True, gradient_checkpointing=True, **more)
        for number, more in enumerate(({}, {"blocks_to_swap": 2}))
    )
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())


def test_captions_of_all_lengths_share_the_graphs(chroma_miniature: Any, tmp_path: Path) -> None:
    root = tmp_path / "images"
    for number, image in enumerate(make_folder(root / "1_noise", [(64, 64)] * 3)):
        image.with_suffix(".txt").write_text("a red circle " * (1 + number))
    compiled = {"compile": True, "compile_backend": "eager", "train_data_dir": root}
    done = train(chroma_miniature, tmp_path / "out", cache_text_encoder_outputs_to_disk=True, **compiled)
    assert [event["graphs"] for event in done.events_of("compile")] == [2]
    kept = [safetensors.torch.load_file(file) for file in sorted((root / "1_noise").glob("*_chroma_te.safetensors"))]
    assert len({len(each["t5_out"]) for each in kept}) == 3
    assert all(each["t5_attn_mask"].all() for each in kept), "caches hold no padding"


@pytest.mark.parametrize("way", [{}, {"optimizer_type": "Adafactor", "fused_backward_pass": True}], ids=["", "fused"])
def test_full_training_keeps_the_approximator(way: dict[str, Any], chroma_miniature: Any, tmp_path: Path) -> None:
    trained = train_whole(chroma_miniature, tmp_path / "out", **way)
    assert trained.status == 0
    saved = trained.tensors()
    before = safetensors.torch.load_file(chroma_miniature.checkpoint)
    assert saved.keys() == before.keys()
    same = {name for name in before if torch.equal(saved[name], before[name])}
    assert {name for name in before if name.startswith(APPROXIMATOR)} <= same
    assert len(before) - len(same) > 0.9 * sum(not name.startswith(APPROXIMATOR) for name in before)


def test_its_settings_open_in_the_page_as_chroma(tmp_path: Path) -> None:
    from kohya_gui.form.configuration import family_of
    from kohya_gui.lora_gui import LORA as TAB

    values = 'model_type = "chroma"\nt5xxl = "/t5"\nae = "/ae"\nguidance_scale = 0.0\nlearning_rate = 1e-4\n'
    (tmp_path / "sd_scripts.toml").write_text(values)
    assert TAB.open_configuration(tmp_path / "sd_scripts.toml", "sdxl").family == "chroma"
    assert family_of({"pretrained_model_name_or_path": card_of("chroma").hub.model}, "lora") == "chroma"
