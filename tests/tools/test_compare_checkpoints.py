"""Checkpoints of a run compared: their losses are the trainer's, images are kept, the best follows the rule."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from sd_scripts.formats.clips.mp4 import read_frames
from sd_scripts.formats.clips.mp4_header import read_mp4_header
from sd_scripts.formats.images.image_parameters import read_chunks
from sd_scripts.runs.comparison import GRID, GRID_CLIP, RESULT, best, smoothed
from sd_scripts.runs.folder import RunFolder
from sd_scripts.tools.compare_checkpoints import COMMAND
from sd_scripts.tools.comparison.grid_image import write_grid, write_grid_clip
from tests.support.clips import make_clip
from tests.support.training import TEXT_ENCODERS_TOO, Run, images, train, train_whole

pytestmark = [
    pytest.mark.run,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # diffusers asks NumPy in an old way
]

HELD_OUT: dict[str, Any] = {
    **{"validation_split": 0.4, "validation_seed": 3, "validate_every_n_steps": 2},
    **{"save_every_n_steps": 2, "max_train_steps": 6},
}
IMAGES = ("--prompt", "a red circle --w 64 --h 64 --s 1")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data") / "images", count=5)


@pytest.fixture(scope="module")
def trained(data: Path, any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A LoRA of the denoiser, in three files; its captions are cached."""
    return train(any_miniature, tmp_path_factory.mktemp("run") / "out", train_data_dir=data, **HELD_OUT)


def compare(run: Run, *flags: str) -> dict[str, Any]:
    assert COMMAND.main("compare_checkpoints.py", [str(run.folder.path), *flags]) == 0
    return json.loads((run.folder.path / "comparison" / RESULT).read_text())


def losses_of(run: Run) -> list[float]:
    return [event["loss"] for event in run.events_of("validation")]


def test_the_losses_equal_the_trainers(trained: Run) -> None:
    told = compare(trained, "--no_images")
    assert [each["step"] for each in told["checkpoints"]] == [2, 4, 6]
    measured = [each["loss"] for each in told["checkpoints"]]
    assert measured == pytest.approx(losses_of(trained), rel=1e-5)
    assert len({round(each, 7) for each in measured}) == 3, "they must differ for this test to mean anything"
    assert told["best"] == min(range(3), key=lambda n: measured[n])


def test_adapted_text_encoders_and_merged_files_are_applied(
    data: Path, trained: Run, any_miniature: Any, tmp_path: Path
) -> None:
    first = str(trained.output / "short.safetensors")
    more = {**HELD_OUT, "max_train_steps": 4, "train_data_dir": data, **TEXT_ENCODERS_TOO}
    run = train(any_miniature, tmp_path / "out", **more, base_weights=[first], base_weights_multiplier=[0.5])
    told = compare(run, "--no_images")
    assert [each["loss"] for each in told["checkpoints"]] == pytest.approx(losses_of(run), rel=1e-5)


def test_whole_models_are_compared_too(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    more = {**HELD_OUT, "max_train_steps": 4, "train_data_dir": data}
    run = train_whole(any_miniature, tmp_path / "out", **more)
    base = Path(any_miniature.files["pretrained_model_name_or_path"])
    shutil.copytree(base.with_name(f"{base.stem}_tokenizers"), run.output, dirs_exist_ok=True)  # others need no copy
    told = compare(run, *IMAGES)
    assert [each["loss"] for each in told["checkpoints"]] == pytest.approx(losses_of(run), rel=1e-5)
    first, second = (run.folder.path / "comparison" / cell["image"] for cell in told["cells"])
    assert first.read_bytes() != second.read_bytes()
    assert COMMAND.main("compare_checkpoints.py", [str(run.folder.path), *IMAGES, "--strengths", "0.5"]) == 2


def test_images_contain_their_parameters_and_are_reused(trained: Run) -> None:
    told = compare(trained, *IMAGES, "--strengths", "0.5", "1", "--seeds", "7", "--no_validation")
    folder = trained.folder.path / "comparison"
    files = [folder / cell["image"] for cell in told["cells"]]
    assert len(files) == 6
    assert told["complete"]
    with Image.open(files[0]) as image:
        told_in = read_chunks({str(key): text for key, text in image.info.items() if isinstance(text, str)})
    assert told_in["seed"] == 7
    assert told_in["adapters"][0]["strength"] == 0.5
    assert len({file.read_bytes() for file in files}) > 3
    written = [file.stat().st_mtime_ns for file in files]
    files[-1].unlink()
    again = compare(trained, *IMAGES, "--strengths", "0.5", "1", "--seeds", "7", "8", "--no_validation")
    assert len(again["cells"]) == 12
    assert [file.stat().st_mtime_ns for file in files[:-1]] == written[:-1]
    assert files[-1].is_file()
    assert again["best"] == 2  # the last, without a loss
    with Image.open(folder / GRID) as grid:
        assert grid.width > 6 * 64
        assert grid.height > 2 * 64


def test_clips_of_one_length_become_one_clip(tmp_path: Path) -> None:
    sizes = {"a": (64, 48), "b": (48, 64)}
    for name, size in sizes.items():
        make_clip(tmp_path / f"{name}.mp4", size=size, fps=12.5)
    comparison = {
        "title": "cat",
        "best": 0,
        "checkpoints": [{"label": "step 2", "loss": 0.5}],
        "strengths": [1.0],
        "prompts": [{"prompt": f"a {name}", "seed": 1, "width": w, "height": h} for name, (w, h) in sizes.items()],
        "cells": [
            {"checkpoint": 0, "strength": 0, "prompt": number, "image": f"{name}.mp4"}
            for number, name in enumerate(sizes)
        ],
    }
    write_grid(tmp_path / GRID, comparison)
    assert write_grid_clip(tmp_path / GRID_CLIP, comparison)
    grid = read_mp4_header(tmp_path / GRID_CLIP)
    assert (grid.frames, grid.fps) == (3, 12.5)
    with Image.open(tmp_path / GRID) as still:
        assert (grid.width, grid.height) == tuple(side + side % 2 for side in still.size)
        first = next(read_frames(tmp_path / GRID_CLIP)).crop((0, 0, *still.size))
        assert max(ImageStat.Stat(ImageChops.difference(first, still.convert("RGB"))).mean) < 3
    make_clip(tmp_path / "b.mp4", count=4)
    with pytest.raises(ValueError, match=r"clips differ in length: 3 frames at 12\.5 fps, 4 frames at 8 fps$"):
        write_grid_clip(tmp_path / GRID_CLIP, comparison)
    grid_of = {**comparison, "cells": [{**comparison["cells"][0], "image": GRID}, comparison["cells"][1]]}
    with pytest.raises(ValueError, match="some prompts are single images"):
        write_grid_clip(tmp_path / GRID_CLIP, grid_of)


def test_a_stop_leaves_complete_images(trained: Run, tmp_path: Path) -> None:
    folder, out = RunFolder(tmp_path / "job"), tmp_path / "out"
    folder.path.mkdir()
    folder.command("stop")
    flags = [
        str(trained.folder.path),
        *IMAGES,
        "--no_validation",
        "--output_dir",
        str(out),
        "--run_dir",
        str(folder.path),
    ]
    assert COMMAND.main("compare_checkpoints.py", flags) not in (0, 2)
    assert [event["kind"] for event in folder.events()][-1] == "stopped"
    assert not json.loads((out / RESULT).read_text())["complete"]
    assert [file.name for file in out.iterdir()] == [RESULT]


def test_a_folder_of_images_can_be_the_held_out_ones(
    trained: Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = next(data.iterdir())
    told = compare(trained, "--no_images", "--validation_dir", str(mine))
    assert told["validation_images"] == 5
    assert all(each["loss"] for each in told["checkpoints"])


def mistakes(trained: Run, other: Path, empty: Path) -> Iterator[tuple[list[str], str]]:
    run = str(trained.folder.path)
    yield [str(empty)], "run: "
    yield [], "run: give the folder of a run, or config_file and checkpoints"
    yield [run, "--checkpoints", str(other)], "not a LoRA for"
    yield [run, "--checkpoints", str(empty / "gone.safetensors")], "checkpoints: file not found"
    yield [run, "--validation_dir", str(empty)], "validation_dir: "
    yield [run, "--validation_dir", str(empty / "none")], "validation_dir: folder not found"
    yield [run, "--no_images"], "pretrained_model_name_or_path: "
    yield [run, "--no_validation", "--rule", "lowest"], "rule: 'lowest' needs the validation loss"
    yield [run, "--no_validation", "--no_images"], "no_images: is on"
    yield [run, "--no_validation"], "prompt: not set, and the run made no samples"


def test_each_mistake_is_one_sentence_before_a_model_loads(
    trained: Run, miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sd_scripts.families.common.components import Components

    def load(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Components, "load", load)
    (other,) = (path for path in map(Path, miniature.files.values()) if path.suffix == ".safetensors")
    for flags, sentence in mistakes(trained, other, tmp_path):
        config = trained.folder.config
        before = config.read_text()
        if sentence.startswith("pretrained"):
            config.write_text(
                before.replace("pretrained_model_name_or_path = ", 'pretrained_model_name_or_path = "/gone" #')
            )
        more = [] if "prompt" in sentence or "--no_images" in flags else list(IMAGES)
        status = COMMAND.main("compare_checkpoints.py", [*flags, *more])
        config.write_text(before)
        said = capsys.readouterr().err.strip().splitlines()
        assert status == 2, (flags, said)
        assert sentence in said[-1], (flags, said)


def test_a_run_without_held_out_images_has_no_lowest_loss(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    config = trained.folder.config
    before = config.read_text()
    config.write_text(before.replace("validation_split = 0.4", ""))
    try:
        status = COMMAND.main("compare_checkpoints.py", [str(trained.folder.path), *IMAGES, "--rule", "smoothed"])
    finally:
        config.write_text(before)
    assert status == 2
    assert "no images were held out of the training" in capsys.readouterr().err


def test_rules_choose_the_best() -> None:
    losses = [0.50, 0.31, 0.40, 0.302, 0.30, 0.309]
    assert best(losses, "lowest") == 4
    assert best(losses, "earliest", 1.0) == 3
    assert best(losses, "earliest", 4.0) == 1
    assert best(losses, "last") == 5
    assert best([0.5, 0.1, 0.9, 0.3, 0.3, 0.3], "smoothed") == 4  # a single low one is an accident
    assert best([None, 0.2, None], "lowest") == 1
    assert best([None, None], "earliest") is None
    assert best([None, None], "last") == 1
    assert best([], "last") is None
    assert smoothed([1.0, 2.0, None, 5.0]) == [pytest.approx(4 / 3), 2.5, None, 4.0]
    assert smoothed([1.0, 9.0, 2.0, 9.0], series=["", "ema", "", "ema"])[1] == 9.0
