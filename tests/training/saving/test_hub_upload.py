"""Saved files are uploaded by the real huggingface_hub, to a server that answers as the Hub does."""

from types import SimpleNamespace

import pytest

from kohya_gui.runs.run_view import file_row
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.reading import from_values
from tests.support.hub.uploads import TOKEN, hub
from tests.support.training import train

__all__ = ["hub"]


@pytest.mark.run
def test_each_saved_file_is_uploaded_and_the_page_links_to_it(hub, any_miniature, tmp_path):
    run = train(
        *(any_miniature, tmp_path / "out"),
        **{"huggingface_repo_id": "me/my-lora", "huggingface_path_in_repo": "cats", "save_every_n_steps": 2},
        **{"save_state": True, "save_state_to_huggingface": True},
    )
    assert run.status == 0
    (created,) = hub.created
    assert (created["organization"], created["name"]) == ("me", "my-lora")
    assert created.get("visibility") == "private" or created.get("private") is True  # by version of huggingface_hub
    uploaded = {name.removeprefix("models/me/my-lora/cats/"): data for name, data in hub.files.items()}
    assert {"short.safetensors", "short-step00000002.safetensors"} < uploaded.keys()
    assert any(name.startswith("short-state/") for name in uploaded)
    assert all((run.output / name).read_bytes() == data for name, data in uploaded.items())
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert [event["kind"] for event in run.events if event["kind"] in ("uploaded", "finished")][-2:] == [
        *("uploaded", "finished")
    ]
    state = RunState()
    for event in run.events:
        state.apply(event)
    last = state.saved[0]
    assert "https://huggingface.co/me/my-lora/commit/1" in file_row(1, 0, last, state.uploaded[last.path])


@pytest.mark.run
def test_a_failed_upload_is_reported_and_the_file_stays(hub, any_miniature, tmp_path):
    hub.status = {"/commit/": 403}
    run = train(any_miniature, tmp_path / "out", huggingface_repo_id="me/my-lora")
    assert run.status == 0
    (told,) = [event["text"] for event in run.events_of("warning") if "huggingface" in event["text"]]
    assert "'short.safetensors' was not uploaded to 'me/my-lora'" in told
    assert f"upload it with: hf upload me/my-lora '{run.output / 'short.safetensors'}'" in told
    assert (run.output / "short.safetensors").exists()


@pytest.mark.run
def test_a_repository_without_write_access_is_reported_before_the_model_loads(hub, any_miniature, tmp_path, capsys):
    hub.status = {"/api/repos/create": 403}
    run = train(any_miniature, tmp_path / "out", huggingface_repo_id="you/yours")
    assert run.status == 2
    assert [event["name"] for event in run.events_of("phase")].count("loading") == 0
    assert (
        "huggingface_repo_id: 'you/yours' cannot be written to: the token has no write access"
        in capsys.readouterr().err
    )


@pytest.mark.run
def test_without_a_network_the_run_trains_with_a_warning(any_miniature, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")  # where nobody listens
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=lambda _: None))  # before it retries
    run = train(any_miniature, tmp_path / "out", huggingface_repo_id="me/my-lora")
    assert run.status == 0
    warned = [event["text"] for event in run.events_of("warning")]
    assert any(text.startswith("huggingface_repo_id: the Hub cannot be reached (") for text in warned)


def test_a_name_without_an_owner_is_an_error_and_a_folder_without_a_repository_a_warning():
    from sd_scripts.settings.catalog import script_for

    script = script_for("sdxl", "lora")
    wrong = from_values(script, {"huggingface_repo_id": "my lora"})
    assert any("'my lora' is not a repository name" in str(problem) for problem in wrong.problems())
    idle = from_values(script, {"huggingface_path_in_repo": "cats"})
    assert any("has no effect without huggingface_repo_id" in str(remark) for remark in idle.remarks)
