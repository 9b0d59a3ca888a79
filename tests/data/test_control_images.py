"""Control images: found by name, resized, cached and batched with the images that they belong to."""

import json
import time
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import torch
from PIL import Image
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.caches.text_caching import cache_text
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.dataset import DataPlan, plan_data
from sd_scripts.data.plan.epochs import BatchShape, batch_shapes
from sd_scripts.data.reader import BatchReader
from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.controls import ControlRules
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.flux.vae import LATENTS
from sd_scripts.families.flux_kontext.card import CARD
from sd_scripts.formats.images.control_images import find_controls
from sd_scripts.formats.images.metadata_file import control_paths
from sd_scripts.planning.compile_plan import tokens_of
from sd_scripts.planning.memory import plan_memory
from sd_scripts.planning.speeds import _shape
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder, make_image

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "fixtures_control_images.json").read_text())
SMALL = {"resolution": "64", "enable_bucket": True, "min_bucket_reso": 32, "max_bucket_reso": 128}
SMALL |= {"bucket_reso_steps": 32, "caption_extension": ".txt"}


def settings_of(**values: Any) -> Settings:
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return Settings(script_for("flux_kontext", "lora"), SMALL | texts)


def plan_of(card: FamilyCard = CARD, *, text_sees_controls: bool = False, **values: Any) -> DataPlan:
    return plan_data(
        settings_of(**values),
        card,
        seed=7,
        warn=pytest.fail,
        text_sees_controls=text_sees_controls,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three images, one of which has two control images of a different size."""
    make_folder(tmp_path / "train/1_cat", [(64, 64)] * 3)
    for number, name in enumerate(("00.png", "01_1.png", "01_0.png", "02.png")):
        make_image(tmp_path / "before" / name, (48, 40) if name.startswith("01") else (64, 64), seed=20 + number)
    return tmp_path


def batches_of(plan: DataPlan, latents: Any = None, text: Any = None, epoch: int = 1) -> list[Batch]:
    return list(BatchLoader(BatchReader(plan, latents=latents, text=text), warn=pytest.fail).epoch(epoch))


def test_control_images_are_found_by_name_as_in_the_reference(tmp_path: Path) -> None:
    for number, case in enumerate(REFERENCE["matching"]):
        folder = tmp_path / str(number)
        for name in case["control"]:
            make_image(folder / name, (8, 8))
        images = [Path("/images") / name for name in case["images"]]
        if case["result"] is None:
            with pytest.raises(ValueError, match=r"has no control image for 1 of|must be named like its image"):
                find_controls(str(folder), "cat", images)
        else:
            found = find_controls(str(folder), "cat", images)
            assert {path.name: [each.name for each in paths] for path, paths in found.items()} == case["result"]


def test_a_folder_named_like_the_subset_has_its_control_images(tmp_path: Path) -> None:
    control = make_image(tmp_path / "10_cat/a.png", (8, 8))
    assert find_controls(str(tmp_path), "10_cat", [Path("/x/a.png")]) == {Path("/x/a.png"): (control,)}


def test_many_control_images_are_found_in_proportional_time_whatever_their_normalization(tmp_path: Path) -> None:
    names = [f"été_{number:05}_b" for number in range(2_500)]
    for number, name in enumerate(names):
        (tmp_path / f"{normalize('NFD' if number % 3 else 'NFC', name)}_{number % 2}.png").touch()
    (tmp_path / "été.png").touch()
    images = [Path(f"/x/{name}.jpg") for name in ("été", *names)]
    begin = time.process_time()
    found = find_controls(str(tmp_path), "cat", images)
    assert time.process_time() - begin < 1.0
    expected = {"été.jpg": "été.png"} | {f"{name}.jpg": f"{name}_{n % 2}.png" for n, name in enumerate(names)}
    assert {image.name: [normalize("NFC", path.name) for path in own] for image, own in found.items()} == {
        image: [control] for image, control in expected.items()
    }


def test_an_area_is_kept_as_the_reference_keeps_it() -> None:
    for case in REFERENCE["sizes"]:
        fit = ControlRules(control_resolution=tuple(case["area"])).fit(tuple(case["image"]), Extent(64, 64))
        assert list(fit.bucket.size) == case["size"], case


def test_without_an_area_they_get_the_size_of_their_image_or_keep_their_own() -> None:
    sample = Extent(96, 64)
    assert ControlRules().fit((500, 400), sample).bucket == sample
    kept = ControlRules(no_resize_control=True)
    assert (kept.fit((70, 40), sample).bucket, kept.fit((70, 40), sample).resized) == (Extent(64, 32), (70, 40))
    bounded = ControlRules(no_resize_control=True, control_resolution=(64, 64))
    assert bounded.fit((70, 40), sample).bucket == Extent(64, 32)
    assert bounded.fit((128, 128), sample).bucket == Extent(64, 64)
    with pytest.raises(ValueError, match="less than 16x16"):
        kept.fit((70, 12), sample)


def test_a_batch_has_images_whose_control_images_are_equal_in_number_and_size(root: Path) -> None:
    files = {"train_data_dir": root / "train", "control_directory": root / "before", "train_batch_size": 4}
    plan = plan_of(**files, no_resize_control=True)
    one, two = Extent(64, 64, controls=((64, 64),)), Extent(64, 64, controls=((48, 32),) * 2)
    assert plan.buckets() == {two: 1, one: 2}
    shapes = batch_shapes(plan)
    assert shapes == {BatchShape(extent=two, images=1): 1, BatchShape(extent=one, images=2): 1}
    assert sorted(str(shape) for shape in shapes) == ["64x64+48x32+48x32x1", "64x64+64x64x2"]
    assert {_shape(str(shape)) for shape in shapes} == set(shapes)
    assert {tokens_of(CARD, shape) for shape in shapes} == {16 + 16, 16 + 2 * 6}
    for batch in batches_of(plan):
        assert [control.shape for control in batch.controls] == [
            (len(batch), 3, height, width) for width, height in batch.extent.controls
        ]
    (numbered,) = [item for item in plan.items if len(item.controls) == 2]
    assert [control.path.name for control in numbered.controls] == ["01_0.png", "01_1.png"]


def test_memory_counts_the_tokens_of_control_images_and_the_text_once() -> None:
    settings = from_values(script_for("flux_kontext", "lora"), {"learning_rate": 1e-4, "mixed_precision": "bf16"})
    shapes = [Extent(512, 512), Extent(512, 512, controls=((512, 256), (256, 256)))]
    plans = [plan_memory(settings, [BatchShape(extent=extent, images=1)]) for extent in shapes]
    alone, more = (plan.phases["training"] for plan in plans if plan)
    assert CARD.plan.memory
    assert more - alone == pytest.approx(CARD.plan.memory.activations.eager.per_unit * (32 * 16 + 16 * 16), rel=1e-6)


class Encoder:
    def __init__(self) -> None:
        self.encoded = 0

    def __call__(self, pixels: Tensor) -> Tensor:
        self.encoded += len(pixels)
        return torch.nn.functional.avg_pool2d(pixels, 8).repeat(1, 6, 1, 1)[:, :16]


@pytest.mark.parametrize("to_disk", [True, False])
def test_their_latents_are_cached_and_flipped_with_their_image(root: Path, to_disk: bool) -> None:
    plan, encode = plan_of(train_data_dir=root / "train", control_directory=root / "before", flip_aug=True), Encoder()
    job = CacheJob(warn=pytest.fail, to_disk=to_disk)
    latents = cache_latents(plan, encode, encoder_key="vae", layout=LATENTS, job=job)
    flipped = 0
    for cached, fresh in zip(batches_of(plan, latents), batches_of(plan), strict=True):
        assert cached.captions == fresh.captions
        assert len(cached.controls) == len(fresh.controls) > 0
        for ours, pixels in zip(cached.controls, fresh.controls, strict=True):
            torch.testing.assert_close(ours, encode(pixels))
            flipped += bool(pixels[0, 0, 0, 0] > pixels[0, 0, 0, -1])  # the images are brighter on the right
    assert 0 < flipped < 4


def test_a_changed_control_image_is_encoded_again_and_nothing_else(root: Path) -> None:
    files = {"train_data_dir": root / "train", "control_directory": root / "before"}
    job = CacheJob(warn=pytest.fail, to_disk=True)

    def encoded() -> int:
        encode = Encoder()
        cache_latents(plan_of(**files), encode, encoder_key="vae", layout=LATENTS, job=job)
        return encode.encoded

    assert (encoded(), encoded()) == (3 + 4, 0)
    make_image(root / "before/02.png", (64, 64), seed=99)
    assert encoded() == 1


@pytest.mark.parametrize("to_disk", [True, False])
def test_one_caption_is_encoded_for_each_image_shown_with_it(root: Path, to_disk: bool) -> None:
    """And again once such an image has changed."""
    for caption in (root / "train/1_cat").glob("*.txt"):
        caption.write_text("make it red")
    files = {"train_data_dir": root / "train", "control_directory": root / "before"}
    job = CacheJob(warn=pytest.fail, to_disk=to_disk)
    seen: list[Caption] = []

    def encode(captions: list[Caption]) -> dict[str, Tensor]:
        seen.extend(captions)
        return {"count": torch.tensor([[len(caption.images)] for caption in captions])}

    def encoded(*, sees: bool) -> int:
        seen.clear()
        plan = plan_of(text_sees_controls=sees, **files)
        store = cache_text(plan, encode, encoder_key="te", suffix=f"te_{sees}", job=job)
        batches = BatchLoader(BatchReader(plan, text=store), warn=pytest.fail).epoch(1)
        assert all(len(batch.controls) == len(batch.captions[0].images) for batch in batches) or not sees
        return len(seen)

    again = 0 if to_disk else 3
    assert (encoded(sees=False), encoded(sees=True), encoded(sees=True)) == (1, 3, again)
    make_image(root / "before/02.png", (64, 64), seed=99)
    assert encoded(sees=True) == (1 if to_disk else 3)


@pytest.mark.parametrize("to_disk", [True, False])
def test_a_flipped_image_uses_the_caption_encoded_with_flipped_control_images(root: Path, to_disk: bool) -> None:
    files = {"train_data_dir": root / "train", "control_directory": root / "before"}
    plan = plan_of(text_sees_controls=True, flip_aug=True, **files)
    seen: list[Caption] = []

    def encode(captions: list[Caption]) -> dict[str, Tensor]:
        seen.extend(captions)
        return {"flipped": torch.tensor([[caption.flipped] for caption in captions])}

    for again in (6, 0 if to_disk else 6):
        seen.clear()
        job = CacheJob(warn=pytest.fail, to_disk=to_disk)
        store = cache_text(plan, encode, encoder_key="te", suffix="te", job=job)
        assert len(seen) == again
    found = []
    for batch in [each for epoch in (1, 2, 3) for each in batches_of(plan, text=store, epoch=epoch)]:
        assert batch.pixels is not None
        flipped = [bool(each[0, 0, 0] > each[0, 0, -1]) for each in batch.pixels]  # brighter on the right
        assert flipped == batch.text["flipped"].flatten().tolist() == [each.flipped for each in batch.captions]
        found += flipped
    assert len(set(found)) == 2


def test_dataset_files_and_metadata_files_name_control_images(root: Path) -> None:
    assert control_paths({"control_path_5": "d", "control_path_1": "c", "caption": "x"}) == ["c", "d"]
    assert control_paths({"control_path": "c"}) == ["c"]
    listed = root / "list.jsonl"
    lines = [
        {"image_path": "00.png", "caption": "x", "control_path_0": str(root / "before/01_0.png")},
        {"image_path": "01.png", "caption": "y", "control_path": "02.png"},
    ]
    listed.write_text("\n".join(map(json.dumps, lines)))
    by_list = plan_of(in_json=listed, train_data_dir=root / "train/1_cat")
    names = {item.path.name: [control.path.name for control in item.controls] for item in by_list.items}
    assert names == {"00.png": ["01_0.png"], "01.png": ["02.png"]}
    listed.write_text(json.dumps({**lines[0], "control_path_0": "gone.png"}))
    with pytest.raises(ValueError, match=r"metadata_file: control image not found: gone.png"):
        plan_of(in_json=listed, train_data_dir=root / "train/1_cat")

    config = root / "data.toml"
    config.write_text(f"""
        [general]
        control_resolution = [96, 64]
        [[datasets]]
        [[datasets.subsets]]
        image_dir = {str(root / "train/1_cat")!r}
        control_directory = {str(root / "before")!r}
    """)
    plan = plan_of(dataset_config=config)
    assert {size for extent in plan.buckets() for size in extent.controls} == {(80, 64)}
    with pytest.raises(ValueError, match=r"^control_directory: FLUX.1 does not use control images"):
        plan_of(card_of("flux"), dataset_config=config)


def test_the_dataset_files_of_musubi_tuner_are_read(root: Path) -> None:
    config = root / "musubi.toml"
    config.write_text(f"""
        [general]
        resolution = [96, 64]
        batch_size = 2
        [[datasets]]
        image_directory = {str(root / "train/1_cat")!r}
        control_directory = {str(root / "before")!r}
        cache_directory = {str(root / "cache")!r}
        flux_kontext_no_resize_control = true
        num_repeats = 3
    """)
    settings, told = settings_of(dataset_config=config, enable_bucket=False), list[str]()
    plan = plan_data(settings, CARD, seed=1, warn=told.append)
    assert plan.buckets() == {
        Extent(96, 64, controls=((48, 32),) * 2): 3,
        Extent(96, 64, controls=((64, 64),)): 6,
    }
    assert [dataset.batch_size for dataset in plan.blueprint.datasets] == [2]
    assert told == [
        "dataset_config: datasets[0].cache_directory (line 8) has no effect: caches are stored next to the images"
    ]


def problems_of(**values: Any) -> list[str]:
    found = preflight.found_by(preflight.data_checks.CHECKS, settings_of(**values))
    return [f"{', '.join(problem.names)}: {problem.text}" for problem in found]


def test_bad_control_folders_are_reported_before_anything_is_loaded(root: Path) -> None:
    images = {"train_data_dir": root / "train"}
    assert problems_of(**images, control_directory=root / "before") == []
    (unset,) = problems_of(**images)
    assert unset.startswith("control_directory: not set; choose the folder with the control images")
    (root / "empty").mkdir()
    (empty,) = problems_of(**images, control_directory=root / "empty")
    assert empty.startswith(f"control_directory: no images in '{root / 'empty'}'")
    (root / "before/02.png").rename(root / "empty/02.png")
    (missing,) = problems_of(**images, control_directory=root / "before")
    assert missing.endswith("has no control image for 1 of 3 images: 02.png; name it like the image")
    with pytest.raises(ValueError, match=r"control_directory: .* has no control image for 1 of 3 images"):
        plan_of(**images, control_directory=root / "before")


def test_a_broken_one_and_options_that_change_its_image_alone_are_refused(root: Path) -> None:
    files = {"train_data_dir": root / "train", "control_directory": root / "before"}
    with pytest.raises(ValueError, match=r"^random_crop: changes an image and not its control images"):
        plan_of(**files, random_crop=True)
    with pytest.raises(ValueError, match=r"^train_data_dir: no image has a control image"):
        plan_of(train_data_dir=root / "train")
    (root / "before/02.png").write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"^control_directory: the control image .*02.png cannot be read"):
        plan_of(**files)


def test_one_that_its_text_encoder_cannot_see_is_refused_when_the_data_is_planned(root: Path) -> None:
    files = {"train_data_dir": root / "train", "control_directory": root / "before", "control_resolution": 64}
    edit = card_of("qwen_image_edit")
    make_image(root / "before/02.png", (6400, 32))
    assert len(plan_of(edit, **files).items) == 3
    make_image(root / "before/02.png", (6432, 32))
    with pytest.raises(
        ValueError, match=r"^control_directory: the control image '.*02.png' is too elongated: .*crop it"
    ):
        plan_of(edit, **files)
    assert len(plan_of(CARD, **files).items) == 3


def test_control_directory_is_for_train_data_dir_alone() -> None:
    for other in ("dataset_config", "in_json"):
        values = {"learning_rate": 1e-4, "control_directory": "/before", other: "/data.json"}
        told = from_values(script_for("flux_kontext", "lora"), values).remarks
        assert [remark.name for remark in told if remark.text.startswith("has no effect: ")] == ["control_directory"]


def test_transparency_of_a_control_image_is_white(root: Path) -> None:
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(root / "before/02.png")
    plan = plan_of(train_data_dir=root / "train", control_directory=root / "before", alpha_mask=True)
    shown = [batch.controls[0].min().item() for batch in batches_of(plan) if batch.captions == [Caption("a, b, c, 2")]]
    assert shown == [1.0]
