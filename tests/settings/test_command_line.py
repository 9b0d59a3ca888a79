"""The flags of a training script: precedence, lenience, and mistakes reported in one sentence with exit 2."""

import argparse

import pytest

from sd_scripts.formats.toml_files import read_toml
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.catalog import flag_groups
from sd_scripts.settings.command_line import add_arguments, parser, read_command_line
from tests.support.scripts import SDXL_LORA

START = "--pretrained_model_name_or_path m --train_data_dir p --output_dir o --resolution 1024 --learning_rate 1e-4"


def read(line: str):
    settings, problems = read_command_line(SDXL_LORA, [*START.split(), *line.split()])
    assert problems == []
    assert settings.problems() == []
    return settings


def mistakes(line: str, start: str = START) -> list[str]:
    settings, problems = read_command_line(SDXL_LORA, [*start.split(), *line.split()])
    return [str(problem) for problem in (*problems, *settings.problems())]


def refused(capsys, line: str) -> list[str]:
    """Return the message of a command line with which a script exits immediately."""
    with pytest.raises(SystemExit) as leaving:
        read_command_line(SDXL_LORA, [*START.split(), *line.split()])
    assert leaving.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_a_flag_overrides_the_file_and_the_file_the_default(tmp_path):
    (tmp_path / "run.toml").write_text("network_dim = 8\nnetwork_alpha = 4\n", encoding="utf-8")
    network = read(f"--config_file {tmp_path / 'run'} --network_dim 16")[NetworkOptions]
    assert (network.network_dim, network.network_alpha, network.network_dropout) == (16, 4.0, None)


def test_a_bool_of_the_file_can_be_undone(tmp_path):
    (tmp_path / "run.toml").write_text("compile = true\n", encoding="utf-8")
    assert read(f"--config_file {tmp_path / 'run.toml'}")[CompileOptions].compile
    assert not read(f"--config_file {tmp_path / 'run.toml'} --no-compile")[CompileOptions].compile


def test_lists_take_several_words_and_negative_numbers_are_values():
    opened = read("--network_args conv_dim=4 conv_alpha=1 --base_weights a b --base_weights_multiplier -1 -.5 --seed=7")
    assert opened[NetworkOptions].network_args == ["conv_dim=4", "conv_alpha=1"]
    assert opened[NetworkOptions].base_weights_multiplier == [-1.0, -0.5]
    assert opened[TrainingOptions].seed == 7


def test_a_flag_is_written_out():
    assert mistakes("--mixed bf16") == ["--mixed: unknown option"]


def test_mistakes_do_not_hide_each_other():
    told = mistakes(
        "my --netwrok_dim 8 --mixed_precision banana --lr 3 --network_dim --max_train_steps 0 --full_bf16 "
        "--cache_latents --color_aug -x",
        start="--pretrained_model_name_or_path m --train_data_dir p",
    )
    assert told == [
        "my: does not follow an option; put text with spaces in quotation marks",
        "--netwrok_dim: unknown option. Did you mean --network_dim?",
        "--lr: unknown option",
        "network_dim: needs a value",
        "-x: unknown option",
        "max_train_steps: 0 is outside 1..10000000",
        "mixed_precision: 'banana' is not one of no, fp16, bf16",
        "output_dir: not set; choose a folder for the results",
        "resolution: not set; 1024 suits current models",
        "color_aug: changes the image each time, so latents cannot be cached; turn off color_aug or cache_latents",
    ]


def test_old_flags_are_understood():
    opened = read("--use_8bit_adam --max_token_length 75 --caption_extention .txt --dynamo_backend no")
    changed = {"optimizer_type": "AdamW8bit", "caption_extension": ".txt"}
    assert changed.items() <= opened.changed().items()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--netwrok_dim 8", "--netwrok_dim: unknown option. Did you mean --network_dim?"),
        ("--confg_file a", "--confg_file: unknown option. Did you mean --config_file?"),
        ("--zzzz", "--zzzz: unknown option"),
        ("--learning_rate fast", "learning_rate: 'fast' is not a number"),
        ("--max_train_steps 1.5", "max_train_steps: 1.5 is not a whole number"),
        ("--max_train_steps 0", "max_train_steps: 0 is outside 1..10000000"),
        ("--mixed_precision banana", "mixed_precision: 'banana' is not one of no, fp16, bf16"),
        ("--max_token_length -1", "max_token_length: -1 is not one of 150, 225"),
        ("--network_dim", "network_dim: needs a value"),
        ("my cats", "my: does not follow an option; put text with spaces in quotation marks"),
        ("--num_processes 2", "--num_processes: unknown option"),
    ],
)
def test_a_mistake_is_one_sentence(line, told):
    assert mistakes(line) == [told]


def test_a_settings_file_that_is_missing_ends_the_script(capsys):
    (told,) = refused(capsys, "--config_file nowhere/at_all")
    assert told.replace("\\", "/") == "config_file: file not found: 'nowhere/at_all.toml'"


def test_the_file_is_checked_as_the_flags_are(tmp_path):
    (tmp_path / "run.toml").write_text('mixed_precision = "banana"\nmax_train_steps = "many"\n', encoding="utf-8")
    assert mistakes(f"--config_file {tmp_path / 'run.toml'}") == [
        "max_train_steps: 'many' is not a whole number",
        "mixed_precision: 'banana' is not one of no, fp16, bf16",
    ]


def test_everything_missing_is_reported_together():
    assert len(mistakes("", start="")) == 4


def test_output_config_writes_the_chosen_settings_and_exits(tmp_path):
    file = tmp_path / "run.toml"
    with pytest.raises(SystemExit) as leaving:
        read(f"--config_file {file} --output_config --network_dim 8 --wandb_api_key secret --compile_dynamic auto")
    assert leaving.value.code == 0
    assert read_toml(file) == {
        **SDXL_LORA.identity,
        "learning_rate": 1e-4,
        "network_dim": 8,
        "output_dir": "o",
        "pretrained_model_name_or_path": "m",
        "resolution": "1024",
        "train_data_dir": "p",
    }


def test_output_config_never_overwrites(capsys, tmp_path):
    (tmp_path / "run.toml").write_text("network_dim = 4\n", encoding="utf-8")
    (told,) = refused(capsys, f"--config_file {tmp_path / 'run'} --output_config")
    assert "is not overwritten" in told
    assert (tmp_path / "run.toml").read_text(encoding="utf-8") == "network_dim = 4\n"


def test_output_config_needs_a_file_to_write(capsys):
    assert refused(capsys, "--output_config") == ["output_config: needs config_file, the file to write"]


def test_output_config_does_not_need_a_complete_configuration(tmp_path):
    with pytest.raises(SystemExit) as leaving:
        read_command_line(SDXL_LORA, ["--config_file", str(tmp_path / "a"), "--output_config", "--compile"])
    assert leaving.value.code == 0
    assert read_toml(tmp_path / "a.toml") == {**SDXL_LORA.identity, "compile": True}


def test_a_foreign_parser_gets_typed_flags_with_their_defaults():
    theirs = argparse.ArgumentParser()
    add_arguments(theirs, CompileOptions)
    args = theirs.parse_args(["--compile", "--compile_cache_size_limit", "32"])
    assert (args.compile, args.compile_cache_size_limit, args.compile_dynamic) == (True, 32, "auto")
    with pytest.raises(SystemExit):
        theirs.parse_args(["--compile_cache_size_limit", "9999"])


def test_help_shows_every_flag_in_its_section():
    text = parser(SDXL_LORA).format_help()
    assert all(group.title in text for group in flag_groups(SDXL_LORA))
    assert "--compile_mode {default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs}" in text
