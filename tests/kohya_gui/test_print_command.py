"""The training command of a file, printed for scripts."""

import json
import shlex
import sys

import pytest

from kohya_gui.print_command import print_command
from sd_scripts.formats.toml_files import write_toml
from tests.support.gui import settings_in
from tests.support.scripts import FLUX_LORA

START = {
    "pretrained_model_name_or_path": "sdxl.safetensors",
    "train_data_dir": "images",
    "output_name": "cat",
    "resolution": "1024",
    "learning_rate": 1e-4,
    "compile": True,
    "compile_mode": "reduce-overhead",
}


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_one_line_to_paste_contains_all_settings_and_nothing_is_written(tmp_path, capsys):
    results = tmp_path / "my $(touch INJ) results"
    values = {
        **START,
        "output_dir": str(results),
        "network_args": ["conv_dim=8", "conv_alpha=4"],
        "text_encoder_lr": [5e-5, 0.0],
        "caption_prefix": "-- it's a",
        "persistent_data_loader_workers": True,
        "compile_options": ["shape_padding=True", "max_autotune_gemm_backends='ATEN,TRITON'"],
    }
    write_toml(tmp_path / "in.toml", values)
    assert print_command("lora", tmp_path / "in.toml") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert settings_in(line) == values
    of_compile = ["--compile", "--compile_mode", "reduce-overhead", "--compile_options", *values["compile_options"]]
    assert shlex.split(line)[-6:] == of_compile
    assert [path.name for path in tmp_path.iterdir()] == ["in.toml"]


def test_a_file_of_kohya_is_read_too_and_lost_keys_go_to_stderr(tmp_path, capsys):
    (tmp_path / "in.json").write_text(
        json.dumps(
            {
                **START,
                "sdxl": True,
                "output_dir": str(tmp_path),
                "train_inpainting": True,
                "sample_prompts": "a cat",
            }
        ),
        encoding="utf-8",
    )
    assert print_command("lora", tmp_path / "in.json") == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert "train_inpainting: inpainting models are not supported" in printed.err
    assert "sample_prompts: the prompts are in no file yet" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_a_file_for_flux_is_printed_with_its_own_script(tmp_path, capsys):
    parts = {"clip_l": "clip_l.safetensors", "t5xxl": "t5xxl.safetensors", "ae": "ae.safetensors"}
    flux = {**START, **parts, "output_dir": str(tmp_path), "timestep_sampling": "shift"}
    write_toml(tmp_path / "in.toml", flux)
    assert print_command("lora", tmp_path / "in.toml") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "flux_train_network.py" in line
    assert sys.platform == "win32" or settings_in(line, FLUX_LORA) == flux


def test_a_file_for_an_unsupported_model_is_refused_first(tmp_path, capsys):
    (tmp_path / "in.json").write_text(json.dumps({**START, "bucket_reso_steps": 1, "v_parameterization": True}))
    assert print_command("lora", tmp_path / "in.json") == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("in.json: these settings are for Stable Diffusion 1.5, which is not supported. Open the")


def test_problems_are_printed_one_a_line_with_exit_code_2(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {"resolution": "1024"})
    assert print_command("lora", tmp_path / "in.toml") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [
        "pretrained_model_name_or_path",
        "train_data_dir",
        "output_dir",
    ]


def test_a_missing_file_is_reported(tmp_path, capsys):
    assert print_command("lora", tmp_path / "none.toml") == 2
    assert "file not found" in capsys.readouterr().err


def test_the_tab_is_detected_from_the_file_where_none_is_named(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {**START, "output_dir": str(tmp_path), "fused_backward_pass": True})
    assert print_command(None, tmp_path / "in.toml") == 0
    assert "sdxl_train.py" in capsys.readouterr().out
    assert print_command("lora", tmp_path / "in.toml") == 2
    assert capsys.readouterr().err == "in.toml is a DreamBooth configuration; open it in the DreamBooth tab\n"


def test_a_file_that_does_not_show_its_method_is_for_the_named_tab(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {**START, "output_dir": str(tmp_path)})
    for tab, script in (
        (None, "sdxl_train_network.py"),
        ("dreambooth", "sdxl_train.py"),
        ("finetune", "sdxl_train.py"),
    ):
        assert print_command(tab, tmp_path / "in.toml") == 0
        assert script in capsys.readouterr().out
