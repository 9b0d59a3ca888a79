"""Whole runs of Z-Image: by musubi-tuner's command lines, swapped in fp8, and what is refused before one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.generate_settings import read_command_line
from sd_scripts.settings.reading import from_values
from tests.support.training import Run, equal, train

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}


def test_flags_of_musubi_tuner_are_understood() -> None:
    script = script_for("z_image", "lora")
    flags = [f"--{name}={name}" for name in ("dit", "vae", "text_encoder")]
    flags += ["--timestep_sampling", "shift", "--discrete_flow_shift", "2.0", "--weighting_scheme", "none"]
    flags += ["--fp8_base", "--fp8_scaled", "--fp8_llm", "--sdpa", "--network_module", "networks.lora_zimage"]
    given = given_flags(script, [*flags, "--use_32bit_attention"])
    settings = from_values(script, given.values)
    assert given.problems == []
    assert settings.unknown == {}
    names = ("pretrained_model_name_or_path", "vae", "qwen3", "network_train_unet_only", "discrete_flow_shift")
    assert [settings.value(name) for name in names] == ["dit", "vae", "text_encoder", True, 2.0]


def test_guidance_of_musubi_tuner_counts_from_0_and_its_shift_is_ours() -> None:
    flags = ["--dit", "d", "--guidance_scale", "4", "--flow_shift", "3", "--infer_steps", "8", "--fp8_llm"]
    settings, problems = read_command_line("z_image", flags)
    assert problems == []
    assert [settings.value(name) for name in ("scale", "shift", "steps")] == [5.0, 3.0, 8]


def test_fp16_is_advised_against() -> None:
    values = {"learning_rate": 1e-4, "mixed_precision": "fp16"}
    remarks = map(str, from_values(script_for("z_image", "lora"), values).remarks)
    assert "mixed_precision: Z-Image's activations overflow in fp16; set bf16" in remarks


@pytest.mark.parametrize(
    ("model", "more", "advised"),
    [
        ("z_image_turbo_bf16.safetensors", {}, True),
        ("Tongyi-MAI/Z-Image-Turbo", {}, True),
        ("z_image_turbo_bf16.safetensors", {"training_adapter": "a.safetensors"}, False),
        ("z_image_de_turbo_v1_bf16.safetensors", {}, False),
        ("z_image_bf16.safetensors", {}, False),
    ],
)
def test_turbo_is_trained_with_its_adapter(model: str, more: dict[str, Any], advised: bool) -> None:
    values = {"learning_rate": 1e-4, "pretrained_model_name_or_path": model, **more}
    remarks = [str(remark) for remark in from_values(script_for("z_image", "lora"), values).remarks]
    assert any("set training_adapter, or train Z-Image's base model" in remark for remark in remarks) is advised
    assert read_command_line("z_image", ["--ckpt", model])[0].remarks == []


def sample_of(run: Run) -> np.ndarray:
    (event,) = run.events_of("sample")
    return np.asarray(Image.open(event["path"])).astype(int)


def test_a_training_adapter_is_merged_for_steps_and_taken_out_of_samples(
    z_image_miniature: Any, tmp_path: Path
) -> None:
    """Of the first sample, where the LoRA is still 0: it shows the base model."""
    (tmp_path / "prompts.txt").write_text("a red circle --w 64 --h 64 --s 2 --d 7 --l 1\n")
    adapter = train(z_image_miniature, tmp_path / "adapter", learning_rate=0.3).output / "short.safetensors"
    short = {"max_train_steps": 1, "sample_prompts": tmp_path / "prompts.txt", "sample_at_first": True}
    plain, merged, adapted = (
        train(z_image_miniature, tmp_path / str(number), **short, **more)
        for number, more in enumerate(({}, {"base_weights": [str(adapter)]}, {"training_adapter": adapter}))
    )
    assert adapted.losses == merged.losses != plain.losses
    assert np.abs(sample_of(adapted) - sample_of(plain)).max() <= 1
    assert np.abs(sample_of(merged) - sample_of(plain)).max() > 10
    assert adapted.tensors().keys() == plain.tensors().keys()


def test_a_training_adapter_is_a_lora_of_the_built_in_network(
    z_image_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dora = train(z_image_miniature, tmp_path / "dora", network_type="dora", max_train_steps=1).output
    refused = train(z_image_miniature, tmp_path / "out", training_adapter=dora / "short.safetensors")
    assert refused.status != 0
    assert "is dora, not a plain LoRA" in capsys.readouterr().err
    values = {"learning_rate": 1e-4, "network_module": "lycoris.kohya_other", "training_adapter": "a.safetensors"}
    problems = map(str, from_values(script_for("z_image", "lora"), values).problems())
    assert "training_adapter: works with the built-in networks only; leave network_module unset" in problems


def test_swapped_fp8_blocks_train_like_resident_ones(z_image_miniature: Any, tmp_path: Path) -> None:
    resident, swapped = (
        train(z_image_miniature, tmp_path / str(number), **BF16, fp8_base=True, gradient_checkpointing=True, **more)
        for number, more in enumerate(({}, {"blocks_to_swap": 2}))
    )
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())
    with safe_open(swapped.output / "short.safetensors", "pt") as file:
        known = file.metadata()
    expected = {"ss_base_model_version": "z_image", "ss_discrete_flow_shift": "2.0"}
    assert {key: known.get(key) for key in expected} == expected
