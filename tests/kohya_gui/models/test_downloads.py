"""Downloads from a site that redirects, gates, cuts connections and gives out wrong files."""

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.models import download as download_module
from kohya_gui.models.address import HUB, CivitaiAddress, HubAddress
from kohya_gui.models.download import partial
from kohya_gui.models.downloads import Downloads
from kohya_gui.models.remote import NoAccess, RemoteFile, file_of_hub, files_at
from tests.support.hub.files import TOKEN, ModelSite, model_site

__all__ = ["model_site"]

FILE = "them/model/flux1-dev.safetensors"
CONTENT = bytes(range(256)) * 100
WAIT = 20.0


@pytest.fixture
def site(model_site: ModelSite) -> ModelSite:
    model_site.files[FILE] = CONTENT
    return model_site


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path / "state")


def get(downloads: Downloads, folder: Path) -> dict[str, object]:
    """Download the file and return the download's description once it ended."""
    file = file_of_hub("them/model", "flux1-dev.safetensors", token=downloads.token(HUB))
    id = downloads.add(file, folder / file.name)
    assert downloads.wait(WAIT)
    return next(each for each in downloads.described() if each["id"] == id)


def test_a_file_lands_whole_without_a_trace_of_the_download(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    ended = get(downloads, tmp_path / "models")
    assert ended["state"] == "done"
    assert [(file.name, file.read_bytes()) for file in (tmp_path / "models").iterdir()] == [
        ("flux1-dev.safetensors", CONTENT)
    ]


def test_a_connection_that_is_cut_continues_where_it_ended(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    site.cut = [1000]
    assert get(downloads, tmp_path)["state"] == "done"
    assert site.ranges == ["", "bytes=1000-"]
    assert (tmp_path / "flux1-dev.safetensors").read_bytes() == CONTENT


def test_a_file_with_a_wrong_checksum_never_gets_its_name(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    site.wrong.add(FILE)
    ended = get(downloads, tmp_path / "models")
    assert ended["state"] == "failed"
    assert "checksum" in str(ended["error"])
    assert list((tmp_path / "models").iterdir()) == []


def test_a_gated_file_needs_a_token_once_and_it_goes_nowhere_else(
    site: ModelSite, downloads: Downloads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.gated.add("them/model")
    with pytest.raises(NoAccess) as refusal:
        file_of_hub("them/model", "flux1-dev.safetensors")
    assert refusal.value.needs_token
    downloads.use_token(HUB, f" {TOKEN}\n")
    with caplog.at_level(logging.DEBUG):
        assert get(downloads, tmp_path)["state"] == "done"
    assert site.leaked == []
    assert TOKEN not in caplog.text
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()]


def test_a_token_whose_account_has_not_accepted_the_terms_leads_to_the_models_page(site: ModelSite) -> None:
    site.refused.add("them/model")
    with pytest.raises(NoAccess, match="Accept the model's terms") as refusal:
        file_of_hub("them/model", "flux1-dev.safetensors", token=TOKEN)
    assert not refusal.value.needs_token
    assert refusal.value.page == f"{site.url}/them/model"


def test_a_paused_download_continues_in_a_later_gui(site: ModelSite, tmp_path: Path) -> None:
    site.cut = [5000]  # the rest is sent when it is resumed
    first = Downloads(tmp_path / "state")
    file = file_of_hub("them/model", "flux1-dev.safetensors")
    part = partial(file, tmp_path / file.name)
    part.write_bytes(CONTENT[:700])
    site.hold = threading.Event()
    id = first.add(file, tmp_path / file.name)
    assert site.holding.wait(WAIT)
    first.pause(id)
    site.hold.set()
    assert first.wait(WAIT)
    assert first.described()[0]["state"] == "paused"
    assert not (tmp_path / file.name).exists()
    assert part.is_file()

    site.hold = None
    site.cut = []
    later = Downloads(tmp_path / "state")
    later.resume(id)
    assert later.wait(WAIT)
    assert (tmp_path / file.name).read_bytes() == CONTENT
    assert site.ranges[0] == "bytes=700-"
    assert not part.exists()


def test_a_download_that_a_gui_did_not_finish_is_continued_by_the_next(site: ModelSite, tmp_path: Path) -> None:
    file = file_of_hub("them/model", "flux1-dev.safetensors")
    killed = Downloads(tmp_path / "state")
    site.hold = threading.Event()
    killed.add(file, tmp_path / file.name)
    assert site.holding.wait(WAIT)
    record = next((tmp_path / "state").glob("*.json"))
    left = record.read_text().replace(killed._owner, "0:gone")
    killed.remove(killed.described()[0]["id"])
    site.hold.set()
    assert killed.wait(WAIT)
    record.write_text(left)
    site.hold = None
    assert Downloads(tmp_path / "state").wait(WAIT)
    assert (tmp_path / file.name).read_bytes() == CONTENT


def test_a_removed_download_leaves_nothing(site: ModelSite, downloads: Downloads, tmp_path: Path) -> None:
    site.hold = threading.Event()
    file = file_of_hub("them/model", "flux1-dev.safetensors")
    id = downloads.add(file, tmp_path / "models" / file.name)
    assert site.holding.wait(WAIT)
    downloads.remove(id)
    site.hold.set()
    assert downloads.wait(WAIT)
    assert [*(tmp_path / "models").iterdir(), *(tmp_path / "state").iterdir()] == []


def test_a_full_disk_is_a_sentence_before_the_first_byte(
    site: ModelSite, downloads: Downloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "free_bytes", lambda folder: 1000)
    ended = get(downloads, tmp_path)
    assert ended["state"] == "failed"
    assert "1.0 kB free" in str(ended["error"])
    assert site.ranges == []


def test_what_is_here_or_on_its_way_is_not_downloaded_again(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    site.hold = threading.Event()
    file = file_of_hub("them/model", "flux1-dev.safetensors")
    downloads.add(file, tmp_path / file.name)
    with pytest.raises(ValueError, match="being downloaded already"):
        downloads.add(file, tmp_path / file.name)
    site.hold.set()
    assert downloads.wait(WAIT)
    with pytest.raises(ValueError, match="on this machine already"):
        downloads.add(file, tmp_path / file.name)


def test_a_repository_lists_its_model_files_largest_first(site: ModelSite) -> None:
    site.files |= {"them/model/vae/diffusion_pytorch_model.safetensors": b"vae", "them/model/README.md": b"text"}
    files = files_at(HubAddress(repo="them/model"))
    assert [(file.name, file.bytes, file.licence) for file in files] == [
        ("flux1-dev.safetensors", len(CONTENT), "mit"),
        ("model_vae_diffusion_pytorch_model.safetensors", 3, "mit"),
    ]
    assert files[0].sha256 == site.sha256(FILE)


INDEX = {
    "_class_name": "StableDiffusionXLPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "image_encoder": [None, None],
    "force_zeros": True,
}
FOLDER = {
    "model_index.json": json.dumps(INDEX).encode(),
    "unet/config.json": b"{}",
    "unet/diffusion_pytorch_model.safetensors": CONTENT,
    "text_encoder/config.json": b"{ }",
    "text_encoder/model-00001-of-00002.safetensors": b"one",
    "text_encoder/model-00002-of-00002.safetensors": b"two",
    "text_encoder/model.safetensors.index.json": b"{}",
}
LEFT = (
    "unet/diffusion_pytorch_model.fp16.safetensors",
    "unet/model.onnx",
    "vae_decoder/config.json",
    "sd_xl.safetensors",
)


def whole_model(site: ModelSite, **more: bytes) -> RemoteFile:
    """Return the entry of a repository's folder."""
    site.files = {
        f"them/sdxl/{name}": content for name, content in {**FOLDER, **dict.fromkeys(LEFT, b"x"), **more}.items()
    }
    return next(file for file in files_at(HubAddress(repo="them/sdxl")) if file.parts)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_diffusers_model_is_one_entry_whose_folder_appears_whole(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    model = whole_model(site)
    assert (model.name, model.bytes) == ("sdxl", sum(map(len, FOLDER.values())))
    target = tmp_path / "models" / model.name
    site.hold = threading.Event()
    id = downloads.add(model, target)
    assert site.holding.wait(WAIT)
    assert not target.exists()
    site.hold.set()
    assert downloads.wait(WAIT)
    assert downloads.described()[0]["state"] == "done"
    assert contents(target) == FOLDER
    assert [*target.parent.iterdir()] == [target]
    downloads.remove(id)
    assert contents(target) == FOLDER


def test_a_paused_folder_continues_within_the_file_it_was_at(site: ModelSite, tmp_path: Path) -> None:
    model = whole_model(site)
    first = Downloads(tmp_path / "state")
    target = tmp_path / model.name
    hidden = partial(model, target)
    for name in ("model_index.json", "text_encoder/config.json"):
        (hidden / name).parent.mkdir(parents=True, exist_ok=True)
        (hidden / name).write_bytes(FOLDER[name])
    site.hold = threading.Event()
    id = first.add(model, target)
    assert site.holding.wait(WAIT)
    first.pause(id)
    site.hold.set()
    assert first.wait(WAIT)
    here = len(FOLDER["model_index.json"]) + len(FOLDER["text_encoder/config.json"])
    assert first.described()[0]["bytes"] >= here
    site.hold = None
    later = Downloads(tmp_path / "state")
    later.resume(id)
    assert later.wait(WAIT)
    assert contents(target) == FOLDER
    assert not hidden.exists()


def test_a_removed_folder_leaves_nothing(site: ModelSite, downloads: Downloads, tmp_path: Path) -> None:
    model = whole_model(site)
    site.hold = threading.Event()
    id = downloads.add(model, tmp_path / "models" / model.name)
    assert site.holding.wait(WAIT)
    downloads.remove(id)
    site.hold.set()
    assert downloads.wait(WAIT)
    assert [*(tmp_path / "models").iterdir(), *(tmp_path / "state").iterdir()] == []


@pytest.mark.parametrize(
    "index",
    [
        INDEX | {"vae": ["diffusers", "AutoencoderKL"]},  # it is not there
        INDEX | {"..": ["a", "b"]},
        INDEX | {"safety": ["a", "b"]},  # in a format that is not read
        [],
        {},
    ],
)
def test_a_folder_that_lacks_a_component_or_leads_elsewhere_is_not_offered(site: ModelSite, index: Any) -> None:
    more = {"model_index.json": json.dumps(index).encode(), "../config.json": b"{}", "safety/model.bin": b"x"}
    with pytest.raises(StopIteration):
        whole_model(site, **more)
    assert [file.name for file in files_at(HubAddress(repo="them/sdxl"))]


def test_a_version_on_civitai_is_a_file_with_a_safe_name_on_that_site(site: ModelSite) -> None:
    name, url = "../../.ssh/über<model>.safetensors", f"{site.url}/api/download/models/7"
    hashes = {"SHA256": site.sha256(FILE).upper()}
    site.answers["model-versions/7"] = {
        "id": 7,
        "modelId": 5,
        "files": [
            {"name": name, "sizeKB": 25.0, "downloadUrl": url, "hashes": hashes},
            {"name": "elsewhere.safetensors", "sizeKB": 25.0, "downloadUrl": "https://evil.example/x", "hashes": {}},
            {"name": "notes.zip", "sizeKB": 1, "downloadUrl": url},
            None,
        ],
    }
    (file,) = files_at(CivitaiAddress(model=5, version=7))
    assert (file.name, file.url, file.sha256) == ("über_model_.safetensors", url, site.sha256(FILE))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_disk_that_fills_up_is_a_sentence_and_the_download_can_be_resumed(
    site: ModelSite, downloads: Downloads, tmp_path: Path
) -> None:
    file = file_of_hub("them/model", "flux1-dev.safetensors")
    part = partial(file, tmp_path / file.name)
    part.symlink_to("/dev/full")
    ended = get(downloads, tmp_path)
    assert ended["state"] == "failed"
    assert "the disk is full; free some space, then resume the download" in str(ended["error"])
    part.unlink()
    downloads.resume(ended["id"])
    assert downloads.wait(WAIT)
    assert (tmp_path / file.name).read_bytes() == CONTENT
