"""Keys that nobody reads, and all other remarks: a plan, a refusal and a run report the same ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from sd_scripts import flux_train_network, sdxl_generate, sdxl_train, sdxl_train_network
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.settings.reading import MOST_UNKNOWN, from_values
from tests.settings.test_preflight import SDXL_KEYS, model
from tests.support.scripts import SDXL_LORA
from tests.support.training import images, train

TABLES = """
save_every_n_epoch = 1
[saving_args.args]
output_name = "cat"
[bucket_args]
bucket_no_upscale = true
[bucket_args.dataset_args]
enable_bucket = true
[[subsets]]
image_dir = "cats"
[[subsets]]
image_dir = "dogs"
"""
NAMED = ("save_every_n_epoch", "[saving_args.args]", "[bucket_args.dataset_args]", "[[subsets]]")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file of settings that could start, but for keys that nobody reads."""
    values = {
        "pretrained_model_name_or_path": str(model(tmp_path / "sdxl.safetensors", *SDXL_KEYS)),
        "train_data_dir": str(images(tmp_path / "images")),
        "output_dir": str(tmp_path / "out"),
        "optimizer_type": "DAdaptLion",
        "learning_rate": 1e-3,
        "huggingface_path_in_repo": "cats",
        "resolution": "64",
        "min_bucket_reso": 64,
    }
    write_toml(tmp_path / "run.toml", values)
    with (tmp_path / "run.toml").open("a") as file:
        file.write(TABLES)
    return tmp_path / "run.toml"


def named(lines: list[str]) -> list[str]:
    return [line.removeprefix("Note: ").partition(": ")[0] for line in lines]


@pytest.mark.parametrize("script", [sdxl_train_network, sdxl_train])
def test_a_plan_names_all_keys_a_run_ignores(script: Any, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--config_file", str(config), "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {*NAMED, "learning_rate", "huggingface_path_in_repo"} <= {*named(plan["warnings"])}
    assert script.main(["--config_file", str(config), "--plan"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert all(f"Note: {warning}" in shown for warning in plan["warnings"])


@pytest.mark.parametrize(
    "flags", [["--train_data_dir=gone"], ["--train_data_dir=gone", "--plan"], ["--pretrained_model_name_or_path=x.pt"]]
)
def test_a_refusal_names_them_after_its_problems(
    flags: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sdxl_train_network.main(["--config_file", str(config), *flags]) == 2
    first, *notes = capsys.readouterr().err.splitlines()
    assert first.partition(":")[0] == flags[0].removeprefix("--").partition("=")[0]
    assert {*NAMED, "learning_rate"} <= {*named(notes)}


def test_a_misspelt_folder_is_named_where_it_is_missing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("train_data_dir", "train_data_dirs"))
    assert flux_train_network.main(["--config_file", str(config)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert "Note: train_data_dirs: unknown option. Did you mean train_data_dir?" in told
    assert any(line.startswith("train_data_dir: not set") for line in told)


def test_generating_refuses_with_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images.toml").write_text("prompts = 'a cat'\n[lora.args]\nstrength = 1\n")
    assert sdxl_generate.main(["--config_file", str(tmp_path / "images.toml")]) == 2
    assert {"prompts", "[lora.args]"} <= {*named(capsys.readouterr().err.splitlines())}


@pytest.mark.run
def test_a_run_reports_the_same_as_its_plan(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("a cat --zz 3 --w 64 --h 64 --s 1\n")
    values = {
        **{"optimizer_type": "Adafactor", "learning_rate": 1e-4, "lr_schedular": "cosine"},
        **{"sample_prompts": tmp_path / "prompts.txt", "network_args.args": {"dim": 2}},
    }
    run = train(any_miniature, tmp_path / "out", **values)
    warned = [event["text"] for event in run.events_of("warning")]
    capsys.readouterr()
    assert flux_train_network.main(["--config_file", str(tmp_path / "out.toml"), "--plan", "--json"]) == 0
    assert run.status == 0
    assert warned == json.loads(capsys.readouterr().out)["warnings"][: len(warned)]
    assert {"lr_schedular", "[network_args.args]", "sample_prompts"} <= {*named(warned)}


def test_unknown_tables_survive_being_written_again(config: Path) -> None:
    first = from_values(SDXL_LORA, read_toml(config))
    write_toml(config, first.saved())
    again = from_values(SDXL_LORA, read_toml(config))
    assert again.unknown == first.unknown
    assert first.unknown["saving_args.args"] == {"output_name": "cat"}
    assert {*map(str, again.remarks)} == {*map(str, first.remarks)}


def test_the_first_of_many_unknown_keys_are_named_and_the_rest_counted() -> None:
    remarks = from_values(SDXL_LORA, {"learning_rate": 1e-4, **{f"netwrok_dim{n}": n for n in range(5_000)}}).remarks
    assert len(remarks) == MOST_UNKNOWN
    assert str(remarks[0]) == "netwrok_dim0: unknown option. Did you mean network_dim?"
    assert str(remarks[-1]).endswith(f"(and {5_000 - MOST_UNKNOWN:,} more unknown options)")
