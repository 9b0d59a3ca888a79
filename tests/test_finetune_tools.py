"""The fine-tuning form of a data set: metadata files as training reads them, and the tools that write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_help import make_picture, settings_of
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.buckets import crop_ltrb
from sd_scripts.data.dataset import DataPlan, plan_data
from sd_scripts.data.latent_caching import cache_latents
from sd_scripts.data.loader import BatchLoader
from sd_scripts.finetune import merge_captions_to_metadata, merge_dd_tags_to_metadata
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.story import RunStory

# --- what training reads


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "b.PNG", "v1.5.png", "below/c.jpg")):
        make_picture(tmp_path / "pictures" / name, (64, 64), number)
    return tmp_path / "pictures"


def planned(folder: Path, entries: dict[str, Any], told: list[str] | None = None, **values: Any) -> DataPlan:
    meta = folder.parent / "meta.json"
    meta.write_text(json.dumps(entries), encoding="utf-8")
    settings = settings_of(**{"in_json": meta, "train_data_dir": folder, **values})
    return plan_data(settings, seed=7, warn=pytest.fail if told is None else told.append)


def captions_of(plan: DataPlan) -> dict[str, str]:
    return {item.path.name: item.caption for item in plan.items}


def test_a_key_may_lack_its_ending_and_its_folder(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pictures.parent)
    keys = ["a", "b", "v1.5", "below/c", "below/c.jpg", str(pictures / "a.png"), "pictures/b.PNG"]
    plan = planned(pictures, {key: {"caption": key} for key in keys})
    # of two keys of one picture the later one counts
    wanted = {"a.png": str(pictures / "a.png"), "b.PNG": "pictures/b.PNG", "v1.5.png": "v1.5", "c.jpg": "below/c.jpg"}
    assert captions_of(plan) == wanted


def test_full_paths_need_no_folder(pictures: Path) -> None:
    plan = planned(pictures, {str(pictures / "a.png"): {"tags": "one, two"}}, train_data_dir=None, dataset_repeats=3)
    assert captions_of(plan) == {"a.png": "one, two"}
    assert [item.repeats for item in plan.items] == [3]


def test_tags_follow_the_caption_and_with_wildcards_each_of_its_lines(pictures: Path) -> None:
    entries = {
        "a": {"caption": "a cat\nthe cat", "tags": "cute\nsmall"},
        "b": {"caption": "", "tags": "only"},
        "v1.5": {},
    }
    assert captions_of(planned(pictures, entries)) == {"a.png": "a cat,cute,small", "b.PNG": "only", "v1.5.png": ""}
    wild = planned(pictures, entries, enable_wildcard=True)
    assert captions_of(wild)["a.png"] == "a cat,cute,small\nthe cat,cute,small"


def test_pictures_that_are_not_there_are_told_in_one_sentence(pictures: Path) -> None:
    told: list[str] = []
    plan = planned(pictures, {key: {} for key in ["a", "gone", "x/y.png", "c", "d.webp"]}, told)
    assert captions_of(plan) == {"a.png": ""}
    (sentence,) = told
    assert sentence.startswith("metadata_file: 4 pictures of meta.json are not in ")
    assert sentence.endswith("and are left out: gone, x/y.png, c and 1 more")
    with pytest.raises(ValueError, match=r"in_json: no picture to train on; name the folder .* in train_data_dir"):
        planned(pictures, {"gone": {}}, told)


def test_train_resolution_decides_the_bucket(pictures: Path) -> None:
    told: list[str] = []
    entries = {"a": {"train_resolution": [96, 32]}, "b": {"train_resolution": [64, 64]}, "v1.5": {}}
    plan = planned(pictures, entries, told)
    assert {item.path.name: item.fit.bucket for item in plan.items} == {
        "a.png": (96, 32),
        "b.PNG": (64, 64),
        "v1.5.png": (64, 64),
    }
    assert plan.items[0].fit.resized == (96, 96)
    assert told == ["resolution: 1 pictures of meta.json are trained at the size that their train_resolution says"]
    with pytest.raises(ValueError, match=r"train_resolution 72,64 of a\.png is not a multiple of 32, as SDXL needs"):
        planned(pictures, {"a": {"train_resolution": [72, 64]}}, told)


@pytest.mark.parametrize("wrong", [[64], [64, 0], [64.5, 64], "64"])
def test_a_size_that_is_none_is_named(pictures: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"metadata_file: .*meta\.json: 'a' must be a table"):
        planned(pictures, {"a": {"train_resolution": wrong}})


def encode(pixels: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 8).expand(-1, 4, -1, -1)


def refuse(pixels: Tensor) -> Tensor:
    raise AssertionError("nothing is left to encode")


def learned(plan: DataPlan, encoder: Any = encode) -> list[Batch]:
    latents = cache_latents(plan, encoder, fingerprint="vae", warn=pytest.fail, to_disk=True)
    return list(BatchLoader(plan, warn=pytest.fail, latents=latents).epoch(1))


def write_foreign(path: Path, bucket: tuple[int, int], size: tuple[int, int]) -> None:
    """As sd-scripts wrote it: no size in the names of the arrays, no fingerprint."""
    width, height = bucket
    latents = np.full((4, height // 8, width // 8), 3, np.float32)
    np.savez(path, latents=latents, original_size=np.array(size), crop_ltrb=np.array(crop_ltrb(bucket, size)))


@pytest.mark.parametrize("name", ["a.npz", "a_0064x0064_sdxl.npz"], ids=["old name", "new name"])
@pytest.mark.parametrize("picture", ["there", "gone"])
def test_latents_prepared_beside_the_pictures_are_used(pictures: Path, name: str, picture: str) -> None:
    write_foreign(pictures / name, (96, 32), (64, 64))
    if picture == "gone":
        (pictures / "a.png").unlink()
    told: list[str] = []
    plan = planned(pictures, {"a": {"caption": "cat", "train_resolution": [96, 32]}}, told)
    assert plan.items[0].size == (64, 64)
    (batch,) = learned(plan, refuse)
    assert batch.latents is not None
    assert batch.latents.shape == (1, 4, 4, 12)
    assert torch.all(batch.latents == 3)
    assert batch.captions == ["cat"]


# --- merging text files


@pytest.fixture
def captioned(pictures: Path) -> Path:
    for name, text in {
        "a.caption": "a cat\n",
        "a.txt": "cute, small\n\nred",
        "b.txt": "big",
        "below/c.caption": "ein Tür",
    }.items():
        (pictures / name).write_text(text, encoding="utf-8")
    return pictures


def written(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_captions_and_tags_come_together_and_train(captioned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cap, clean = captioned.parent / "meta_cap.json", captioned.parent / "meta_clean.json"
    assert merge_captions_to_metadata.main([str(captioned), str(cap)]) == 0
    assert written(cap) == {"a": {"caption": "a cat"}, "b": {}, "v1.5": {}}
    assert "2 of 3 pictures have no .caption file, or an empty one: b.PNG, v1.5.png" in capsys.readouterr().err
    assert merge_dd_tags_to_metadata.main([str(captioned), str(clean), "--in_json", str(cap)]) == 0
    assert written(clean) == {"a": {"caption": "a cat", "tags": "cute, small\nred"}, "b": {"tags": "big"}, "v1.5": {}}
    plan = plan_data(settings_of(in_json=clean, train_data_dir=captioned), seed=1, warn=pytest.fail)
    assert captions_of(plan) == {"a.png": "a cat,cute, small,red", "b.PNG": "big", "v1.5.png": ""}


def test_recursive_and_full_path_name_each_picture_apart(captioned: Path) -> None:
    make_picture(captioned / "a.jpg")
    out = captioned.parent / "meta.json"
    assert merge_captions_to_metadata.main([str(captioned), str(out), "--recursive"]) == 0
    assert list(written(out)) == ["a.jpg", "a.png", "b", "below/c", "v1.5"]
    assert written(out)["below/c"] == {"caption": "ein Tür"}
    out.unlink()
    assert merge_captions_to_metadata.main([str(captioned), str(out), "--recursive", "--full_path"]) == 0
    assert str(captioned / "below/c.jpg") in written(out)


def test_what_is_there_already_is_added_to_under_the_keys_it_has(captioned: Path) -> None:
    out = captioned.parent / "meta.json"
    known = {"/elsewhere/x.png": {"caption": "x"}, "b.PNG": {"caption": "b", "train_resolution": [64, 64]}}
    out.write_text(json.dumps(known))
    assert merge_dd_tags_to_metadata.main([str(captioned), str(out)]) == 0
    assert written(out) == {
        "/elsewhere/x.png": {"caption": "x"},
        "b.PNG": {"caption": "b", "train_resolution": [64, 64], "tags": "big"},
        "a": {"tags": "cute, small\nred"},
        "v1.5": {},
    }


def test_a_tool_tells_how_far_it_is(captioned: Path) -> None:
    run = captioned.parent / "run"
    assert merge_captions_to_metadata.main([str(captioned), str(captioned / "m.json"), "--run_dir", str(run)]) == 0
    story = RunStory()
    for event in RunFolder(run).events():
        story.tell(event)
    assert (story.state, story.phase, story.done, story.total) == ("finished", "reading caption", 3, 3)
    assert len(story.warnings) == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["nowhere", "m.json"], "train_data_dir: there is no folder 'nowhere'"),
        (["empty", "m.json"], "train_data_dir: no picture (png, jpg, webp, bmp) in 'empty'; those in folders below"),
        (["pictures", "m.json", "--in_json", "x.json"], "in_json: x.json cannot be read: No such file or directory"),
        (["pictures", "nowhere/m.json"], "out_json: nowhere/m.json cannot be written: No such file or directory"),
        (["pictures", "m.toml"], "out_json: m.toml is not named like a .json file"),
        (["pictures", "m.json", "--caption_extension", ".latin"], "caption_extension: pictures/a.latin is not UTF-8"),
        (["pictures"], "the following arguments are required: out_json"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    captioned: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(captioned.parent)
    Path("empty").mkdir()
    (captioned / "a.latin").write_bytes("Tür".encode("latin-1"))
    try:
        status = merge_captions_to_metadata.main(flags)
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1
    assert not Path("m.json").exists()
