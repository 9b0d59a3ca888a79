"""The data plan: how folders and metadata files are read, split, balanced and described."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kohya_gui.access.allowed_paths import AllowedPaths
from kohya_gui.dataset.dataset_tools import Concept, arrange
from kohya_gui.dataset.recognise_images import beside_metadata, train_data
from kohya_gui.form.browse import listing
from kohya_gui.form.recognise import metadata as metadata_hint
from sd_scripts.data.metadata import dataset_metadata
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan, balance_regularisation
from sd_scripts.data.plan.epochs import BatchShape, batch_shapes
from sd_scripts.formats.images.caption_files import find_captions
from sd_scripts.formats.images.control_images import find_controls
from sd_scripts.formats.images.folder_names import normalized
from sd_scripts.formats.images.image_folders import IMAGES_BY_PLUGIN, readable_suffixes
from sd_scripts.formats.images.metadata_file import merge_words
from tests.support.data import loader_of, make_folder, make_image, plan_data, plan_of, settings_of


def captions_of(plan: DataPlan) -> dict[str, str]:
    return {item.path.name: item.caption for item in plan.items}


def planned(told: list[str] | None = None, **values: Any) -> DataPlan:
    return plan_data(settings_of(**values), seed=7, warn=pytest.fail if told is None else told.append)


# --- folders and captions


def test_a_caption_is_the_first_line_with_text_or_the_class_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "train/2_my cat"
    for name in "abcd":
        make_image(folder / f"{name}.png")
    (folder / "a.txt").write_bytes("\ufeff\r\n  \r\none \u2028 more \r\ntwo".encode())
    (folder / "b.txt").write_text("\n \n")
    (folder / "d.TXT").write_text("loud")
    told: list[str] = []
    captions = captions_of(plan_of(tmp_path / "train", told=told))
    assert captions == {"a.png": "one \u2028 more", "b.png": "", "c.png": "my cat", "d.png": "loud"}
    assert told == [
        "1 of 4 images in '2_my cat' has no .txt file and gets the caption 'my cat': c.png",
        "1 of 3 caption files in '2_my cat' are empty, so these images have no caption: b.txt",
        "1 of 3 caption files in '2_my cat' have more than one line. Only the first is used; set enable_wildcard "
        "to pick a random line each time: a.txt",
    ]


def test_missing_captions_are_reported_with_the_extension_found(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_x", [(64, 64)] * 3)
    told: list[str] = []
    plan_of(tmp_path / "train", told=told, caption_extension=".caption")
    assert told == [
        "3 of 3 images in '1_x' have no .caption file; found files that end in .txt: set caption_extension = \".txt\""
    ]
    for path in (tmp_path / "train/1_x").glob("*.txt"):
        path.unlink()
    make_image(tmp_path / "reg/1_y/a.png")  # its class is the caption of a regularisation image
    told.clear()
    plan_of(tmp_path / "train", told=told, reg_data_dir=tmp_path / "reg")
    assert told == ["3 of 3 images in '1_x' have no .txt file and get the caption 'x'"]
    (tmp_path / "train/1_x").rename(tmp_path / "train/1_")
    told.clear()
    plan_of(tmp_path / "train", told=told)
    assert told == ["3 of 3 images in '1_' have no .txt file and no caption"]


def test_an_extension_in_exact_case_is_preferred(tmp_path: Path) -> None:
    (image,) = make_folder(tmp_path, [(64, 64)])
    image.with_suffix(".TXT").write_text("other")
    if len(list(tmp_path.iterdir())) == 3:  # a file system that distinguishes the two
        assert find_captions(tmp_path, [image], "txt").found == {image: image.with_suffix(".txt")}
        assert find_captions(tmp_path, [image], ".TXT").found == {image: image.with_suffix(".TXT")}


def test_images_of_a_format_without_plugin_are_reported_in_one_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_x", [(64, 64)])
    unknown = next(iter(IMAGES_BY_PLUGIN - readable_suffixes()), None)
    if unknown is None:
        pytest.skip("Pillow reads all formats here")
    for name in "ab":
        (tmp_path / f"train/1_x/{name}{unknown}").touch()
    told: list[str] = []
    assert len(plan_of(tmp_path / "train", told=told).items) == 1
    assert len(told) == 1
    assert told[0].startswith(f"2 images are skipped: Pillow has no plugin for {unknown} here")


def test_the_page_counts_the_images_that_training_reads(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_x", [(64, 64)])
    (tmp_path / "1_x/folder.png").mkdir()
    for ending in (".PNG", *IMAGES_BY_PLUGIN - readable_suffixes()):
        make_image(tmp_path / "1_x/upper.png").rename(tmp_path / f"1_x/b{ending}")
    trained = len(plan_of(tmp_path, told=[]).items)
    assert train_data(str(tmp_path), ".txt").text.startswith(f"{trained} images")
    assert beside_metadata(str(tmp_path)).text.startswith(f"{trained} images")
    assert listing(str(tmp_path / "1_x"), "train_data_dir", AllowedPaths())["images"] == trained


def test_images_that_are_not_read_and_captions_without_an_image_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "train/1_x"
    make_image(folder / "a.png").with_suffix(".txt").write_text("a")
    for name in ("b.JFIF", "c.jpe"):
        make_image(folder / "made.jpg").rename(folder / name)
        (folder / name).with_suffix(".txt").write_text("b")
    for name in ("d.TIFF", "e.gif", "e.txt", "f.HeiC", "g.cr2", "g.txt", "gone.txt", "lost.TXT", "h.caption", "i.json"):
        (folder / name).touch()
    (folder / "moved.webp").symlink_to(tmp_path / "gone" / "moved.webp")
    told: list[str] = []
    assert list(captions_of(plan_of(tmp_path / "train", told=told))) == ["a.png", "b.JFIF", "c.jpe"]
    assert told == [
        "4 images in '1_x' are skipped, since their kind is not read; convert them to PNG, JPEG or WebP: "
        "d.TIFF, e.gif, f.HeiC and 1 more",
        "1 image in '1_x' is a link to a missing file, or no file at all, and skipped: moved.webp",
        "2 .txt files in '1_x' have no image: gone.txt, lost.TXT",
    ]
    assert train_data(str(tmp_path / "train"), ".txt").text.startswith("3 images, all captioned")


@pytest.mark.parametrize("typed", ["txt", " .txt", "txt "])
def test_blanks_around_a_caption_extension_and_its_missing_dot_do_not_matter(tmp_path: Path, typed: str) -> None:
    make_image(tmp_path / "1_x/a.png").with_suffix(".txt").write_text("a dog")
    assert captions_of(plan_of(tmp_path, caption_extension=typed)) == {"a.png": "a dog"}


NAMES = ("cafe\u0301", "caf\u00e9"), ("\u00c5ngstro\u0308m", "A\u030angstr\u00f6m"), ("\ud55c", "\u1112\u1161\u11ab")
"""One name in two normalizations."""


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems find both")
@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_names_in_a_different_unicode_normalization_match(tmp_path: Path, places: tuple[int, int]) -> None:
    folder, keys = tmp_path / "train/1_x", {}
    for number, names in enumerate(NAMES):
        image, other = (names[place] for place in places)
        make_image(folder / f"{image}.png").with_name(f"{other}.txt").write_text(f"caption {number}")
        make_image(tmp_path / f"masks/{other}.png")
        make_image(tmp_path / f"before/{other}_1.png")
        make_image(tmp_path / f"before/{other}_0.png")
        make_image(tmp_path / f"loose/{image}/{image}.png")
        keys[f"{other}/{other}"] = {"caption": f"caption {number}"}
    expected = {f"caption {number}" for number in range(3)}
    plan = plan_of(tmp_path / "train", masked_loss=True, conditioning_data_dir=tmp_path / "masks")
    assert {item.caption for item in plan.items} == expected
    assert all(item.mask and normalized(item.mask.stem) == normalized(item.path.stem) for item in plan.items)
    assert train_data(str(tmp_path / "train"), ".txt").text.startswith("3 images, all captioned")
    images = [item.path for item in plan.items]
    controls = find_controls(str(tmp_path / "before"), "1_x", images)
    assert [[path.stem[-2:] for path in controls[image]] for image in images] == [["_0", "_1"]] * 3
    (tmp_path / "m.json").write_text(json.dumps(keys))
    by_key = planned(in_json=tmp_path / "m.json", train_data_dir=tmp_path / "loose")
    assert {item.caption for item in by_key.items} == expected
    known = {f"{names[places[1]]}": {"train_resolution": [64, 64]} for names in NAMES}
    merged = merge_words(folder, known, "caption", "txt").entries
    assert {(entry["caption"], *entry["train_resolution"]) for entry in merged.values()} == {
        (caption, 64, 64) for caption in expected
    }
    concept = Concept(
        instance_prompt="x", training_images=str(folder), repeats=1, destination=str(tmp_path / "arranged")
    )
    assert str(arrange(concept).copied[0]) == "img/1_x: 3 images and 3 captions copied"


def test_an_exactly_equal_name_is_preferred(tmp_path: Path) -> None:
    images = [make_image(tmp_path / f"{name}.png") for name in NAMES[0]]
    if len(list(tmp_path.iterdir())) == 2:  # a file system that distinguishes the two
        for image in images:
            image.with_suffix(".txt").write_text("x")
        assert find_captions(tmp_path, images, "txt").found == {image: image.with_suffix(".txt") for image in images}


def test_all_lines_are_kept_for_wildcards(tmp_path: Path) -> None:
    image = make_image(tmp_path / "train/1_cat/a.png")
    image.with_suffix(".txt").write_text("one\n\ntwo\n")
    assert captions_of(plan_of(tmp_path / "train", enable_wildcard=True)) == {"a.png": "one\ntwo"}


def test_an_image_named_with_a_face_shares_the_caption_of_its_base(tmp_path: Path) -> None:
    image = make_image(tmp_path / "train/1_cat/a_32_32_16_16.png")
    image.with_name("a.txt").write_text("someone")
    assert captions_of(plan_of(tmp_path / "train")) == {image.name: "someone"}


def test_a_caption_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    image = make_image(tmp_path / "train/1_cat/a.png")
    image.with_suffix(".txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match=r"caption_extension: .*a\.txt is not UTF-8"):
        plan_of(tmp_path / "train")


def test_all_caption_files_that_are_not_text_are_named_together(tmp_path: Path) -> None:
    texts = {"a": b"caf\xe9", "b": "ein Bär".encode(), "c": "a cat".encode("utf-16-le"), "d": "a cat".encode("utf-16")}
    for folder in ("1_x", "2_y"):
        for name, content in texts.items():
            make_image(tmp_path / "train" / folder / f"{name}.png").with_suffix(".txt").write_bytes(content)
    make_image(tmp_path / "train/2_y/e.png").with_suffix(".txt").mkdir()
    told: list[str] = []
    with pytest.raises(ValueError, match="caption_extension") as refused:
        plan_of(tmp_path / "train", told=told)
    assert told == ["1 of 5 images in '2_y' has no .txt file and gets the caption 'y': e.png"]
    first, others = str(refused.value).split(". ")
    assert first == f"caption_extension: {tmp_path}/train/1_x/a.txt is not UTF-8 text; save it as UTF-8"
    assert others == "5 more cannot be read: c.txt, d.txt, a.txt, c.txt, d.txt"


def test_an_extension_works_without_its_point_and_letter_case_of_images_does_not_matter(tmp_path: Path) -> None:
    image = make_image(tmp_path / "train/1_cat/a.PNG")
    image.with_suffix(".tags").write_text("words")
    assert captions_of(plan_of(tmp_path / "train", caption_extension="tags")) == {"a.PNG": "words"}


def test_an_image_that_cannot_be_opened_is_reported_and_skipped(tmp_path: Path) -> None:
    for image in make_folder(tmp_path / "train/1_cat", [(64, 64)] * 2)[1:]:
        image.write_bytes(b"not an image")
    told: list[str] = []
    assert list(captions_of(plan_of(tmp_path / "train", told=told))) == ["00.png"]
    assert len(told) == 1
    assert "01.png cannot be read" in told[0]


def test_an_extremely_elongated_image_is_reported(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64), (2_000, 1)])
    told: list[str] = []
    plan_of(tmp_path / "train", enable_bucket=False, told=told)
    assert told == [
        "1 of 2 images in '1_cat' are so elongated that less than a sixteenth of each fits its "
        "bucket; turn on enable_bucket, or crop them: 01.png (2000x1)"
    ]


def test_a_dataset_without_images_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "train/1_cat").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train_data_dir: no images to train on; put images .* into '.*1_cat'"):
        plan_of(tmp_path / "train", told=[])


def test_a_rotation_noted_by_the_camera_is_applied(tmp_path: Path) -> None:
    (tmp_path / "train/1_cat").mkdir(parents=True)
    upright = np.zeros((128, 64, 3), np.uint8)
    upright[:64] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its left side
    Image.fromarray(np.rot90(upright)).save(tmp_path / "train/1_cat/a.jpg", exif=exif, quality=100)
    plan = plan_of(tmp_path / "train", told=[])
    assert plan.items[0].size == (64, 128)
    (batch,) = loader_of(plan).epoch(1)
    assert batch.pixels is not None
    height = batch.pixels.shape[2]
    assert batch.pixels[0, :, : height // 2 - 8].mean() > 0.9
    assert batch.pixels[0, :, height // 2 + 8 :].mean() < -0.9


def test_cache_info_keeps_sizes_until_an_image_changes(tmp_path: Path) -> None:
    (image,) = make_folder(tmp_path / "train/1_cat", [(64, 64)])
    assert plan_of(tmp_path / "train", cache_info=True).items[0].size == (64, 64)
    cache = json.loads((image.parent / "metadata_cache.json").read_text())
    assert cache[str(image)]["resolution"] == [64, 64]
    make_image(image, (128, 64))
    assert plan_of(tmp_path / "train", cache_info=True).items[0].size == (128, 64)


@pytest.mark.parametrize(
    "other",
    [
        *("[]", "null", "{", '{"PATH": 1}', '{"PATH": {"stamp": STAMP}}'),
        *('{"PATH": {"stamp": STAMP, "resolution": [0, 5]}}', '{"PATH": {"stamp": STAMP, "resolution": {}}}'),
        '{"PATH": {"stamp": STAMP, "resolution": ["a", null]}}',
    ],
)
def test_a_metadata_cache_in_a_different_format_is_rebuilt(tmp_path: Path, other: str) -> None:
    (image,) = make_folder(tmp_path / "train/1_cat", [(64, 96)])
    cache = image.parent / "metadata_cache.json"
    assert plan_of(tmp_path / "train", cache_info=True).items[0].size == (64, 96)
    good = json.loads(cache.read_text())
    stamp = good[str(image)]["stamp"]
    cache.write_text(other.replace("PATH", str(image)).replace("STAMP", json.dumps(stamp)))
    assert plan_of(tmp_path / "train", cache_info=True).items[0].size == (64, 96)
    assert json.loads(cache.read_text()) == good
    entry = {"stamp": stamp[:2], "resolution": [96, 64]}  # of a version that did not turn PNG
    cache.write_text(json.dumps({str(image): entry}))
    assert plan_of(tmp_path / "train", cache_info=True).items[0].size == (64, 96)
    cache.unlink()
    cache.mkdir()
    told: list[str] = []
    assert len(plan_of(tmp_path / "train", cache_info=True, told=told).items) == 1
    assert told[0].startswith("cache_info: ")


# --- metadata files


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_metadata_file_gives_captions_and_tags(tmp_path: Path, suffix: str) -> None:
    for name in ("a.png", "sub/b.png", "c.png"):
        make_image(tmp_path / "images" / name)
    entries = {
        "a": {"caption": "a cat", "tags": "cute, small"},
        "sub/b.png": {"tags": "only tags"},
        str(tmp_path / "images/c.png"): {"caption": "alone"},
    }
    metadata = tmp_path / f"meta{suffix}"
    lines = [json.dumps({"image_path": key, **entry}) for key, entry in entries.items()]
    metadata.write_text(json.dumps(entries) if suffix == ".json" else "\n".join(lines))
    plan = planned(in_json=metadata, train_data_dir=tmp_path / "images", dataset_repeats=3)
    assert captions_of(plan) == {"a.png": "a cat,cute, small", "b.png": "only tags", "c.png": "alone"}
    assert {item.repeats for item in plan.items} == {3}


SEPARATORS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e")
"""What str.splitlines takes for the end of a line, and JSON, TOML and people do not."""


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_caption_in_a_metadata_file_ends_where_its_line_does(tmp_path: Path, suffix: str) -> None:
    captions = {f"{number}.png": f"on a mat,{mark}asleep" for number, mark in enumerate(SEPARATORS)}
    captions |= {"long.png": "one\r\ntwo", "many.png": ["three", "four"]}
    for name in captions:
        make_image(tmp_path / "images" / name)
    metadata = tmp_path / f"m{suffix}"
    rows = [{"image_path": name, "caption": caption, "tags": ["x", "y"]} for name, caption in captions.items()]
    lines = [json.dumps(row, ensure_ascii=False).replace("\\u0085", "\x85") for row in rows]
    table = json.dumps({row["image_path"]: row for row in rows}, ensure_ascii=False)
    metadata.write_text("\n".join(lines) if suffix == ".jsonl" else table, encoding="utf-8")
    told: list[str] = []
    plan = planned(in_json=metadata, train_data_dir=tmp_path / "images", told=told)
    expected = captions | {"long.png": "one", "many.png": "three"}
    assert captions_of(plan) == {name: f"{caption},x,y" for name, caption in expected.items()}
    assert [each.partition(" Only")[0] for each in told] == [f"2 of 9 captions in 'm{suffix}' have more than one line."]
    assert told[0].endswith(": long.png, many.png")
    wild = planned(in_json=metadata, train_data_dir=tmp_path / "images", enable_wildcard=True)
    assert captions_of(wild)["many.png"] == "three,x,y\nfour,x,y"
    assert metadata_hint(str(metadata)).text == "9 images"


@pytest.mark.parametrize("words", [5, True, {"en": "a cat"}, ["a", 5]])
@pytest.mark.parametrize("name", ["caption", "tags"])
def test_a_caption_that_is_not_text_is_refused(tmp_path: Path, name: str, words: object) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"a": {"caption": None, name: words}}))
    with pytest.raises(ValueError, match=rf"m\.json: {name} of 'a' must be a string or a list of strings"):
        planned(in_json=tmp_path / "m.json", train_data_dir=tmp_path)


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": "caption"}', '{"a": {"image_size": 5}}'])
def test_an_invalid_metadata_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.json").write_text(content)
    with pytest.raises(ValueError, match=r"metadata_file: .*meta\.json"):
        planned(in_json=tmp_path / "meta.json", train_data_dir=tmp_path)


# --- masks


def test_an_image_without_its_mask_is_refused_by_name(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64)] * 2)
    make_image(tmp_path / "masks/00.png")
    with pytest.raises(ValueError, match=r"conditioning_data_dir: .* has no mask for 01\.png"):
        plan_of(tmp_path / "train", masked_loss=True, conditioning_data_dir=tmp_path / "masks")


def test_masks_can_be_in_a_folder_named_like_the_image_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64)])
    mask = make_image(tmp_path / "masks/1_cat/00.png")
    plan = plan_of(tmp_path / "train", masked_loss=True, conditioning_data_dir=tmp_path / "masks")
    assert [item.mask for item in plan.items] == [mask]


def test_stretched_and_black_masks_are_reported(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64)] * 4)
    for number, size in enumerate([(32, 32), (64, 65), (128, 64), (64, 64)]):
        make_image(tmp_path / f"masks/0{number}.png", size)
    Image.new("L", (64, 64)).save(tmp_path / "masks/03.png")
    told: list[str] = []
    plan_of(tmp_path / "train", masked_loss=True, conditioning_data_dir=tmp_path / "masks", told=told)
    assert told == [
        "conditioning_data_dir: 1 of 4 masks differ in aspect ratio from their image and are stretched to fit: "
        "02.png (128x64 for 64x64)",
        "conditioning_data_dir: 1 of 4 masks are completely black, so these images do not train anything: 03.png",
    ]


def test_a_folder_of_masks_is_not_read_without_masked_loss(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64)])
    plan = plan_of(tmp_path / "train", conditioning_data_dir=tmp_path / "missing")
    assert [item.mask for item in plan.items] == [None]


def test_masked_loss_without_masks_is_reported(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/1_cat", [(64, 64)])
    told: list[str] = []
    plan_of(tmp_path / "train", masked_loss=True, told=told)
    assert [text.split(" because")[0] for text in told] == ["masked_loss: has no effect"]


# --- validation, regularisation, several datasets


@pytest.mark.parametrize("count", [2, 5, 9, 30])
@pytest.mark.parametrize("split", [0.1, 0.3, 0.5])
def test_validation_images_are_kept_out_of_training(tmp_path: Path, count: int, split: float) -> None:
    make_folder(tmp_path / "train/2_cat", [(64, 64)] * count)
    plan = plan_of(tmp_path / "train", validation_split=split)
    training = {item.path for item in plan.items}
    held = {item.path for item in plan.validation.items} if plan.validation else set()
    assert not training & held
    assert len(training | held) == count
    again = plan_of(tmp_path / "train", validation_split=split)
    assert {item.path for item in again.items} == training


def test_validation_seed_decides_the_split_and_else_the_seed(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/2_cat", [(64, 64)] * 12)

    def held(seed: int, **values: Any) -> set[Path]:
        plan = plan_of(tmp_path / "train", seed=seed, validation_split=0.5, **values)
        assert plan.validation is not None
        return {item.path for item in plan.validation.items}

    assert held(1) != held(2)
    assert held(1, validation_seed=5) == held(2, validation_seed=5)


def test_a_dataset_may_be_for_validation_alone(tmp_path: Path) -> None:
    for name in ("train", "held"):
        make_folder(tmp_path / name, [(64, 64)] * 2)
    config = tmp_path / "data.toml"
    text = f"""[[datasets]]
[[datasets.subsets]]
image_dir = "{tmp_path / "train"}"
[[datasets]]
validation_split = 1.0
bucket_reso_steps = 16
[[datasets.subsets]]
image_dir = "{tmp_path / "held"}"
num_repeats = 9
"""
    config.write_text(text)
    told: list[str] = []
    plan = planned(told, dataset_config=config)
    assert plan.validation is not None
    assert [(item.path.parent.name, item.dataset) for item in plan.items] == [("train", 0)] * 2
    assert [(item.path.parent.name, item.repeats) for item in plan.validation.items] == [("held", 1)] * 2
    assert dataset_metadata(plan).num_validation_images == 2
    assert told == ["bucket_reso_steps: 16 is rounded up to 32, a multiple of 32, as SDXL needs"]
    config.write_text(text.replace("[[datasets]]", "[[datasets]]\nvalidation_split = 1.0", 1))
    with pytest.raises(ValueError, match="validation_split: 1 leaves no images for training"):
        planned(told, dataset_config=config)


def test_validation_is_deterministic_and_has_no_regularisation(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/5_cat", [(64, 64)] * 4)
    make_folder(tmp_path / "reg/1_animal", [(64, 64)] * 2)
    lively = {"shuffle_caption": True, "caption_dropout_rate": 1.0, "flip_aug": True, "random_crop": True}
    plan = plan_of(tmp_path / "train", reg_data_dir=tmp_path / "reg", validation_split=0.5, **lively)
    assert plan.validation is not None
    assert [(item.repeats, item.subset.is_reg) for item in plan.validation.items] == [(1, False)] * 2
    first, second = (
        [(batch.captions, batch.pixels.sum()) for batch in loader_of(plan.validation).epoch(1)] for _ in range(2)
    )
    assert first == second
    assert all(captions[0].text.startswith("a, b, c") for captions, _ in first)


@pytest.mark.parametrize(
    ("repeats", "trained", "expected"),
    [
        ([1, 1], 5, [3, 2]),
        ([1, 1, 1, 1], 2, [1, 1, 0, 0]),
        ([3, 3], 4, [3, 3]),
        ([2, 1], 3, [2, 1]),
        ([], 4, []),
    ],
)
def test_regularisation_images_match_the_training_images(repeats: list[int], trained: int, expected: list[int]) -> None:
    assert balance_regularisation(repeats, trained) == expected


def test_one_folder_is_trained_at_several_resolutions(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    make_folder(folder, [(64, 64), (128, 64)])
    config = tmp_path / "data.toml"
    datasets = [
        f'[[datasets]]\nresolution = {resolution}\nbatch_size = {size}\n[[datasets.subsets]]\nimage_dir = "{folder}"\n'
        for resolution, size in ((64, 1), (96, 2))
    ]
    config.write_text("\n".join(datasets))
    plan = planned(dataset_config=config)
    assert len(plan.items) == 4
    facts = dataset_metadata(plan)
    assert sorted(facts.dataset_dirs) == ["cats", "cats (2)"]
    assert facts.datasets is not None
    assert [entry["batch_size_per_device"] for entry in facts.datasets] == [1, 2]
    assert json.loads(json.dumps(facts.datasets))[0]["subsets"][0]["image_dir"] == "cats"


def test_a_folder_listed_twice_counts_once(tmp_path: Path) -> None:
    make_folder(tmp_path / "cats", [(64, 64)])
    subset = f'[[datasets.subsets]]\nimage_dir = "{tmp_path / "cats"}"\n'
    never = subset.replace("cats", "never") + "num_repeats = 0\n"
    (tmp_path / "data.toml").write_text(f"[[datasets]]\n{subset}{subset}{never}")
    told: list[str] = []
    assert len(planned(told, dataset_config=tmp_path / "data.toml").items) == 1
    assert "listed twice" in told[0] or "listed twice" in told[1]


def test_a_resolution_that_the_family_cannot_train_is_rounded_with_a_warning(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    told: list[str] = []
    plan = planned(told, train_data_dir=tmp_path, resolution="90,50", enable_bucket=False)
    assert plan.buckets() == {Extent(96, 64): 1}
    assert told == ["resolution: 90,50 is rounded to 96,64, a multiple of 32, as SDXL needs"]


# --- facts


def test_dataset_facts_count_the_images_of_an_epoch(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/3_cat", [(64, 64), (64, 64), (192, 64)], caption="Cute, cat")
    make_folder(tmp_path / "reg/1_animal", [(64, 64)])
    plan = plan_of(tmp_path / "train", reg_data_dir=tmp_path / "reg", train_batch_size=4)
    facts = dataset_metadata(plan)
    assert (facts.num_train_images, facts.num_reg_images, facts.num_validation_images) == (9, 9, 0)
    assert facts.tag_frequency["3_cat"] == {"cute": 3, "cat": 3, "0": 1, "1": 1, "2": 1}
    assert facts.dataset_dirs == {"3_cat": {"n_repeats": 3, "img_count": 3}}
    assert facts.reg_dataset_dirs == {"1_animal": {"n_repeats": 1, "img_count": 1}}
    assert plan.buckets() == {Extent(64, 64): 15, Extent(96, 32): 3}
    assert facts.bucket_info is not None
    assert facts.bucket_info["buckets"] == {
        0: {"resolution": [64, 64], "count": 15},
        1: {"resolution": [96, 32], "count": 3},
    }
    assert batch_shapes(plan) == {
        BatchShape(extent=Extent(64, 64), images=3): 1,
        BatchShape(extent=Extent(64, 64), images=4): 3,
        BatchShape(extent=Extent(96, 32), images=3): 1,
    }
    assert facts.num_batches_per_epoch == 5 == len(loader_of(plan))
    assert facts.datasets is None
