"""Whole runs of Qwen-Image: their images match diffusers' with their files, however memory is saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from sd_scripts.families.qwen_image.family import QWEN_IMAGE
from sd_scripts.families.qwen_image.model import QwenImageTransformer
from sd_scripts.families.qwen_image.tiny import PARAMS, tiny_modules
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder
from tests.support.families.qwen_image import pipeline_of, transformer_of
from tests.support.training import TEXT_ENCODERS_TOO, Run, train, train_whole

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.fixture(scope="module")
def plain(qwen_image_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of a LoRA with a high learning rate, and a sample of it. Do not write to it."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "prompts.txt").write_text("a red circle --w 64 --h 80 --s 3 --d 7 --l 3 --n blue")
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 3}
    return train(qwen_image_miniature, folder / "out", learning_rate=0.03, **samples)


def test_diffusers_generates_the_image_of_the_run(plain: Run, qwen_image_miniature: Any) -> None:
    (event,) = plain.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255
    files = {option: str(path) for option, path in qwen_image_miniature.files.items()}
    components = QWEN_IMAGE.open(Settings(script_for("qwen_image", "lora"), files), torch.float32).load()
    encoder: Any = tiny_modules(len(components.tokenizers[0]))["text_encoder1"]
    assert isinstance(encoder, Qwen2_5_VLForConditionalGeneration)
    pipeline = pipeline_of(components, encoder.eval())

    def theirs() -> Any:
        return pipeline(
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


def test_a_lora_under_the_names_of_other_programs_is_trained_on(
    plain: Run, qwen_image_miniature: Any, tmp_path: Path
) -> None:
    """As ComfyUI and ai-toolkit write it, and as distilled LoRAs are named."""
    with torch.device("meta"):
        paths = [path for path, _ in QwenImageTransformer(PARAMS).named_modules()]
    modules = {f"lora_unet_{path.replace('.', '_')}": path for path in paths}
    forms = {
        "comfy": ("diffusion_model.", {"lora_down": "lora_A", "lora_up": "lora_B"}),
        "distilled": ("", {"lora_down": "lora_down", "lora_up": "lora_up"}),
    }
    losses = {}
    for form, (prefix, parts) in forms.items():
        renamed = {}
        for key, tensor in plain.tensors().items():
            layer, _, ending = key.partition(".")
            part, _, rest = ending.partition(".")
            renamed[f"{prefix}{modules[layer]}.{parts.get(part, part)}{rest and '.'}{rest}"] = tensor
        safetensors.torch.save_file(renamed, tmp_path / f"{form}.safetensors")
        again = train(
            qwen_image_miniature, tmp_path / form, network_weights=tmp_path / f"{form}.safetensors", max_train_steps=1
        )
        losses[form] = again.losses
    ours = train(
        qwen_image_miniature,
        tmp_path / "ours",
        network_weights=plain.output / "short.safetensors",
        max_train_steps=1,
    )
    assert losses == dict.fromkeys(forms, ours.losses)
    assert ours.losses[0] != plain.losses[0]


@pytest.mark.parametrize(
    "memory",
    [
        {"blocks_to_swap": 3, "gradient_checkpointing": True, "cpu_offload_checkpointing": True},
        {"blocks_to_swap": 1, "compile": True, "compile_backend": "eager"},
    ],
    ids=["offloaded", "compiled"],
)
def test_swapped_blocks_change_no_loss(
    memory: dict[str, Any], plain: Run, qwen_image_miniature: Any, tmp_path: Path
) -> None:
    run = train(qwen_image_miniature, tmp_path / "out", learning_rate=0.03, **memory)
    assert run.losses == pytest.approx(plain.losses, rel=1e-5)


def test_weights_in_fp8_change_losses_slightly(plain: Run, qwen_image_miniature: Any, tmp_path: Path) -> None:
    half = {"mixed_precision": "bf16", "learning_rate": 0.03}
    losses = [
        train(qwen_image_miniature, tmp_path / str(number), **half, **more).losses
        for number, more in enumerate(({"fp8_base": True}, {"fp8_base": True, "blocks_to_swap": 3}))
    ]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(plain.losses, rel=0.05)
    assert losses[0] != pytest.approx(plain.losses, rel=1e-4)


def test_captions_of_all_lengths_share_one_graph(qwen_image_miniature: Any, tmp_path: Path) -> None:
    root = tmp_path / "images"
    for number, image in enumerate(make_folder(root / "1_noise", [(64, 64)] * 3)):
        image.with_suffix(".txt").write_text("a red circle " * (1 + 5 * number))
    compiled = {"compile": True, "compile_backend": "eager", "train_data_dir": root}
    run = train(qwen_image_miniature, tmp_path / "out", cache_text_encoder_outputs_to_disk=True, **compiled)
    assert [event["graphs"] for event in run.events_of("compile")] == [1]
    kept = [
        safetensors.torch.load_file(file) for file in sorted((root / "1_noise").glob("*_qwen_image_te.safetensors"))
    ]
    lengths = [len(each["vl_embed"]) for each in kept]
    assert len(set(lengths)) == 3
    assert all(each["vl_mask"].all() for each in kept), "caches hold no padding"
    eager = train(qwen_image_miniature, tmp_path / "eager", train_data_dir=root)
    assert run.losses == pytest.approx(eager.losses, rel=1e-5)


def test_batches_of_captions_of_different_lengths_are_masked(qwen_image_miniature: Any, tmp_path: Path) -> None:
    """Whether cached or encoded in the step."""
    root = tmp_path / "images"
    long, _ = make_folder(root / "1_noise", [(64, 64)] * 2)
    long.with_suffix(".txt").write_text("a red circle " * 5)
    both = [
        train(qwen_image_miniature, tmp_path / str(cached), train_data_dir=root, train_batch_size=2, **more).losses
        for cached, more in ((True, {}), (False, {"cache_text_encoder_outputs": None}))
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-5)


def test_in_full_training_swapped_blocks_change_no_loss(qwen_image_miniature: Any, tmp_path: Path) -> None:
    half = {"mixed_precision": "bf16", "full_bf16": True, "fused_backward_pass": True, "max_grad_norm": 0.0}
    whole, swapped = (
        train_whole(qwen_image_miniature, tmp_path / str(swap), blocks_to_swap=swap, **half) for swap in (0, 3)
    )
    assert whole.status == swapped.status == 0
    assert whole.losses == swapped.losses


def test_a_compiled_text_encoder_trains_identically(qwen_image_miniature: Any, tmp_path: Path) -> None:
    """Its captions have the lengths of compiled runs, so its layers need no graph for each."""
    eager = train(qwen_image_miniature, tmp_path / "eager", **TEXT_ENCODERS_TOO)
    compiled = {"compile": True, "compile_backend": "eager", "compile_text_encoder": True}
    run = train(qwen_image_miniature, tmp_path / "compiled", **TEXT_ENCODERS_TOO, **compiled)
    assert run.losses == pytest.approx(eager.losses, rel=1e-5)
    assert sum(event["graphs"] for event in run.events_of("compile")) <= 1 + 2
    assert run.events_of("warning") == []


def test_a_whole_trained_model_is_read_by_diffusers(qwen_image_miniature: Any, tmp_path: Path) -> None:
    run = train_whole(qwen_image_miniature, tmp_path / "out", max_train_steps=1)
    theirs = transformer_of(run.tensors(), PARAMS)
    assert theirs.state_dict().keys() == run.tensors().keys()
