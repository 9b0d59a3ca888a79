"""Clips as data: planned next to images, batched, cached and seen as often as they should be."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sd_scripts.data.caches.caching import CacheJob, LatentLayout
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.plan.blueprint import read_blueprint
from sd_scripts.data.plan.buckets import BucketRules, Buckets, Extent, fit_into
from sd_scripts.data.plan.dataset import DataPlan, plan_data
from sd_scripts.data.plan.epochs import batch_shapes, plan_epoch
from sd_scripts.data.reader import BatchReader
from sd_scripts.families.cards.clip_facts import ClipFacts
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.dataset import DatasetOptions
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.checks.between import remarks_between
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.clips import write_clip
from tests.support.clips import counting_frames, number_of, write_frames
from tests.support.data import make_image, settings_of

REFERENCE = json.loads((Path(__file__).parents[1] / "reference/fixtures_clips.json").read_text(encoding="utf-8"))
CARD = replace(card_of("sdxl"), clips=ClipFacts(fps=8), bucket_multiple=16, capabilities=frozenset({"control_images"}))
"""A family of clips of 4n + 1 frames at 8 per second."""
LATENTS = LatentLayout(
    suffix="clip",
    shape=lambda extent: (3, (extent.frames - 1) // 4 + 1, extent.height // 16, extent.width // 16),
)
SIZE = (96, 64)
LOSSLESS = {"qp": "0", "preset": "ultrafast"}


def encode(pixels: Tensor) -> Tensor:
    """Every fourth frame, averaged over 16x16 pixels."""
    assert pixels.dim() == 5
    return torch.nn.functional.avg_pool3d(pixels[:, :, ::4], (1, 16, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips, of 9 frames at 8 per second, 20 at 16, and 3, a folder of 5 frames, and an image; each has a
    caption."""
    root = tmp_path_factory.mktemp("train") / "2_cat"
    for name, frames, fps in (("nine", 9, 8), ("twenty", 20, 16), ("three", 3, 8)):
        write_clip(root / f"{name}.mp4", counting_frames(frames, SIZE), fps, options=LOSSLESS)
    write_frames(root / "folder", counting_frames(5, SIZE))
    make_image(root / "still.png", (96, 64))
    for name in ("nine", "twenty", "three", "folder", "still"):
        (root / f"{name}.txt").write_text(name)
    return root


def plan_of(told: list[str] | None = None, card: Any = CARD, seed: int = 1, **dataset: Any) -> DataPlan:
    """The plan of one dataset, at 96x64."""
    subsets = [dataset.pop("subset")]
    config = {
        "general": {"resolution": [96, 64], "caption_extension": ".txt"},
        "datasets": [{**dataset, "subsets": subsets}],
    }
    file = Path(subsets[0].get("image_dir") or Path(subsets[0]["metadata_file"]).parent).parent / "data.json"
    file.write_text(json.dumps(config))
    settings = settings_of(dataset_config=file, enable_bucket=False)
    return plan_data(settings, card, seed=seed, warn=pytest.fail if told is None else told.append)


def parts(plan: DataPlan) -> list[tuple[str, str]]:
    return [(item.path.name, str(item.span or "")) for item in plan.items]


def test_images_and_parts_of_clips_are_planned_with_captions_and_reasons(folder: Path) -> None:
    told: list[str] = []
    subset = {"image_dir": str(folder), "num_repeats": 2}
    plan = plan_of(told, subset=subset, target_frames=[5, 6], frame_extraction="chunk")
    assert parts(plan) == [
        ("nine.mp4", "00000-005"),
        ("still.png", ""),
        ("twenty.mp4", "00000-005"),
        ("twenty.mp4", "00005-005"),
    ]
    assert plan.buckets() == {Extent(96, 64): 2, Extent(96, 64, 5): 6}
    assert [item.caption for item in plan.items] == ["nine", "still", "twenty", "twenty"]
    assert told[1:] == [
        "target_frames: 6 of '2_cat' is rounded down, since the model is trained on multiples of 4 frames and one more;"
        " 5 are trained",
        "target_frames: 1 clip in '2_cat' is skipped, with fewer than 5 frames at 8 per second: three.mp4 (3)",
    ]


def test_a_family_of_long_clips_skips_short_ones_and_images(folder: Path) -> None:
    assert CARD.clips
    long = replace(CARD, clips=replace(CARD.clips, shortest=9))
    told: list[str] = []
    plan = plan_of(told, card=long, subset={"image_dir": str(folder)})
    assert parts(plan) == [("nine.mp4", "00000-009"), ("twenty.mp4", "00000-009")]
    assert told[1:] == [
        "1 image in '2_cat' is skipped, since this model is trained on clips of at least 9 frames: still.png",
        "target_frames: 1 clip in '2_cat' is skipped, with fewer than 9 frames at 8 per second: three.mp4 (3)",
    ]


def test_a_family_of_images_skips_videos(folder: Path) -> None:
    told: list[str] = []
    plan = plan_of(told, card=card_of("sdxl"), subset={"image_dir": str(folder)}, resolution=[64, 64])
    assert parts(plan) == [("still.png", "")]
    assert (
        "3 videos in '2_cat' are skipped, since this model is trained on images: nine.mp4, three.mp4, twenty.mp4"
        in told
    )


def test_a_subset_of_clips_alone_takes_folders_of_frames_and_no_images(folder: Path) -> None:
    plan = plan_of([], subset={"image_dir": str(folder), "media": "clips"}, target_fps=0)
    lengths = {item.path.name: item.fit.bucket.frames for item in plan.items}
    assert lengths == {"folder": 5, "nine.mp4": 9, "three.mp4": 1, "twenty.mp4": 17}
    assert dict(zip(lengths, [item.caption for item in plan.items], strict=True))["folder"] == "folder"


def test_every_part_is_seen_as_often_as_it_is_repeated(folder: Path) -> None:
    subset = {"image_dir": str(folder), "num_repeats": 3}
    plan = plan_of([], subset=subset, target_frames=[1, 5], frame_extraction="chunk", batch_size=2)
    seen = Counter(pick[0] for batch in plan_epoch(plan, 1) for pick in batch.picks)
    assert seen == dict.fromkeys(range(len(plan.items)), 3)
    assert sum(shape.images * count for shape, count in batch_shapes(plan).items()) == 3 * len(plan.items)


def test_the_parts_of_a_clip_are_all_trained_or_all_held_out(folder: Path) -> None:
    subset = {"image_dir": str(folder), "media": "clips"}
    for seed in range(6):
        plan = plan_of([], subset=subset, target_frames=[1], frame_extraction="chunk", validation_split=0.5, seed=seed)
        assert plan.validation
        trained, held = ({item.path for item in each.items} for each in (plan, plan.validation))
        assert not trained & held
        assert len(trained | held) == 4


def test_batches_have_the_frames_of_their_parts(folder: Path) -> None:
    """A clip of 16 frames per second is trained at 8: every second frame."""
    subset = {"image_dir": str(folder), "flip_aug": True}
    plan = plan_of([], subset=subset, target_frames=[5], frame_extraction="chunk")
    shapes, shown = set(), {}
    for batch in BatchLoader(BatchReader(plan), warn=pytest.fail).epoch(1):
        assert batch.pixels is not None
        shapes.add(tuple(batch.pixels.shape))
        frames = ((batch.pixels[0].permute(1, 2, 3, 0) + 1) * 127.5).numpy()
        shown[batch.captions[0].text, number_of(frames[0])] = [number_of(frame) for frame in frames]
    assert shapes == {(1, 3, 1, 64, 96), (1, 3, 5, 64, 96)}
    assert shown["nine", 0] == [0, 1, 2, 3, 4]
    assert shown["twenty", 0] == [0, 2, 4, 6, 8]
    assert shown["twenty", 10] == [10, 12, 14, 16, 18]


def test_latents_are_cached_for_each_part_and_stale_at_a_different_rate(folder: Path) -> None:
    encoded: list[int] = []

    def count(pixels: Tensor) -> Tensor:
        encoded.append(len(pixels))
        return encode(pixels)

    def cached(**values: Any) -> list[Tensor]:
        encoded.clear()
        subset = {"image_dir": str(folder), "flip_aug": True}
        plan = plan_of([], subset=subset, target_frames=[5], **values)
        latents = cache_latents(
            plan,
            count,
            encoder_key="vae",
            layout=LATENTS,
            job=CacheJob(warn=pytest.fail, to_disk=True),
            conditions=["first"],
            encode_conditions=lambda pixels: {"first": pixels[:, :, :1]},
        )
        fresh = BatchLoader(BatchReader(plan), warn=pytest.fail).epoch(1)
        batches = BatchLoader(BatchReader(plan, latents=latents), warn=pytest.fail).epoch(1)
        for batch, pixels in zip(batches, fresh, strict=True):
            assert batch.latents is not None and pixels.pixels is not None  # noqa: PT018
            assert torch.equal(batch.latents, encode(pixels.pixels))
            assert torch.equal(batch.conditioning["first"], pixels.pixels[:, :, :1]), "flipped like the latents"
        return encoded

    assert sum(cached()) == 6, "two clips and an image, each both ways"
    assert sum(cached()) == 0
    names = {path.name for path in folder.glob("*_clip.safetensors")}
    example = (
        REFERENCE["cache_names_example"]["latent"]
        .replace("clip40", "nine")
        .replace("-001_0160x0096_wan", "-005_0096x0064_clip")
    )
    assert names == {example, "twenty_00000-005_0096x0064_clip.safetensors", "still_0096x0064_clip.safetensors"}
    assert sum(cached(target_fps=4.0)) == 4, "other frames at the same place; nine is too short then"


def test_control_clips_follow_their_clip_and_repeat_their_last_frame(tmp_path: Path) -> None:
    write_clip(tmp_path / "train/1_cat/a.mp4", counting_frames(10, SIZE), 8, options=LOSSLESS)
    write_clip(tmp_path / "control/a.mkv", counting_frames(8, SIZE), 8, options=LOSSLESS)
    make_image(tmp_path / "control/a_1.png", (96, 64))
    subset = {"image_dir": str(tmp_path / "train/1_cat"), "control_directory": str(tmp_path / "control")}
    plan = plan_of([], subset=subset, target_frames=[5], frame_extraction="chunk")
    assert [str(item.fit.bucket) for item in plan.items] == ["96x64x5+96x64x5+96x64"] * 2
    assert Extent.parse(str(plan.items[0].fit.bucket)) == plan.items[0].fit.bucket
    shown = {}
    for batch in BatchLoader(BatchReader(plan), warn=pytest.fail).epoch(1):
        assert batch.pixels is not None
        clip, image = batch.controls
        assert image.shape == (1, 3, 1, 64, 96)
        numbers = [
            [number_of(((frame + 1) * 127.5).numpy()) for frame in each[0].movedim(1, 0)]
            for each in (batch.pixels, clip)
        ]
        shown[numbers[0][0]] = numbers[1]
    assert shown == {0: [0, 1, 2, 3, 4], 5: [5, 6, 7, 7, 7]}


def test_a_metadata_file_names_clips_and_folders_of_frames(folder: Path, tmp_path: Path) -> None:
    lines = [
        {"video_path": str(folder / "nine.mp4"), "caption": "a clip"},
        {"video_path": "folder", "caption": "frames"},
        {"image_path": "still.png", "caption": "an image"},
    ]
    file = tmp_path / "sub/data.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(map(json.dumps, lines)))
    plan = plan_of(subset={"metadata_file": str(file), "image_dir": str(folder)}, target_fps=0)
    assert {item.path.name: (item.caption, item.fit.bucket.frames) for item in plan.items} == {
        "nine.mp4": ("a clip", 9),
        "folder": ("frames", 5),
        "still.png": ("an image", 1),
    }


def test_a_clip_that_breaks_after_planning_is_replaced(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "train/1_cat"
    for name in ("a", "b"):
        write_clip(root / f"{name}.mp4", counting_frames(5, SIZE), 8, options=LOSSLESS)
    plan = plan_of([], subset={"image_dir": str(root)})
    (root / "a.mp4").write_bytes(b"broken")
    told: list[str] = []
    batches = list(BatchLoader(BatchReader(plan), warn=told.append).epoch(1))
    assert len(batches) == 2
    assert told == [
        f"{root / 'a.mp4'} cannot be read: it is damaged, cut off, or not a video (Invalid data found when processing "
        "input); another image of its bucket is used instead"
    ]


def test_buckets_match_musubi() -> None:
    different = []
    for case in REFERENCE["buckets_step16"]:
        rules = BucketRules(
            resolution=tuple(case["resolution"]),
            **{"enable_bucket": True, "follow_area": True},
            **{"bucket_reso_steps": 16, "min_bucket_reso": 0, "max_bucket_reso": 0},
        )
        buckets = Buckets(rules)
        picked = {size: buckets.fit(sides(size)) for size in case["pick"]}
        found = {size: list(fit.bucket.size) for size, fit in picked.items() if fit}
        if [*map(list, buckets.sizes)] != case["buckets"] or found != case["pick"]:
            different.append(case["resolution"])
        if case["resolution"] == [640, 640]:
            small = Buckets(replace(rules, bucket_no_upscale=True))
            fits = {size: small.fit(sides(size)) for size in REFERENCE["bucket_no_upscale_640"]}
            assert {size: list(fit.bucket.size) for size, fit in fits.items() if fit} == (
                REFERENCE["bucket_no_upscale_640"]
            )
    assert not different


def sides(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


def test_resizing_matches_musubi() -> None:
    for case in REFERENCE["resize_crop"]:
        fit = fit_into(Extent(*case["bucket"]), tuple(case["source"]))
        assert list(fit.resized) == case["scaled"]
        assert [(have - need) // 2 for have, need in zip(fit.resized, case["bucket"], strict=True)] == (
            case["crop_left_top"]
        )
    (size,) = Buckets(BucketRules(resolution=(640, 480), follow_area=True)).sizes
    assert {"1920x1080": list(size)} == REFERENCE["enable_bucket_false_640x480"]


def test_bucket_options_that_are_set_limit_the_buckets_of_clips(folder: Path) -> None:
    def rules(**values: Any) -> BucketRules:
        own = {"train_data_dir": str(folder.parent), "resolution": "960,544", "enable_bucket": True}
        settings = Settings(script_for("sdxl", "lora"), own | values)
        return read_blueprint(settings, pytest.fail, CARD.clips).datasets[0].buckets

    assert [list(size) for size in Buckets(rules()).sizes] == REFERENCE["buckets_step16"][0]["buckets"]
    coarse = Buckets(rules(bucket_reso_steps=32, max_bucket_reso=1280)).sizes
    assert {side % 32 for size in coarse for side in size} == {0}
    assert max(max(size) for size in coarse) <= 1280


def test_options_of_other_extractions_are_reported() -> None:
    def told(**values: Any) -> list[str]:
        filled = {ClipOptions: ClipOptions(**values), DatasetOptions: DatasetOptions()}
        return [f"{name}: {why}" for name, why in remarks_between(filled, "sdxl")]

    assert told(target_frames="17", frame_extraction="slide", frame_stride=4) == []
    assert told(frame_extraction="slide", frame_stride=4, frame_sample=2, target_frames="17") == [
        "frame_sample: has no effect without frame_extraction = uniform"
    ]
    assert told(frame_extraction="slide", frame_stride=4) == [
        "frame_stride: has no effect without frame_extraction = slide and target_frames"
    ]
    assert told(frame_extraction="full", target_frames="17") == [
        "target_frames: has no effect with frame_extraction = full; set max_frames"
    ]
    assert next(iter(ClipOptions(target_frames="17,x").check()))[0] == "target_frames"
