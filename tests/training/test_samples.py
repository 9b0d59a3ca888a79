"""Images while training: named as people expect them, made when they are due."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sd_scripts.families.cards import registry
from sd_scripts.families.common.family import family_of
from sd_scripts.families.sdxl.unet import PlainUnet
from sd_scripts.formats.clips.mp4_header import read_mp4_header
from sd_scripts.library.diffusion.media import Media
from tests.support.training import GRAPHS, equal, images, train

pytestmark = pytest.mark.run


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("a red circle --w 64 --h 64 --s 2 --d 7\na blue square --w 64 --h 128 --s 1 --l 1\n")
    return path


def image(path: str) -> Any:
    return np.asarray(Image.open(path)).astype(int)


def test_samples_carry_step_number_and_seed_in_their_names(any_miniature: Any, tmp_path: Path, prompts: Path) -> None:
    made = train(any_miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=2, sample_at_first=True)
    names = [Path(event["path"]).name for event in made.events_of("sample")]
    assert [re.sub(r"_\d{14}", "", name) for name in names] == [
        "short_000000_00_7.png", "short_000000_01.png", "short_000002_00_7.png", "short_000002_01.png",
    ]  # fmt: skip
    assert [event["step"] for event in made.events_of("sample")] == [0, 0, 2, 2]
    assert made.events_of("sample")[0]["prompt"] == "a red circle"
    sizes = [(event["number"], event["width"], event["height"]) for event in made.events_of("sample")]
    assert sizes == [(0, 64, 64), (1, 64, 128)] * 2
    assert Image.open(made.events_of("sample")[1]["path"]).size == (64, 128)


def test_epochs_override_steps(any_miniature: Any, tmp_path: Path, prompts: Path) -> None:
    made = train(
        any_miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=1, sample_every_n_epochs=1,
        max_train_epochs=2,
    )  # fmt: skip
    names = [Path(event["path"]).name for event in made.events_of("sample")]
    assert [name[:13] for name in names] == ["short_e000001", "short_e000001", "short_e000002", "short_e000002"]


def test_a_schedule_free_optimizer_shows_its_average(any_miniature: Any, tmp_path: Path, prompts: Path) -> None:
    """At the last step they are the file's weights, so the file's own samples must be the same."""
    options = {"optimizer_type": "AdamWScheduleFree", "learning_rate": 1e-2, "sample_prompts": prompts}
    root = images(tmp_path / "images")
    made = train(any_miniature, tmp_path / "out", train_data_dir=root, sample_every_n_steps=3, **options)
    weights = {"network_weights": made.output / "short.safetensors", "network_dim": 2}
    loaded = train(
        any_miniature,
        tmp_path / "loaded",
        train_data_dir=root,
        sample_at_first=True,
        max_train_steps=1,
        **weights,
        **options,
    )
    (trained,) = (event["path"] for event in made.events_of("sample") if event["seed"] == 7)
    (of_the_file,) = (event["path"] for event in loaded.events_of("sample") if event["seed"] == 7)
    assert np.array_equal(image(trained), image(of_the_file))


def test_missing_prompts_are_reported_before_the_model_is_loaded(
    any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = train(any_miniature, tmp_path / "out", sample_prompts=tmp_path / "nowhere.txt", sample_every_n_steps=1)
    assert made.status == 2
    assert "sample_prompts" in capsys.readouterr().err
    assert "loading" not in [event["name"] for event in made.events_of("phase")]


def test_prompts_that_cannot_be_sampled_are_reported_before_the_model_is_loaded(
    miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat --ss nope\na dog --w 100000\n")
    made = train(miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=1)
    assert made.status == 2
    told = capsys.readouterr().err
    assert f"sample_prompts: '{prompts}', line 1: sample_sampler: 'nope' is not one of" in told
    assert f"sample_prompts: '{prompts}', line 2: width: 100000 is not between" in told
    assert "Traceback" not in told
    assert "loading" not in [event["name"] for event in made.events_of("phase")]


def test_failed_samples_and_validation_are_reported_once_and_do_not_affect_training(
    miniature: Any, tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"train_data_dir": images(tmp_path / "images", count=4), "validation_split": 0.25}
    options = {**data, "network_args": ["rank_dropout=0.3"], "optimizer_type": "AdamWScheduleFree"}
    plain = train(miniature, tmp_path / "plain", validate_every_n_steps=100, **options)
    forward = PlainUnet.forward

    def fails_unless_training(unet: Any, *arguments: Any, **more: Any) -> Any:
        if not unet.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(unet, *arguments, **more)

    monkeypatch.setattr(PlainUnet, "forward", fails_unless_training)
    options |= {"sample_prompts": prompts, "sample_every_n_steps": 1, "validate_every_n_steps": 1}
    made = train(miniature, tmp_path / "out", **options)
    assert made.status == 0
    assert made.losses == plain.losses
    assert equal(made.tensors(), plain.tensors())
    told = [event["text"] for event in made.events_of("warning")]
    assert [text.partition(":")[0] for text in told] == ["validation_split", "sample_prompts"]
    assert "the sample of prompt 1 could not be made: the GPU is out of memory" in told[1]


def test_samples_of_a_family_that_generates_clips_are_mp4_files(
    miniature: Any, tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clip(*arguments: Any) -> Media:
        """The image, darker from frame to frame."""
        (image,) = images_alone.sample(*arguments).frames
        return Media(frames=torch.stack([image, image // 2, image // 4]), fps=10)

    images_alone = family_of("sdxl")
    monkeypatch.setattr(registry.module_of("sdxl", "family"), "FAMILY", replace(images_alone, sample=clip))
    made = train(miniature, tmp_path / "out", sample_prompts=prompts, sample_at_first=True, max_train_steps=1)
    first, second = made.events_of("sample")
    assert re.sub(r"_\d{14}", "", Path(first["path"]).name) == "short_000000_00_7.mp4"
    assert [second[name] for name in ("media", "width", "height", "frames", "fps")] == ["clip", 64, 128, 3, 10]
    clip = read_mp4_header(Path(second["path"]))
    assert (clip.width, clip.height, clip.frames, clip.fps) == (64, 128, 3, 10)


def test_samples_of_a_compiled_run_need_no_graphs_of_their_own(
    flux_miniature: Any, tmp_path: Path, no_graphs: None
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 128 --s 1\n")
    compiled = {"compile": True, "compile_backend": "eager", "sample_prompts": prompts, "sample_every_n_steps": 1}
    run = train(flux_miniature, tmp_path / "out", **compiled)
    assert len(run.events_of("sample")) == 3
    assert run.events_of("compile")[-1]["graphs"] == GRAPHS["flux"]
