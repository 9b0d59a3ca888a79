"""Keys and tokens are handed to a run out of sight: they stand in no file, event, console line, command or answer."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.form.configuration import open_file, prepare
from kohya_gui.lora_gui import LORA
from kohya_gui.runs.live_routes import routes
from kohya_gui.runs.shell_line import shell_line
from kohya_gui.tabs import TABS
from sd_scripts.formats.secrets import HANDED, HidingFormatter
from sd_scripts.options.generating.publish import PublishOptions
from sd_scripts.runs.events import EventLog, EventTail
from sd_scripts.runs.exit_codes import MISTAKE
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import ENDED
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from sd_scripts.training.launch import main
from tests.support.runs import wait_for
from tests.support.scripts import SDXL_LORA
from tests.support.training import images, settings_for

pytestmark = pytest.mark.run

SECRETS = {"wandb_api_key": "0123456789abcdef-the-key-of-wandb", "huggingface_token": "hf_TheTokenOfHuggingFace"}
LONGEST = 600.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[RunQueue]:
    queue = RunQueue(RunStore(tmp_path / "state" / "runs.sqlite"))
    queue.open()
    yield queue
    for row in queue.store.living():
        queue.end_now(row.id)
    queue.close()


def told_in(data: bytes) -> list[str]:
    return [name for name, word in SECRETS.items() if word.encode() in data]


def assert_no_file_tells(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [(path, told) for path in files if (told := told_in(path.read_bytes()))]
    return len(files)


def test_every_secret_of_the_options_is_tried_here():
    secrets = {o.name: o.secret for s in SCRIPTS for g in s.groups for o in each_option(g) if o.secret}
    assert secrets.keys() == SECRETS.keys()
    assert {*secrets.values(), *(o.secret for o in each_option(PublishOptions) if o.secret)} <= {*HANDED}


@pytest.mark.usefixtures("warm_python")
def test_a_run_with_keys_shows_them_nowhere(any_miniature, tmp_path, queue):
    values: dict[str, Any] = {
        **{name: str(v) if isinstance(v, Path) else v for name, v in settings_for(any_miniature).items()},
        **SECRETS,
        "train_data_dir": str(images(tmp_path / "images")),
        "output_dir": str(tmp_path / "out"),
        "logging_dir": str(tmp_path / "out" / "log"),
        "log_with": "tensorboard",
        "log_config": True,
        "save_state": True,
        "console_log_level": "DEBUG",
        "max_train_steps": 1,
    }
    _, id = LORA.train_model(queue, values, any_miniature.family, {})
    assert id is not None
    row = wait_for(lambda: (row := queue.store.row(id)) and row.state in ENDED and row, LONGEST)
    assert row.state == "finished", row.error
    queue.store.paused = True
    _, waiting = LORA.train_model(queue, {**values, "seed": 2}, any_miniature.family, {})
    assert assert_no_file_tells(tmp_path) > 10  # the list of runs is among them

    client = TestClient(Starlette(routes=routes(queue)))
    of_run = ("", "/curves", "/console", "/file/0")
    for path in ("board", f"compare?ids={id},{waiting}", f"run/{waiting}", *(f"run/{id}{each}" for each in of_run)):
        answer = client.get(f"/studio/{path}")
        assert answer.status_code == 200, path
        assert told_in(answer.content) == [], path


def test_neither_a_printed_command_nor_its_file_has_keys(tmp_path):
    values = {**SECRETS, "output_dir": str(tmp_path), "pretrained_model_name_or_path": "org/model"}
    values |= {"train_data_dir": str(images(tmp_path / "images")), "max_train_steps": 1, "resolution": "64"}
    prepared = prepare(values, SDXL_LORA, {}, print_only=True)
    assert told_in(shell_line(prepared.command.argv).encode()) == []
    assert assert_no_file_tells(tmp_path) > 0
    assert prepared.command.environment == {
        "WANDB_API_KEY": SECRETS["wandb_api_key"],
        "HF_TOKEN": SECRETS["huggingface_token"],
    }


def test_a_saved_configuration_has_no_keys(tmp_path):
    LORA.save_configuration(tmp_path / "a.toml", {**SECRETS, "network_dim": 4}, "sdxl", {})
    assert_no_file_tells(tmp_path)
    assert open_file(tmp_path / "a.toml", TABS["lora"]).values == {"network_dim": 4}


@pytest.mark.parametrize("secret", SECRETS)
def test_a_key_in_a_different_option_is_refused_before_anything_is_written(tmp_path, secret):
    word = SECRETS[secret]
    values = {"output_dir": str(tmp_path / "out"), "pretrained_model_name_or_path": "org/model", "resolution": "64"}
    values |= {"train_data_dir": str(images(tmp_path / "images")), "max_train_steps": 1, secret: word}
    for name, other, unknown in (
        ("extra_accelerate_launch_args", {"extra_accelerate_launch_args": f"--env KEY={word}"}, {}),
        ("training_comment", {"training_comment": f"my {word}"}, {}),
        ("my_own", {}, {"my_own": word}),
    ):
        for write in (
            lambda given, kept: prepare(given, SDXL_LORA, kept, print_only=False),
            lambda given, kept: LORA.save_configuration(tmp_path / "a.toml", given, "sdxl", kept),
        ):
            with pytest.raises(ValueError, match=f"^{name}: contains the {secret}, ") as refused:
                write({**values, **other}, unknown)
            assert word not in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "a.toml").exists()


@pytest.mark.parametrize("variable", ["HF_TOKEN", "WANDB_API_KEY"])
def test_a_key_of_the_environment_in_an_option_is_refused(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "the-key-of-this-machine")
    values = {"training_comment": "with the-key-of-this-machine", "network_dim": 4}
    with pytest.raises(ValueError, match=f"^training_comment: contains the {variable}, ") as refused:
        LORA.save_configuration(tmp_path / "a.toml", values, "sdxl", {})
    assert "the-key" not in str(refused.value)


def test_unknown_keys_that_are_named_like_secrets_are_neither_kept_nor_saved(tmp_path):
    word = SECRETS["huggingface_token"]
    given = f"""civitaiApiKey = "{word}"\nmy_own = 3\n[smtp]\npassword = "{word}"\nport = 25\n"""
    (tmp_path / "given.toml").write_text(given)
    opened = open_file(tmp_path / "given.toml", TABS["lora"])
    assert opened.unknown == {"my_own": 3, "port": 25}  # tables are flattened
    assert [remark for remark in map(str, opened.remarks) if "named like a secret" in remark] == [
        f"{name}: is named like a secret, so it is neither kept nor saved" for name in ("civitaiApiKey", "password")
    ]
    LORA.save_configuration(
        tmp_path / "a.toml",
        {},
        "sdxl",
        {"my_own": 3, "pass_key": 2, "hub_secret": [word], "s": {"auth_token": word}},
    )
    text = (tmp_path / "a.toml").read_text()
    assert "my_own = 3" in text
    assert "pass_key = 2" in text
    assert word not in text


def test_a_key_in_library_messages_reaches_neither_events_nor_console(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["wandb_api_key"])
    log = EventLog(tmp_path / "events.jsonl")
    log("failed", error=f"401 for {SECRETS['wandb_api_key']}", step=3)
    log.close()
    (event,) = EventTail(tmp_path / "events.jsonl")
    assert (event["error"], event["step"]) == ("401 for <removed>", 3)
    record = logging.LogRecord("a", logging.INFO, "", 0, "401 for %s", (SECRETS["wandb_api_key"],), None)
    assert HidingFormatter("%(message)s").format(record) == "401 for <removed>"


@pytest.mark.parametrize("joined", [True, False])
def test_keys_typed_in_a_terminal_are_handed_over_and_reach_neither_console_nor_events(
    joined, tmp_path, monkeypatch, capsys
):
    flags = {**SECRETS, "run_dir": str(tmp_path), "logging_dir": SECRETS["wandb_api_key"], "log_with": "tensorboard"}
    (tmp_path / SECRETS["wandb_api_key"]).touch()  # a file in place of a folder: a problem quotes its name
    monkeypatch.chdir(tmp_path)
    for variable in HANDED:
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable, "")  # restored
    words = [
        word for flag in flags.items() for word in ([f"--{'='.join(flag)}"] if joined else [f"--{flag[0]}", flag[1]])
    ]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    assert main("sdxl", "lora") == MISTAKE
    assert [os.environ[variable] for variable in ("WANDB_API_KEY", "HF_TOKEN")] == list(SECRETS.values())
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("logging_dir")]
    assert told.startswith("logging_dir: '<removed>' cannot be written to")
    assert told_in((tmp_path / "events.jsonl").read_bytes()) == []
    assert told_in(" ".join(sys.argv).encode()) == []


def test_a_key_in_a_different_option_is_reported_with_all_other_problems(tmp_path):
    values = {"output_dir": str(tmp_path / "out"), "wandb_api_key": "s3cret-key", "training_comment": "s3cret-key"}
    with pytest.raises(ValueError, match=r"^pretrained_model_name_or_path: (.|\n)*\ntraining_comment: contains the "):
        prepare(values, SDXL_LORA, {}, print_only=False)
