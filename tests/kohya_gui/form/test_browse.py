"""The dialog for files and folders lists only allowed paths."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.browse import listing, routes


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models" / "deep").mkdir(parents=True)
    for name in ("a.safetensors", "B.CKPT", "notes.txt", "run.toml", ".hidden.toml"):
        (tmp_path / "models" / name).touch()
    return tmp_path / "models"


def test_folders_and_matching_files_are_listed_for_a_field(folder):
    told = listing(str(folder), "vae", EVERYWHERE)
    assert (told["folders"], told["files"], told["takes_folder"]) == (["deep"], ["a.safetensors", "B.CKPT"], True)
    assert listing(str(folder), "file", EVERYWHERE)["files"] == ["run.toml"]
    assert not listing(str(folder), "file", EVERYWHERE)["takes_folder"]
    assert listing(str(folder), "train_data_dir", EVERYWHERE)["files"] == []
    assert listing(str(folder), "train_data_dir", EVERYWHERE)["takes_folder"]


def test_a_path_that_is_half_typed_opens_the_folder_above(folder):
    assert listing(str(folder / "a.safetensors"), "vae", EVERYWHERE)["folder"] == str(folder)
    assert listing(str(folder / "none" / "deeper"), "vae", EVERYWHERE)["folder"] == str(folder)


def test_served_to_others_only_allowed_folders_are_listed(folder, tmp_path):
    (folder / "out").symlink_to(tmp_path)
    client = TestClient(Starlette(routes=routes(AllowedPaths.within([folder]))))
    told = client.get("/studio/files", params={"path": "", "field": "vae"}).json()
    assert (told["folder"], told["parent"], told["starts"]) == (str(folder), None, [str(folder)])
    for outside in ("/etc", str(tmp_path), str(folder / ".."), str(folder / "out"), "a\0b"):
        answer = client.get("/studio/files", params={"path": outside, "field": "vae"})
        assert answer.status_code == 400, outside
        assert "folders" not in answer.json()
