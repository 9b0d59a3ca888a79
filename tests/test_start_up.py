"""A run imports and loads only necessary modules before its first step."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from sd_scripts.families.common.components import VAE
from sd_scripts.families.common.encoders.outlines import CLIPTextOutline, CLIPTextProjectionOutline, T5EncoderOutline
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.library.files.ldm_layout import clip_sizes
from sd_scripts.library.text.tokenizers import CLIP, QWEN, T5, Tokenizers
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.training.training_data import encoder_key
from tests.support.suite.fresh import found_by_processes
from tests.support.training import equal, images, settings_for, train

pytestmark = pytest.mark.run

HEAVY = {
    *("transformers", "peft", "bitsandbytes", "torch._inductor.compile_fx", "torch.utils.tensorboard", "tensorboard"),
    *("torch._dynamo", "triton", "sympy", "scipy", "sklearn", "pandas", "matplotlib", "wandb", "gradio"),
    *("diffusers.models.transformers.transformer_flux", "diffusers.hooks.first_block_cache"),
    *("diffusers.pipelines", "tensorflow", "jax", "torchvision", "networkx", "torch.distributed.checkpoint"),
}
"""Modules that take a tenth of a second or more to import, and that a LoRA run with full caches does not use."""

CLIP_ARGUMENTS = {
    **clip_sizes(96, 64),
    **{"intermediate_size": 80, "num_hidden_layers": 2, "max_position_embeddings": 77, "projection_dim": 48},
}
T5_ARGUMENTS = {
    **{"vocab_size": 128, "d_model": 48, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 2},
    **{"relative_attention_num_buckets": 32, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": False},
}


def with_known_vocabulary(miniature: Any, folder: Path) -> dict[str, str]:
    """The miniature's model, but with one token embedding for each token of the tokenizers that we ship."""
    model = load_file(miniature.checkpoint)
    for key, tensor in model.items():
        if key.endswith("token_embedding.weight"):
            model[key] = torch.nn.functional.pad(tensor, (0, 0, 0, CLIP.size - len(tensor)))
    save_file(model, folder / "model.safetensors")
    return {"pretrained_model_name_or_path": str(folder / "model.safetensors")}


@pytest.mark.run
def test_checks_and_a_lora_run_with_full_caches_import_only_needed_modules(miniature: Any, tmp_path: Path):
    settings = {
        **settings_for(miniature),
        **with_known_vocabulary(miniature, tmp_path),
        **{"train_data_dir": str(images(tmp_path / "images")), "cache_latents_to_disk": True},
        **{"cache_text_encoder_outputs_to_disk": True, "max_train_steps": 1, "overwrite": True},
    }
    first = train(miniature, tmp_path / "out", **settings)
    assert first.status == 0
    learned = first.tensors()
    write_toml(tmp_path / "again.toml", {**settings, "output_dir": str(tmp_path / "out")})
    again = subprocess.run(
        [sys.executable, "-c", TRAINS, str(tmp_path / "again.toml")],
        capture_output=True, text=True, env=with_triton_to_find(tmp_path), check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    checked, status, modules, package_scans = json.loads(again.stdout.splitlines()[-1])
    assert {"torch._dynamo", "torch._inductor", "triton", "sympy"}.isdisjoint(checked)
    assert (status, HEAVY.intersection(modules), package_scans) == (0, set(), 0), again.stderr
    assert equal(first.tensors(), learned)


def with_triton_to_find(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds a Triton, which it may not import, where none is installed too."""
    (folder / "packages" / "triton").mkdir(parents=True)
    (folder / "packages" / "triton" / "__init__.py").touch()
    env = found_by_processes()
    return {**env, "PYTHONPATH": os.pathsep.join([str(folder / "packages"), env["PYTHONPATH"]])}


TRAINS = """
import importlib.metadata
import json
import sys

scans = []
importlib.metadata.packages_distributions = lambda: scans.append("all packages") or {}
from sd_scripts.families.common.family import family_of
from sd_scripts.library.optim.lr_schedulers import dry_run
from sd_scripts.options.optimization.optimizer import LrSchedulerOptions, OptimizerOptions
from sd_scripts.training import launch; from sd_scripts.training.methods import lora

family_of("sdxl"), family_of("flux"), dry_run(OptimizerOptions(), LrSchedulerOptions())
checked = sorted(sys.modules)
from sd_scripts import sdxl_train_network

status = sdxl_train_network.main(["--config_file", sys.argv[1]])
print(json.dumps([checked, status, sorted(sys.modules), len(scans)]))
"""
"""Each of its parts imports no more than it needs, in this order."""


def test_lazily_imported_models_are_diffusers_classes():
    from sd_scripts.library.files import lean_diffusers as lean

    import diffusers  # isort: skip  (lean_diffusers is imported before it)
    from diffusers.models.transformers import FluxTransformer2DModel, Transformer2DModel

    assert FluxTransformer2DModel is diffusers.FluxTransformer2DModel
    assert Transformer2DModel is lean.Transformer2DModel is diffusers.Transformer2DModel
    assert diffusers.hooks.FirstBlockCacheConfig
    assert diffusers.utils.import_utils._package_map["torch"] == ["torch"]
    assert torch.compiler.disable(print) is not print


@pytest.mark.parametrize(
    ("outline", "theirs", "config", "arguments"),
    [
        (CLIPTextOutline, CLIPTextModel, CLIPTextConfig, CLIP_ARGUMENTS),
        (CLIPTextProjectionOutline, CLIPTextModelWithProjection, CLIPTextConfig, CLIP_ARGUMENTS),
        (T5EncoderOutline, T5EncoderModel, T5Config, T5_ARGUMENTS),
    ],
)
def test_an_outline_has_the_names_shapes_and_classes_of_transformers(
    outline: Any, theirs: Any, config: Any, arguments: dict[str, Any]
):
    with init_empty_weights():
        ours, model = outline(**arguments), theirs(config(**arguments))
    assert [(n, t.shape) for n, t in ours.state_dict().items()] == [(n, t.shape) for n, t in model.state_dict().items()]
    assert adapted(ours) == adapted(model)
    assert ours.get_input_embeddings().weight.shape == model.get_input_embeddings().weight.shape


def adapted(module: torch.nn.Module) -> list[tuple[str, str]]:
    """Paths and classes of the modules that adapters and the compiler look for."""
    names = {name for target in (*SDXL.lora_text_encoders, *FLUX.lora_text_encoders) for name in target.classes}
    kinds = {*names, "CLIPEncoderLayer", "T5Block", "Linear", "Embedding"}
    return [(path, type(each).__name__) for path, each in module.named_modules() if type(each).__name__ in kinds]


def test_cache_keys_are_the_same_before_vae_and_text_encoders_are_loaded(miniature: Any, flux_miniature: Any):
    for family, files in ((SDXL, miniature.files), (FLUX, flux_miniature.files)):
        components = opened(family, files)
        names = [VAE, *components.encoder_names]
        assert all(components.sources[name].loads_plainly and not components.is_loaded(name) for name in names)
        unread = encoder_key(map(components.first_values, names))
        components.load(*names)
        assert all(map(components.is_loaded, names))
        assert encoder_key(map(components.first_values, names)) == unread


def opened(family: Any, files: dict[str, Path]) -> Any:
    values = {name: str(file) for name, file in files.items()}
    return family.open(Settings(script_for(family.card.name, "lora"), values), torch.bfloat16)


def test_shipped_tokenizers_have_the_size_that_is_stated():
    assert {kind.cache_folder: len(kind.shipped()) for kind in (CLIP, T5, QWEN)} == {
        kind.cache_folder: kind.size for kind in (CLIP, T5, QWEN)
    }


def test_tokenizers_are_created_once_on_first_use():
    made: list[str] = []

    def make() -> list[str]:
        made.append("made")
        return ["first", "second"]

    tokenizers = Tokenizers(make)
    assert made == []
    assert [*tokenizers] == ["first", "second"]
    assert (tokenizers[1], len(tokenizers), made) == ("second", 2, ["made"])
