"""The fine-tuning form of a dataset: metadata files as training reads them, and the tools that write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.plan.buckets import Extent, crop_ltrb, fit_into
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.families.sdxl.vae import LATENTS
from sd_scripts.finetune import merge_captions_to_metadata, merge_dd_tags_to_metadata, prepare_buckets_latents
from sd_scripts.formats.words import listed
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.run_state import RunState
from sd_scripts.settings.catalog import FAMILY_TITLES
from tests.support import training as training_help
from tests.support.data import loader_of, make_image, plan_data, settings_of

pytestmark = pytest.mark.run

FAMILIES = listed(FAMILY_TITLES.values(), "or")

# --- what training reads


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "b.PNG", "v1.5.png", "below/c.jpg")):
        make_image(tmp_path / "images" / name, (64, 64), number)
    return tmp_path / "images"


def planned(folder: Path, entries: dict[str, Any], told: list[str] | None = None, **values: Any) -> DataPlan:
    meta = folder.parent / "meta.json"
    meta.write_text(json.dumps(entries), encoding="utf-8")
    settings = settings_of(**{"in_json": meta, "train_data_dir": folder, **values})
    return plan_data(settings, seed=7, warn=pytest.fail if told is None else told.append)


def captions_of(plan: DataPlan) -> dict[str, str]:
    return {item.path.name: item.caption for item in plan.items}


def test_a_key_may_lack_its_extension_and_folder(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images.parent)
    keys = ["a", "b", "v1.5", "below/c", "below/c.jpg", str(images / "a.png"), "images/b.PNG"]
    plan = planned(images, {key: {"caption": key} for key in keys})
    # of two keys of one image the later one counts
    wanted = {"a.png": str(images / "a.png"), "b.PNG": "images/b.PNG", "v1.5.png": "v1.5", "c.jpg": "below/c.jpg"}
    assert captions_of(plan) == wanted


def test_full_paths_need_no_folder(images: Path) -> None:
    plan = planned(images, {str(images / "a.png"): {"tags": "one, two"}}, train_data_dir=None, dataset_repeats=3)
    assert captions_of(plan) == {"a.png": "one, two"}
    assert [item.repeats for item in plan.items] == [3]


def test_tags_follow_the_caption_and_with_wildcards_each_of_its_lines(images: Path) -> None:
    entries = {
        "a": {"caption": "a cat\nthe cat", "tags": "cute\nsmall"},
        "b": {"caption": "", "tags": "only"},
        "v1.5": {},
    }
    told: list[str] = []
    assert captions_of(planned(images, entries, told)) == {"a.png": "a cat,cute,small", "b.PNG": "only", "v1.5.png": ""}
    assert told == [
        "1 of 3 captions in 'meta.json' have more than one line. Only the first is used; set enable_wildcard "
        "to pick a random line each time: a.png"
    ]
    wild = planned(images, entries, enable_wildcard=True)
    assert captions_of(wild)["a.png"] == "a cat,cute,small\nthe cat,cute,small"


def test_missing_images_are_reported_in_one_sentence(images: Path) -> None:
    told: list[str] = []
    plan = planned(images, {key: {} for key in ["a", "gone", "x/y.png", "c", "d.webp"]}, told)
    assert captions_of(plan) == {"a.png": ""}
    (sentence,) = told
    assert sentence.startswith("metadata_file: 4 images of 'meta.json' are skipped, since they are not in '")
    assert sentence.endswith("': gone, x/y.png, c and 1 more")
    with pytest.raises(ValueError, match=r"in_json: no images to train on; name the folder .* in train_data_dir"):
        planned(images, {"gone": {}}, told)


def test_train_resolution_decides_the_bucket(images: Path) -> None:
    told: list[str] = []
    entries = {"a": {"train_resolution": [96, 32]}, "b": {"train_resolution": [64, 64]}, "v1.5": {}}
    plan = planned(images, entries, told)
    assert {item.path.name: item.fit.bucket.size for item in plan.items} == {
        "a.png": (96, 32),
        "b.PNG": (64, 64),
        "v1.5.png": (64, 64),
    }
    assert plan.items[0].fit.resized == (96, 96)
    assert told == ["resolution: 1 images of meta.json are trained at their train_resolution"]
    plan = planned(images, {"a": {"train_resolution": [72, 40]}}, told)
    assert plan.items[0].fit == fit_into(Extent(64, 32), plan.items[0].size)
    assert told[1] == (
        "metadata_file: train_resolution of 1 images is rounded to multiples of 32, as SDXL needs: a.png"
    )


@pytest.mark.parametrize("wrong", [[64], [64, 0], [64.5, 64], "64"])
def test_an_invalid_size_is_named(images: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"metadata_file: .*meta\.json: 'a' must be a table"):
        planned(images, {"a": {"train_resolution": wrong}})


def encode(pixels: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool2d(pixels.mean(1, keepdim=True), 8).expand(-1, 4, -1, -1)


def refuse(pixels: Tensor) -> Tensor:
    raise AssertionError("nothing is left to encode")


def learned(plan: DataPlan, encoder: Any = encode) -> list[Batch]:
    job = CacheJob(warn=pytest.fail, to_disk=True)
    latents = cache_latents(plan, encoder, encoder_key="vae", layout=LATENTS, job=job)
    return list(loader_of(plan, latents=latents).epoch(1))


def write_foreign(path: Path, bucket: tuple[int, int], size: tuple[int, int]) -> None:
    """As sd-scripts wrote it: no size in the names of the arrays, no fingerprint."""
    width, height = bucket
    latents = np.full((4, height // 8, width // 8), 3, np.float32)
    np.savez(path, latents=latents, original_size=np.array(size), crop_ltrb=np.array(crop_ltrb(bucket, size)))


@pytest.mark.parametrize("name", ["a.npz", "a_0064x0064_sdxl.npz"], ids=["old name", "new name"])
@pytest.mark.parametrize("image", ["there", "gone"])
def test_latents_prepared_next_to_the_images_are_used(images: Path, name: str, image: str) -> None:
    write_foreign(images / name, (96, 32), (64, 64))
    if image == "gone":
        (images / "a.png").unlink()
    told: list[str] = []
    plan = planned(images, {"a": {"caption": "cat", "train_resolution": [96, 32]}}, told)
    assert plan.items[0].size == (64, 64)
    (batch,) = learned(plan, refuse)
    assert batch.latents is not None
    assert batch.latents.shape == (1, 4, 4, 12)
    assert torch.all(batch.latents == 3)
    assert [caption.text for caption in batch.captions] == ["cat"]


# --- merging text files


@pytest.fixture
def captioned(images: Path) -> Path:
    for name, text in {
        "a.caption": "a cat\n",
        "a.txt": "cute, small\n\nred",
        "b.txt": "big",
        "below/c.caption": "ein Tür",
    }.items():
        (images / name).write_text(text, encoding="utf-8")
    return images


def written(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_captions_and_tags_are_combined_and_trained(captioned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cap, clean = captioned.parent / "meta_cap.json", captioned.parent / "meta_clean.json"
    assert merge_captions_to_metadata.main([str(captioned), str(cap)]) == 0
    assert written(cap) == {"a": {"caption": "a cat"}, "b": {}, "v1.5": {}}
    assert "2 of 3 images have no .caption file, or an empty one: b.PNG, v1.5.png" in capsys.readouterr().err
    assert merge_dd_tags_to_metadata.main([str(captioned), str(clean), "--in_json", str(cap)]) == 0
    assert written(clean) == {"a": {"caption": "a cat", "tags": "cute, small\nred"}, "b": {"tags": "big"}, "v1.5": {}}
    plan = plan_data(settings_of(in_json=clean, train_data_dir=captioned), seed=1, warn=pytest.fail)
    assert captions_of(plan) == {"a.png": "a cat,cute, small,red", "b.PNG": "big", "v1.5.png": ""}


def test_recursive_and_full_path_name_each_image_apart(captioned: Path) -> None:
    make_image(captioned / "a.jpg")
    out = captioned.parent / "meta.json"
    assert merge_captions_to_metadata.main([str(captioned), str(out), "--recursive"]) == 0
    assert list(written(out)) == ["a.jpg", "a.png", "b", "below/c", "v1.5"]
    assert written(out)["below/c"] == {"caption": "ein Tür"}
    out.unlink()
    assert merge_captions_to_metadata.main([str(captioned), str(out), "--recursive", "--full_path"]) == 0
    assert str(captioned / "below/c.jpg") in written(out)


def test_existing_entries_are_extended_under_their_keys(captioned: Path) -> None:
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


def test_a_tool_reports_its_progress(captioned: Path) -> None:
    run = captioned.parent / "run"
    assert merge_captions_to_metadata.main([str(captioned), str(captioned / "m.json"), "--run_dir", str(run)]) == 0
    run_state = RunState()
    for event in RunFolder(run).events():
        run_state.apply(event)
    assert (run_state.state, run_state.phase, run_state.done, run_state.total) == ("finished", "reading caption", 3, 3)
    assert len(run_state.warnings) == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["nowhere", "m.json"], "train_data_dir: folder not found: 'nowhere'"),
        (["empty", "m.json"], "train_data_dir: no image (png, jpg, webp, bmp) in 'empty'; turn on recursive"),
        (["images", "m.json", "--in_json", "x.json"], "in_json: file not found: 'x.json'"),
        (["images", "nowhere/m.json"], "out_json: folder not found: 'nowhere'"),
        (["images", "m.toml"], "out_json: m.toml must end in .json"),
        (["images", "m.json", "--caption_extension", ".latin"], "caption_extension: images/a.latin is not UTF-8"),
        (["images"], "the following arguments are required: out_json"),
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


# --- latents ahead of training

TINY = ["--max_resolution", "96,96", "--min_bucket_reso", "64", "--max_bucket_reso", "128", "--bucket_reso_steps", "32"]


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """meta_cap.json of three images of two shapes, one of them in a folder below."""
    for number, (name, size) in enumerate({"a.png": (64, 64), "b.png": (128, 64), "below/c.png": (70, 60)}.items()):
        image = make_image(tmp_path / "images" / name, size, number)
        image.with_suffix(".caption").write_text(f"image {image.name}")
    cap = tmp_path / "meta_cap.json"
    assert merge_captions_to_metadata.main([str(tmp_path / "images"), str(cap), "--recursive"]) == 0
    return cap


def flags_of(miniature: Any, cap: Path) -> list[str]:
    vae = [word for name in ("ae", "vae") if name in miniature.files for word in (f"--{name}", miniature.files[name])]
    places = [str(cap.parent / "images"), str(cap), str(cap.parent / "meta_lat.json"), str(miniature.checkpoint)]
    return [*places, *TINY, *map(str, vae), "--recursive"]


def test_a_run_uses_prepared_data_and_trains_the_same(
    each_miniature: Any, captions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data: dict[str, Any] = {
        "train_data_dir": captions.parent / "images",
        "dataset_repeats": 2,
        "cache_latents": True,
        "resolution": "96",
    }
    plain = training_help.train(each_miniature, tmp_path / "plain", **data, in_json=captions)
    assert prepare_buckets_latents.main(flags_of(each_miniature, captions)) == 0
    assert "caching latents 3 of 3\n" in capsys.readouterr().out
    lat = captions.parent / "meta_lat.json"
    sizes = {key: entry["train_resolution"] for key, entry in written(lat).items()}
    assert sizes == {"a": [96, 96], "b": [128, 64], "below/c": [96, 96]}
    assert {key: entry["caption"] for key, entry in written(lat).items()}["b"] == "image b.png"
    caches = {path: path.read_bytes() for path in (captions.parent / "images").rglob("*.safetensors")}
    assert len(caches) == 3
    prepared = training_help.train(
        each_miniature, tmp_path / "prepared", **data, in_json=lat, cache_latents_to_disk=True
    )
    first = next(e for e in prepared.events_of("phase") if e["name"] == "caching latents" and "done" in e)
    assert (first["done"], first["total"]) == (3, 3)
    assert {path: path.read_bytes() for path in (captions.parent / "images").rglob("*.safetensors")} == caches
    assert prepared.losses == plain.losses
    assert prepared.events_of("warning") == plain.events_of("warning") == []


def test_buckets_with_equal_tokens_are_prepared_and_cached_with_the_others(miniature: Any, captions: Path) -> None:
    flags = [*flags_of(miniature, captions), "--max_resolution", "192,192", "--max_bucket_reso", "288"]
    file, found = captions.parent / "meta_lat.json", captions.parent / "images/b_0128x0064_sdxl.safetensors"
    for more, wide in (([], [256, 128]), (["--equal_token_buckets"], [288, 128])):
        assert prepare_buckets_latents.main([*flags, *more]) == 0
        sizes = {"a": [192, 192], "b": wide}
        assert {key: entry["train_resolution"] for key, entry in written(file).items() if key in sizes} == sizes
    with safe_open(found, "pt") as tensors:
        metadata = tensors.metadata()
        assert set(tensors.keys()) == {"latents_16x32", "latents_16x36"}
        assert metadata["cache_key_16x32"] != metadata["cache_key_16x36"]


def test_prepared_data_is_kept_and_changed_data_is_rebuilt(miniature: Any, captions: Path) -> None:
    flags = flags_of(miniature, captions)
    assert prepare_buckets_latents.main(flags) == 0
    caches = sorted((captions.parent / "images").rglob("*.safetensors"))
    before = [path.read_bytes() for path in caches]
    make_image(captions.parent / "images/a.png", (64, 64), 9)
    assert prepare_buckets_latents.main([*flags, "--skip_existing"]) == 0
    assert [path.read_bytes() for path in caches] == before
    assert prepare_buckets_latents.main(flags) == 0
    assert [path.read_bytes() == old for path, old in zip(caches, before, strict=True)] == [False, True, True]


def test_preparing_stops_on_command(miniature: Any, captions: Path) -> None:
    folder = RunFolder(captions.parent / "run")
    folder.path.mkdir()
    folder.command("stop")  # before the tool has begun
    flags = [*flags_of(miniature, captions), "--run_dir", str(folder.path)]
    assert prepare_buckets_latents.main(flags) == 130
    assert [event["kind"] for event in folder.events()][-1] == "stopped"
    assert not (captions.parent / "meta_lat.json").exists()
    assert prepare_buckets_latents.main(flags) == 0  # that command belonged to an earlier run


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({0: "nowhere"}, "train_data_dir: folder not found: 'nowhere'"),
        ({1: "x.json"}, "in_json: file not found: 'x.json'"),
        ({2: "nowhere/m.json"}, "out_json: folder not found: 'nowhere'"),
        ({2: "m.jsonl"}, "out_json: m.jsonl must end in .json"),
        ({3: "x.ckpt"}, f"family: cannot tell whether 'x.ckpt' is {FAMILIES}; set --family"),
        ({3: "x.ckpt", "--family": "sdxl"}, "pretrained_model_name_or_path: file or folder not found: 'x.ckpt'"),
        ({"--vae": "x.safetensors"}, "vae: file or folder not found: 'x.safetensors'"),
        ({"--max_resolution": "big"}, "max_resolution: 'big' is not a size; write 1024 or 1024,768"),
        ({"--max_resolution": "64,256"}, "max_bucket_reso: 128 is smaller than resolution's longer side 256"),
        ({"--batch_size": "0"}, "batch_size: 0 must be at least 1"),
        ({"--batch_size": "many"}, "batch_size: invalid int value: 'many'"),
        ({"--resize_interpolation": "best"}, "resize_interpolation: 'best' is not one of lanczos, nearest"),
    ],
)
def test_a_mistake_in_preparing_is_one_sentence_and_status_2(
    miniature: Any,
    captions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[Any, str],
    sentence: str,
) -> None:
    monkeypatch.chdir(captions.parent)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = flags_of(miniature, captions)
    for place, value in changed.items():
        if isinstance(place, int):
            flags[place] = value
        else:
            flags += [place, value]
    capsys.readouterr()
    try:
        status = prepare_buckets_latents.main(flags)
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith(sentence)
    assert said.count("\n") == 1
    assert not Path("meta_lat.json").exists()
