"""Whole runs of Anima: by sd-scripts' command lines, swapped in fp8, the whole model, from diffusers' folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kohya_gui.kohya.legacy_config import from_kohya
from sd_scripts.families.anima.card.options import part_of
from sd_scripts.families.anima.family import ANIMA
from sd_scripts.families.anima.lora import TRANSFORMER
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.encoders.qwen3 import qwen3
from sd_scripts.families.common.encoders.tiny_qwen3 import tiny_config
from sd_scripts.networks.files.lora_files import read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import adaptable
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.families.anima import pipeline_of, to_diffusers
from tests.support.training import FULL, Run, equal, train

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]
REFERENCE = Path(__file__).parents[2] / "reference"
BF16 = {"mixed_precision": "bf16", "max_train_steps": 2}
SD_SCRIPTS = (
    *("--pretrained_model_name_or_path=dit", "--qwen3=qwen3", "--vae=vae", "--llm_adapter_path=adapter"),
    *("--timestep_sampling=sigmoid", "--discrete_flow_shift=1.0", "--weighting_scheme=uniform", "--blocks_to_swap=20"),
    *("--qwen3_max_token_length=512", "--attn_mode=torch", "--split_attn", "--vae_chunk_size=64", "--fp8_base"),
    *("--unsloth_offload_checkpointing", "--t5_tokenizer_path=t5", "--vae_disable_cache"),
)


def flags_of(method: str, *flags: str) -> Settings:
    script = script_for("anima", method)
    given = given_flags(script, flags)
    assert given.problems == []
    return from_values(script, given.values)


def test_flags_of_sd_scripts_are_understood() -> None:
    lora = flags_of("lora", *SD_SCRIPTS, "--network_module=networks.lora_anima", "--network_dim=8")
    assert lora.unknown == {}
    names = ("pretrained_model_name_or_path", "vae", "qwen3", "llm_adapter_path", "cpu_offload_checkpointing")
    assert [lora.value(name) for name in names] == ["dit", "vae", "qwen3", "adapter", True]
    without_effect = {remark.name for remark in lora.remarks}
    assert {"attn_mode", "split_attn", "vae_chunk_size", "t5_tokenizer_path", "vae_disable_cache"} <= without_effect
    assert "qwen3_max_token_length" not in without_effect, "512 is what captions have"
    full = flags_of("full", *SD_SCRIPTS, "--llm_adapter_lr=0", "--learning_rate=1e-5")
    (of_parts,) = (str(problem) for problem in full.problems() if "block_lr" in problem.names)
    assert of_parts.startswith("block_lr: has 1 values; give 6, of self-attention, cross-attention, ")
    assert flags_of("full").value("timestep_sampling") == "sigmoid"
    assert "timestep_sampling" not in {remark.name for remark in flags_of("full").remarks}


@pytest.mark.parametrize("tab", ["lora", "finetune"])
def test_settings_of_kohya_ss_open_as_anima(tab: str) -> None:
    legacy = json.loads((REFERENCE / f"kohya_{tab}_defaults.json").read_text())
    changed = {"anima_checkbox": True, "anima_qwen3": "qwen3", "anima_llm_adapter_path": "adapter", "blocks_to_swap": 8}
    opened = from_kohya({**legacy, **changed, "anima_attn_mode": "flash", "LoRA_type": "Anima"}, tab)
    assert opened.family == "anima"
    expected = {"qwen3": "qwen3", "llm_adapter_path": "adapter", "timestep_sampling": "sigmoid", "blocks_to_swap": 8}
    assert opened.values.items() >= expected.items()
    assert opened.values.get("network_module") == ("networks.lora_anima" if tab == "lora" else None)
    assert "anima_attn_mode: has no effect for Anima" in map(str, opened.remarks)
    method = "lora" if tab == "lora" else "full"
    assert from_values(script_for("anima", method), opened.values).unknown.keys() <= {"caption_metadata_filename"}


def test_swapped_fp8_blocks_train_like_resident_ones(anima_miniature: Any, tmp_path: Path) -> None:
    resident, swapped = (
        train(anima_miniature, tmp_path / str(number), **BF16, fp8_base=True, gradient_checkpointing=True, **more)
        for number, more in enumerate(({}, {"blocks_to_swap": 2}))
    )
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())
    with safe_open(swapped.output / "short.safetensors", "pt") as file:
        known = file.metadata()
    expected = {"ss_base_model_version": "anima", "ss_timestep_sampling": "sigmoid", "ss_discrete_flow_shift": "1.0"}
    assert {key: known.get(key) for key in expected} == expected
    assert known["modelspec.architecture"] == "anima-preview/lora"


def test_the_whole_model_has_the_official_prefix_and_a_rate_for_each_part(anima_miniature: Any, tmp_path: Path) -> None:
    rates = "0,1e-3,1e-3,1e-3,1e-3,0"  # of self-attention and of what is in no part
    trained = train(anima_miniature, tmp_path / "out", "full", **FULL, block_lr=rates, max_train_steps=1)
    assert trained.status == 0
    before, after = load_file(anima_miniature.checkpoint), trained.tensors()
    assert after.keys() == before.keys()
    assert all(key.startswith("net.") for key in after)
    changed = {key for key in after if not torch.equal(after[key], before[key])}
    assert {part_of(key.removeprefix("net.")) for key in changed} == {1, 2, 3, 4}
    assert "net.llm_adapter.blocks.0.self_attn.q_proj.weight" in changed


@pytest.fixture(scope="module")
def plain(anima_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of a LoRA, of the adapter too, and a sample of it. Do not write to it."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "prompts.txt").write_text("a red circle --w 64 --h 80 --s 3 --d 7 --l 3 --n blue")
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 3}
    more = {"network_args": ["train_llm_adapter=True"], "learning_rate": 0.03, "save_as_format": "both"}
    return train(anima_miniature, folder / "out", **more, **samples)


def opened(miniature: Any, **more: Any) -> Components:
    files = {option: str(path) for option, path in miniature.files.items()}
    return ANIMA.open(Settings(script_for("anima", "lora"), files), torch.float32, **more)


def test_diffusers_generates_the_image_of_the_run(plain: Run, anima_miniature: Any) -> None:
    (event,) = plain.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255
    components = opened(anima_miniature).load()
    pipeline = pipeline_of(components, scale=3.0)
    options = {"width": 64, "height": 80, "num_inference_steps": 3, "output_type": "np", "output": "images"}

    def theirs() -> Any:
        generator = torch.Generator().manual_seed(7)
        return pipeline(prompt="a red circle", negative_prompt="blue", generator=generator, **options)[0]

    before = theirs()
    pipeline.load_lora_weights(plain.output / "short-diffusers.safetensors")
    assert np.abs(ours - theirs()).max() < 2 / 255
    assert np.abs(ours - before).max() > 8 / 255


def test_the_spellings_of_other_programs_are_the_same_lora(plain: Run, anima_miniature: Any, tmp_path: Path) -> None:
    """ComfyUI's and diffusion-pipe's, diffusers' and ai-toolkit's."""
    denoiser = opened(anima_miniature, only=("denoiser",)).denoiser
    modules = [AdaptedModule(module=denoiser, target=TRANSFORMER, lr=1.0)]
    layers = {
        TRANSFORMER.name(path): (path, torch.zeros(layer.weight.shape))
        for path, layer in adaptable(denoiser, TRANSFORMER, conv=False)
    }
    renamed = {}
    for key, tensor in plain.tensors().items():
        layer, _, part = key.partition(".")
        part = part.replace("lora_down", "lora_A").replace("lora_up", "lora_B")
        renamed[f"diffusion_model.{layers[layer][0]}.{part}"] = tensor
    save_file(renamed, tmp_path / "comfyui.safetensors")
    files = [plain.output / "short.safetensors", plain.output / "short-diffusers.safetensors", *tmp_path.iterdir()]
    expected, *others = (read_lora("network_weights", file, modules) for file in files)
    for found in others:
        assert list(found.not_used()) == []
        for name in {key.partition(".")[0] for key in plain.tensors()}:
            weight = layers[name][1]
            torch.testing.assert_close(found.change(name, weight, 1.0), expected.change(name, weight, 1.0))


def test_a_diffusers_folder_trains_like_the_single_file(anima_miniature: Any, tmp_path: Path) -> None:
    """Its adapter is a component of its own."""
    state = {key.removeprefix("net."): each for key, each in load_file(anima_miniature.checkpoint).items()}
    folder = tmp_path / "anima"
    for name, part in zip(("transformer", "text_conditioner"), to_diffusers(state), strict=True):
        (folder / name).mkdir(parents=True)
        save_file(part, folder / name / "diffusion_pytorch_model.safetensors")
    (folder / "modular_model_index.json").write_text(json.dumps({"_class_name": "AnimaModularPipeline"}))
    tokenizers = anima_miniature.checkpoint.parent / "miniature_anima_tokenizers"
    for tokenizer in tokenizers.iterdir():
        (folder / tokenizer.name).symlink_to(tokenizer)
    runs = [
        train(anima_miniature, tmp_path / str(number), pretrained_model_name_or_path=str(model), max_train_steps=2)
        for number, model in enumerate((anima_miniature.checkpoint, folder))
    ]
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-5)


def problems_of(miniature: Any, **changes: Any) -> list[str]:
    files = {option: str(path) for option, path in miniature.files.items()}
    return ANIMA.check(from_values(script_for("anima", "lora"), {**files, **changes}))


def test_files_that_do_not_fit_are_reported_before_anything_is_loaded(anima_miniature: Any, tmp_path: Path) -> None:
    state = load_file(anima_miniature.checkpoint)
    alone = {key: each for key, each in state.items() if not key.startswith("net.llm_adapter.")}
    save_file(alone, tmp_path / "cosmos.safetensors")
    cosmos = {"pretrained_model_name_or_path": str(tmp_path / "cosmos.safetensors")}
    (missing,) = problems_of(anima_miniature, **cosmos)
    assert missing.startswith("pretrained_model_name_or_path: ")
    assert "contains no LLM adapter" in missing
    assert problems_of(anima_miniature, **cosmos, llm_adapter_path=str(anima_miniature.checkpoint)) == []
    (swapped,) = problems_of(anima_miniature, blocks_to_swap=9)
    assert swapped.startswith("blocks_to_swap: 9 exceeds 3")
    save_file(
        qwen3(normed=True, **tiny_config(400, 1) | {"hidden_size": 64}).state_dict(), tmp_path / "wide.safetensors"
    )
    (wide,) = problems_of(anima_miniature, qwen3=str(tmp_path / "wide.safetensors"))
    assert "produces vectors of 64 values, but the transformer expects 32" in wide
