"""Wan 2.1 Fun-Control: clips that follow a control clip, in training and in samples."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from diffusers import WanPipeline
from torch.nn.functional import pad

from kohya_gui.generate.generate_routes import as_form
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.encoders.causal_vae import encode_clip
from sd_scripts.families.common.encoders.umt5 import STATES
from sd_scripts.families.common.sampling import control_frames
from sd_scripts.families.wan.conditions import CONTROL, FEATURES, START, follows_control, see
from sd_scripts.families.wan.model import WanParams, WanTransformer
from sd_scripts.families.wan.objective import predict
from sd_scripts.families.wan.tiny import PARAMS, write_miniature
from sd_scripts.generating.work import parameters
from sd_scripts.options.generating.prompt_lines import SamplePrompt, prompt_of_line
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.testing import clips
from sd_scripts.testing.miniature import Miniature
from tests.families.wan.test_wan import OFFICIAL, shapes_in, shapes_of
from tests.families.wan.test_wan_pipeline import (
    PROMPT,
    assert_same_frames,
    diffusers_of,
    frames_of,
    loaded,
    ours,
    pipeline_of,
    text_of,
)
from tests.support.clips import counting_frames, number_of
from tests.support.data import make_image
from tests.support.training import train

FUN_CONTROL = replace(PARAMS, in_channels=48, image_width=16)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return write_miniature(tmp_path_factory.mktemp("control") / "model", FUN_CONTROL)


@pytest.fixture(scope="module")
def poses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three frames, two fewer than a sample has."""
    path = tmp_path_factory.mktemp("poses") / "poses.mp4"
    clips.write_clip(path, clips.draw(clips.captions()[0], (PROMPT.width, PROMPT.height), 3))
    return path


def test_fun_control_14b_has_the_keys_of_image_to_video_with_an_input_of_48_channels() -> None:
    """The keys of 1.3B are compared with the official ones in test_wan.py."""
    expected = shapes_of(OFFICIAL["dit.i2v-14B"]) | {"patch_embedding.weight": (5120, 48, 1, 2, 2)}
    with torch.device("meta"):
        model = WanTransformer(WanParams.of(expected))
    assert shapes_in(model.state_dict()) == expected
    assert len(expected) == 1303
    assert follows_control(model.params)


@torch.no_grad()
def test_the_control_clip_and_the_first_frame_follow_the_noisy_latents_as_diffusers_model_reads_them(
    miniature: Miniature,
) -> None:
    """Without a first frame its channels are zeros, as are the 257 features of CLIP in the official code."""
    components, _ = loaded(miniature)
    transformer: Any = components.denoiser
    theirs = diffusers_of(transformer)
    noisy, control, start = torch.randn(2, 16, 3, 4, 6), torch.randn(2, 16, 3, 4, 6), torch.randn(2, 16, 1, 4, 6)
    text, features, times = torch.randn(2, 512, 48), torch.randn(2, 257, 16), torch.tensor([0.3, 0.9])
    for first in (start, None):
        conditions = {CONTROL: control} | ({} if first is None else {START: first, FEATURES: features})
        found = predict(transformer, noisy, times, {STATES: text}, conditions)
        later = torch.zeros_like(noisy) if first is None else pad(first, (0, 0, 0, 0, 0, 2))
        image = torch.zeros_like(features) if first is None else features
        expected = theirs(
            torch.cat((noisy, control, later), dim=1), 1000 * times, text, encoder_hidden_states_image=image
        ).sample
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("from_image", [False, True])
def test_a_sample_follows_its_control_clip_through_the_whole_denoising(
    miniature: Miniature, poses: Path, tmp_path: Path, from_image: bool
) -> None:
    components, settings = loaded(miniature, sample_solver="unipc")
    assert not components.is_loaded("image_encoder"), "it is loaded for an image alone"
    start = make_image(tmp_path / "start.png", (PROMPT.width, PROMPT.height))
    frames = control_frames(str(poses), Extent(PROMPT.width, PROMPT.height, PROMPT.frames), 16)
    first = control_frames(str(start), Extent(PROMPT.width, PROMPT.height), 16)
    transformer = diffusers_of(components.denoiser)  # type: ignore[arg-type]
    forward = transformer.forward
    with torch.no_grad():
        control = encode_clip(components.vae, frames)
        image = torch.zeros(1, 5, 16)
        if from_image:
            components.load("image_encoder")
            image = see(components, first)
            components.free("image_encoder")
        known = pad(encode_clip(components.vae, first), (0, 0, 0, 0, 0, 1)) * from_image

    def reading(hidden_states: torch.Tensor, **more: Any) -> Any:
        return forward(
            torch.cat((hidden_states, control, known), dim=1), **{**more, "encoder_hidden_states_image": image}
        )

    transformer.forward = reading
    pipeline = pipeline_of(WanPipeline, components, "unipc", [transformer])
    expected = frames_of(pipeline, text_of(components), "unipc", 5.0)
    prompt = replace(PROMPT, control_clip=str(poses), start_image=str(start) if from_image else None)
    assert_same_frames(ours(components, settings, prompt), expected)


def test_a_control_clip_is_cut_or_repeats_its_last_frame_and_an_image_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "counting.mp4"
    clips.write_clip(path, counting_frames(6), 32)

    def numbers(frames: int, fps: float, file: Path = path) -> list[int]:
        pixels = (control_frames(str(file), Extent(64, 48, frames), fps)[0].permute(1, 2, 3, 0) + 1) * 127.5
        return [number_of(frame.numpy()) for frame in pixels]

    assert numbers(5, 32) == [0, 1, 2, 3, 4]
    assert numbers(9, 32) == [0, 1, 2, 3, 4, 5, 5, 5, 5]
    assert numbers(5, 16) == [0, 2, 4, 4, 4]
    image = make_image(tmp_path / "still.png", (40, 40))
    still = control_frames(str(image), Extent(64, 48, 5), 16)
    assert still.shape == (1, 3, 5, 48, 64)
    assert torch.equal(still[:, :, 0], still[:, :, 4])


def test_a_prompt_names_its_control_clip_which_must_be_one(miniature: Miniature, tmp_path: Path, poses: Path) -> None:
    capabilities = card_of("wan").capabilities
    assert prompt_of_line(f"a fox --cn {poses}", SamplePrompt(), capabilities).control_clip == str(poses)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no clip")
    empty = tmp_path / "empty"
    empty.mkdir()
    for file, why in ((broken, "cannot be read"), (empty, "has no images"), (tmp_path / "gone.mp4", "file not found")):
        with pytest.raises(ValueError, match=f"control_video_path: .*{why}"):
            prompt_of_line(f"a fox --cn {file}", SamplePrompt(), capabilities)
    remarks = {
        (variant, clip): [key for key, _ in card_of("wan").prompt_remarks(SamplePrompt(control_clip=clip), variant)]
        for variant in ("Wan T2V 14B", describe(miniature.checkpoint).variant)
        for clip in (None, str(poses))
    }
    assert remarks["Wan T2V 14B", str(poses)] == remarks["Wan Fun-Control", None] == ["control_video_path"]
    ended = SamplePrompt(control_clip=str(poses), end_image="end.png")
    assert [key for key, _ in card_of("wan").prompt_remarks(ended, "Wan Fun-Control")] == ["end_image_path"]
    assert not remarks["Wan T2V 14B", None] + remarks["Wan Fun-Control", str(poses)]


def test_the_parameters_of_a_clip_name_its_control_clip_also_a_folder_of_frames(tmp_path: Path, poses: Path) -> None:
    settings = from_values(script_for("wan", "generate"), {})
    frames = tmp_path / "frames"
    frames.mkdir()
    first, second = (make_image(frames / f"{number}.png", (64, 48)) for number in range(2))
    for clip, content in ((poses, poses.read_bytes()), (frames, first.read_bytes() + second.read_bytes())):
        found = parameters(settings, replace(PROMPT, control_clip=str(clip)))["control_clip"]
        assert found == {"name": clip.name, "path": str(clip), "sha256": sha256(content).hexdigest()}
        assert as_form({"family": "wan", "control_clip": found})["values"]["control_path"] == str(clip)


@pytest.mark.run
def test_it_trains_with_control_clips_from_the_cache_and_samples_with_one(
    miniature: Miniature, poses: Path, tmp_path: Path, wan_miniature: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the first frame, which i2v-14B-FC adds, CLIP's file is not needed."""
    data = clips.write_clips(tmp_path / "clips", size=(64, 64), frames=5, count=2)
    controls = tmp_path / "controls"
    controls.mkdir()
    for number, clip in enumerate(sorted(data.rglob("*.mp4"))):
        clips.write_clip(controls / clip.name, clips.draw(clips.captions()[number], (64, 64), 3))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"a red circle --w 64 --h 64 --f 5 --s 2 --d 1 --cn {poses}\n")
    more = {"train_data_dir": data, "target_frames": "5", "caption_extension": ".txt", "max_train_steps": 2}
    run = train(
        miniature,
        tmp_path / "out",
        **more,
        clip=None,
        control_directory=controls,
        sample_prompts=prompts,
        sample_every_n_steps=2,
    )
    assert run.status == 0
    layers = {key.partition(".")[0] for key in run.tensors()}
    assert sum(name.endswith(("_k_img", "_v_img")) for name in layers) == 2 * FUN_CONTROL.blocks
    (sample,) = run.events_of("sample")
    with av.open(sample["path"]) as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 5
    with_start = train(miniature, tmp_path / "start", **more, control_directory=controls, task="i2v-14B-FC")
    assert with_start.status == 0
    capsys.readouterr()
    stills = tmp_path / "stills"
    stills.mkdir()
    for path in sorted(data.rglob("*.mp4")):
        make_image(stills / f"{path.stem}.png", (64, 64))
    refused = {
        "has no control clip": (miniature, {}),
        "is an image, but": (miniature, {"control_directory": stills}),
        "does not follow control clips": (wan_miniature, {"control_directory": controls}),
        "clip: not set": (miniature, {"control_directory": controls, "task": "i2v-14B-FC", "clip": None}),
    }
    for number, (sentence, (model, values)) in enumerate(refused.items()):
        assert train(model, tmp_path / f"refused{number}", **more, **values).status == 2, sentence
        assert sentence in capsys.readouterr().err
