"""Whole runs of Qwen-Image-Edit: their images match diffusers' with their files and control images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image
from safetensors import safe_open

from sd_scripts.families.qwen_image.load import TEXT_ENCODER
from sd_scripts.families.qwen_image.tiny import PARAMS, tiny_modules
from sd_scripts.families.qwen_image_edit.family import QWEN_IMAGE_EDIT
from sd_scripts.families.qwen_image_edit.tiny import tiny_encoder
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder, make_image
from tests.support.families.qwen_image import edit_pipeline_of, transformer_of
from tests.support.training import CAPTIONS_IN_THE_STEP, Run, train, train_whole

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
SIZE = (64, 96)
"""Of the control images."""
DATA: dict[str, Any] = {"learning_rate": 0.03, "no_resize_control": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images, each with two control images. Do not write to it."""
    root = tmp_path_factory.mktemp("data")
    for image in make_folder(root / "images" / "1_noise", [(64, 64)] * 2):
        for number in range(2):
            make_image(root / "before" / f"{image.stem}_{number}.png", SIZE, seed=int(image.stem) + 5 * number)
    return root


@pytest.fixture(scope="module")
def plain(edit_miniature: Any, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of a LoRA with a high learning rate, and a sample of it with control images. Do not write to it."""
    folder = tmp_path_factory.mktemp("plain")
    shown = " ".join(f"--ci {data / 'before' / f'00_{number}.png'}" for number in range(2))
    (folder / "prompts.txt").write_text(f"a red circle --w 64 --h 80 --s 3 --d 7 --l 3 --n blue {shown}")
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 3}
    return train(edit_miniature, folder / "out", **files_of(data), **samples)


def files_of(data: Path) -> dict[str, Any]:
    return {**DATA, "train_data_dir": data / "images", "control_directory": data / "before"}


def test_diffusers_generates_the_image_of_the_run(
    plain: Run, edit_miniature: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event,) = plain.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255
    files = {option: str(path) for option, path in edit_miniature.files.items()}
    components = QWEN_IMAGE_EDIT.open(Settings(script_for("qwen_image_edit", "lora"), files), torch.float32).load()
    encoder: Any = tiny_encoder(tiny_modules(len(components.tokenizers[0]))[TEXT_ENCODER])  # type: ignore[arg-type]
    pipeline = edit_pipeline_of(components, encoder.eval(), QwenImageEditPlusPipeline)
    resized = pipeline_qwenimage_edit_plus.calculate_dimensions
    small = {pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE: SIZE}
    monkeypatch.setattr(
        pipeline_qwenimage_edit_plus,
        "calculate_dimensions",
        lambda area, ratio: small.get(area) or resized(area, ratio),
    )

    def theirs() -> Any:
        return pipeline(
            [Image.open(data / "before" / f"00_{number}.png") for number in range(2)],
            "a red circle",
            negative_prompt="blue",
            true_cfg_scale=3.0,
            width=64,
            height=80,
            num_inference_steps=3,
            generator=torch.Generator().manual_seed(7),
            output_type="np",
        ).images[0]

    before = theirs()
    pipeline.load_lora_weights(plain.output / "short.safetensors")
    assert np.abs(ours - theirs()).max() < 2 / 255
    assert np.abs(ours - before).max() > 8 / 255


def test_the_file_records_its_base_model(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    assert told["modelspec.architecture"] == "Qwen-Image-Edit-Plus/lora"
    assert told["ss_base_model_version"] == "qwen_image_edit"


def test_captions_encoded_in_the_step_and_swapped_blocks_change_no_loss(
    plain: Run, edit_miniature: Any, data: Path, tmp_path: Path
) -> None:
    more = {**CAPTIONS_IN_THE_STEP, "blocks_to_swap": 3}
    run = train(edit_miniature, tmp_path / "step", **files_of(data), **more)
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)
    own = train(edit_miniature, tmp_path / "own", **DATA, train_data_dir=data / "images")  # each image is its own
    assert own.losses != pytest.approx(plain.losses, rel=1e-3)


def test_diffusers_reads_a_whole_trained_model_with_its_version(edit_miniature: Any, tmp_path: Path) -> None:
    run = train_whole(edit_miniature, tmp_path / "out", max_train_steps=1)
    theirs = transformer_of(run.tensors(), PARAMS)
    assert theirs.state_dict().keys() == run.tensors().keys()
    with safe_open(run.output / "short.safetensors", "pt") as file:
        assert file.metadata()["modelspec.architecture"] == "Qwen-Image-Edit-Plus"


def test_a_run_without_control_images_is_refused_before_loading(edit_miniature: Any, tmp_path: Path) -> None:
    run = train(edit_miniature, tmp_path / "out", control_directory=None)
    assert run.status == 2
    assert not (run.output / "short.safetensors").exists()
