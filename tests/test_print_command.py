"""The training command of a file, printed for scripts."""

import json
import shlex
import sys
from pathlib import Path

from kohya_gui.print_command import print_command
from sd_scripts.options.toml_files import read_toml, write_toml

START = {
    "pretrained_model_name_or_path": "sdxl.safetensors",
    "train_data_dir": "pictures",
    "output_name": "cat",
    "resolution": "1024",
    "learning_rate": 1e-4,
    "compile": True,
    "compile_mode": "reduce-overhead",
}


def test_a_command_to_paste_then_the_file_that_it_reads(tmp_path, capsys):
    results = tmp_path / "my results"
    write_toml(tmp_path / "in.toml", {**START, "output_dir": str(results)})
    assert print_command("lora", tmp_path / "in.toml") == 0
    line, toml = capsys.readouterr().out.splitlines()
    assert Path(toml) == results / "cat-command.toml"
    assert read_toml(Path(toml)) == {**START, "output_dir": str(results)}
    if sys.platform != "win32":
        argv = shlex.split(line)
        assert argv[argv.index("--config_file") + 1] == toml
        assert argv[-3:] == ["--compile", "--compile_mode", "reduce-overhead"]


def test_a_file_of_kohya_is_read_too_and_what_is_lost_is_told_aside(tmp_path, capsys):
    (tmp_path / "in.json").write_text(
        json.dumps({**START, "sdxl": True, "output_dir": str(tmp_path), "train_inpainting": True}), encoding="utf-8"
    )
    assert print_command("lora", tmp_path / "in.json") == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert "train_inpainting: inpainting models are not trained here" in printed.err


def test_a_file_for_flux_is_printed_with_its_own_script(tmp_path, capsys):
    parts = {"clip_l": "clip_l.safetensors", "t5xxl": "t5xxl.safetensors", "ae": "ae.safetensors"}
    flux = {**START, **parts, "output_dir": str(tmp_path), "timestep_sampling": "shift"}
    write_toml(tmp_path / "in.toml", flux)
    assert print_command("lora", tmp_path / "in.toml") == 0
    line, toml = capsys.readouterr().out.splitlines()
    assert "flux_train_network.py" in line
    assert read_toml(Path(toml)) == flux


def test_a_file_for_a_model_that_is_not_trained_is_told_before_anything_else(tmp_path, capsys):
    (tmp_path / "in.json").write_text(json.dumps({**START, "bucket_reso_steps": 1, "v_parameterization": True}))
    assert print_command("lora", tmp_path / "in.json") == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("in.json: these settings are for Stable Diffusion 1.5, which is not trained here. Open the")


def test_problems_are_told_one_a_line_with_exit_2(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {"resolution": "1024"})
    assert print_command("lora", tmp_path / "in.toml") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.split(":")[0] for line in printed.err.splitlines()] == [
        "pretrained_model_name_or_path",
        "train_data_dir",
        "output_dir",
    ]


def test_a_file_that_is_not_there_is_told(tmp_path, capsys):
    assert print_command("lora", tmp_path / "none.toml") == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_file_tells_its_tab_where_none_is_named(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {**START, "output_dir": str(tmp_path), "fused_backward_pass": True})
    assert print_command(None, tmp_path / "in.toml") == 0
    assert "sdxl_train.py" in capsys.readouterr().out
    assert print_command("lora", tmp_path / "in.toml") == 2
    assert capsys.readouterr().err == "in.toml is a configuration for DreamBooth; open it in the tab DreamBooth\n"


def test_a_file_without_a_word_of_its_method_is_for_the_tab_that_is_named(tmp_path, capsys):
    write_toml(tmp_path / "in.toml", {**START, "output_dir": str(tmp_path)})
    for tab, script in (
        (None, "sdxl_train_network.py"),
        ("dreambooth", "sdxl_train.py"),
        ("finetune", "sdxl_train.py"),
    ):
        assert print_command(tab, tmp_path / "in.toml") == 0
        assert script in capsys.readouterr().out
