"""Whole runs of Krea 2: by musubi-tuner's command lines, with files of other models, swapped in fp8, in diffusers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.pipelines.krea2 import make_pipeline, make_transformer, to_diffusers
from sd_scripts.families.common.encoders.qwen3 import config_of, qwen3, shapes_of_sizes
from sd_scripts.families.krea2.card import ENCODERS
from sd_scripts.families.krea2.family import KREA2
from sd_scripts.families.krea2.load import TEXT_ENCODER
from sd_scripts.families.krea2.lora import TRANSFORMER
from sd_scripts.families.krea2.text import LAYERS, TEMPLATE
from sd_scripts.families.krea2.tiny import PARAMS, tiny_modules
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.training import Run, equal, train

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}
MODEL = "pretrained_model_name_or_path"


def settings_of(miniature: Any, **values: Any) -> Settings:
    files = {option: str(path) for option, path in miniature.files.items()}
    return Settings(script_for("krea2", "lora"), {**files, **values})


@pytest.fixture(scope="module")
def plain(krea2_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of a LoRA with a high learning rate, and a sample of it. Do not write to it."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "prompts.txt").write_text("a red circle --w 64 --h 80 --s 3 --d 7 --l 3 --n blue")
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 3}
    return train(krea2_miniature, folder / "out", learning_rate=0.03, save_as_format="both", **samples)


def test_flags_of_musubi_tuner_are_understood() -> None:
    script = script_for("krea2", "lora")
    flags = [f"--{name}={name}" for name in ("dit", "vae", "text_encoder")]
    flags += ["--timestep_sampling", "krea2_shift", "--weighting_scheme", "none", "--fp8_base", "--fp8_scaled"]
    flags += ["--sdpa", "--split_attn", "--network_module", "networks.lora_krea2", "--turbo_dit", "turbo.safetensors"]
    given = given_flags(script, flags)
    settings = from_values(script, given.values)
    assert given.problems == []
    assert settings.unknown == {}
    names = (MODEL, "vae", "qwen3_vl", "sample_model", "network_train_unet_only")
    assert [settings.value(name) for name in names] == ["dit", "vae", "text_encoder", "turbo.safetensors", True]


def test_files_of_other_models_and_too_many_swapped_blocks_are_refused(
    krea2_miniature: Any, flux2_miniature: Any, tmp_path: Path
) -> None:
    def problems(**values: Any) -> list[str]:
        return KREA2.check(settings_of(krea2_miniature, **values))

    assert problems() == []
    (of_flux2,) = problems(**{MODEL: str(flux2_miniature.checkpoint)})
    assert of_flux2.endswith(
        "is not a Krea 2 transformer but FLUX.2 klein; train FLUX.2 klein with flux2_train_network.py"
    )
    (of_qwen3,) = problems(qwen3_vl=str(flux2_miniature.files["qwen3"]))
    assert of_qwen3.endswith("is not the Qwen3-VL-4B text encoder but a Qwen3 text encoder")
    sizes = shapes_of_sizes(width=64, mlp_width=48, heads=2, key_heads=1, layers=LAYERS[-1], words=100)
    language = {f"model.language_model.{key}": t for key, t in qwen3(**config_of(sizes)).state_dict().items()}
    save_file({**language, ENCODERS[1]: torch.zeros(1)}, tmp_path / "wide.safetensors")
    (of_8b,) = problems(qwen3_vl=str(tmp_path / "wide.safetensors"))
    assert of_8b.startswith("qwen3_vl: '")
    assert "produces vectors of 64 values, but the transformer expects 32; choose the Qwen3-VL" in of_8b
    (swapped,) = problems(blocks_to_swap=4)
    assert swapped == "blocks_to_swap: 4 exceeds 3, the most that a model with 5 blocks can swap; set 3 or less"


def test_swapped_fp8_blocks_train_like_resident_ones(krea2_miniature: Any, tmp_path: Path) -> None:
    resident, swapped = (
        train(krea2_miniature, tmp_path / str(number), **BF16, fp8_base=True, gradient_checkpointing=True, **more)
        for number, more in enumerate(({}, {"blocks_to_swap": 2}))
    )
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())


def test_diffusers_generates_the_image_of_the_run(plain: Run, krea2_miniature: Any) -> None:
    (event,) = plain.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255
    components = KREA2.open(settings_of(krea2_miniature), torch.float32).load()
    (tokenizer,) = components.tokenizers
    transformer = make_transformer(PARAMS)
    transformer.load_state_dict(to_diffusers(dict(components.denoiser.state_dict())))
    encoder: Any = tiny_modules(len(tokenizer))[TEXT_ENCODER]
    pipeline = make_pipeline(transformer, components.vae, encoder.model.eval(), tokenizer)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.prompt_template_encode_start_idx = TEMPLATE.prefix_length(components)
    pipeline.prompt_template_encode_num_suffix_tokens = len(tokenizer(TEMPLATE.suffix).input_ids)

    def theirs() -> Any:
        options = {"guidance_scale": 2.0, "width": 64, "height": 80, "num_inference_steps": 3, "output_type": "np"}
        return pipeline("a red circle", "blue", generator=torch.Generator().manual_seed(7), **options).images[0]

    before = theirs()
    pipeline.load_lora_weights(plain.output / "short-diffusers.safetensors")
    assert np.abs(ours - theirs()).max() < 2 / 255
    assert np.abs(ours - before).max() > 8 / 255


def test_the_spellings_of_other_programs_are_the_same_lora(plain: Run, krea2_miniature: Any, tmp_path: Path) -> None:
    """ComfyUI's and the reference trainer's, ai-toolkit's, diffusers'."""
    denoiser = KREA2.open(settings_of(krea2_miniature), torch.float32, only=("denoiser",)).denoiser
    modules = [AdaptedModule(module=denoiser, target=TRANSFORMER, lr=1.0)]
    layers = {
        TRANSFORMER.name(path): (path, torch.zeros(layer.weight.shape))
        for path, layer in adaptable(denoiser, TRANSFORMER, conv=False)
    }
    ours = plain.tensors()
    for prefix in ("diffusion_model.", "base_model.model."):
        renamed = {}
        for key, tensor in ours.items():
            layer, _, part = key.partition(".")
            part = part.replace("lora_down", "lora_A").replace("lora_up", "lora_B")
            renamed[f"{prefix}{layers[layer][0]}.{part}"] = tensor
        save_file(renamed, tmp_path / f"{prefix}safetensors")
    files = [plain.output / "short.safetensors", plain.output / "short-diffusers.safetensors", *tmp_path.iterdir()]
    expected, *others = (read_lora("network_weights", file, modules) for file in files)
    for found in others:
        assert list(found.not_used()) == []
        for name, (_, weight) in layers.items():
            change = found.change(name, weight, 1.0)
            assert change is not None
            torch.testing.assert_close(change, expected.change(name, weight, 1.0))


def test_a_trained_file_names_the_model(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        known = file.metadata()
    expected = {
        "ss_base_model_version": "krea2",
        "ss_timestep_sampling": "krea2_shift",
        "modelspec.architecture": "Krea-2/lora",
    }
    assert {key: known.get(key) for key in expected} == expected
