"""Runs that only FLUX.1 has: blocks that take turns, weights in fp8, T5; and diffusers with the LoRA."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sd_scripts.families.flux.family import FLUX
from sd_scripts.library.quantization.fp8 import compute_problem
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from tests.support.families.flux_pipeline import pipeline_of
from tests.support.training import GRAPHS, TEXT_ENCODERS_TOO, Run, equal, images, train

SWAPPED = {"blocks_to_swap": 2}
"""The most that the miniature takes: one of three double blocks and two of four single ones are always away."""
TRACED = {"compile": True, "compile_backend": "eager"}
"""By Dynamo alone, which decides what the graphs are; autograd's part is tested in test_family_contract.py and, of
layers in fp8, in test_fp8.py."""


pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.fixture(scope="module")
def plain(flux_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps without anything special. Do not write to it."""
    return train(flux_miniature, tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="module")
def fp8(flux_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps on weights of eight bits. Do not write to it."""
    return train(flux_miniature, tmp_path_factory.mktemp("fp8") / "out", fp8_base=True)


@pytest.mark.parametrize(
    "more",
    [{}, {"gradient_checkpointing": True, "cpu_offload_checkpointing": True}],
    ids=["", "checkpointed"],
)
def test_swapped_blocks_train_like_resident_ones(
    more: dict[str, Any], plain: Run, flux_miniature: Any, tmp_path: Path
) -> None:
    swapped = train(flux_miniature, tmp_path / "swapped", **SWAPPED, **more)
    assert swapped.status == 0
    assert swapped.losses == plain.losses
    assert equal(swapped.tensors(), plain.tensors())


def test_an_fp8_base_trains_nearly_the_same(plain: Run, fp8: Run) -> None:
    assert fp8.status == 0
    assert fp8.losses != plain.losses
    assert fp8.losses == pytest.approx(plain.losses, rel=1e-2)
    assert fp8.tensors().keys() == plain.tensors().keys()


def test_swapped_fp8_blocks_compile_to_the_same_graphs_and_train_identically(
    fp8: Run, flux_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(flux_miniature, tmp_path / "out", fp8_base=True, **SWAPPED, **TRACED)
    assert run.losses == pytest.approx(fp8.losses, rel=1e-5)
    assert run.tensors().keys() == fp8.tensors().keys()
    (told,) = run.events_of("compile")
    assert (told["graphs"], told["breaks"]) == (GRAPHS["flux"], 0)
    line = "Compiling FLUX with torch.compile: backend=eager, mode=default, dynamic=None, fullgraph=False"
    assert line in capsys.readouterr().err


@pytest.mark.skipif(bool(compute_problem(torch.device("cpu"))), reason="this PyTorch does not multiply in fp8 on a CPU")
def test_fp8_products_train_nearly_like_bf16(flux_miniature: Any, tmp_path: Path) -> None:
    half = {"mixed_precision": "bf16"}
    bf16 = train(flux_miniature, tmp_path / "bf16", **half)
    fast = train(flux_miniature, tmp_path / "fast", fp8_compute=True, **half)
    both = train(flux_miniature, tmp_path / "both", fp8_compute=True, **half, **SWAPPED, **TRACED)
    assert fast.losses != bf16.losses
    assert fast.losses == pytest.approx(bf16.losses, rel=2e-2)
    assert both.losses == pytest.approx(fast.losses, rel=1e-2)


def test_the_file_records_its_base_model(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    expected = {
        "ss_base_model_version": "flux1",
        "ss_network_module": "networks.lora",
        "ss_guidance_scale": "1.0",
        "ss_timestep_sampling": "shift",
        "ss_discrete_flow_shift": "3.1582",
        "ss_model_prediction_type": "raw",
        "ss_apply_t5_attn_mask": "False",
        "modelspec.architecture": "flux-1-dev/lora",
        "modelspec.implementation": "https://github.com/black-forest-labs/flux",
    }
    assert {key: told.get(key) for key in expected} == expected
    assert "modelspec.prediction_type" not in told


def test_both_names_of_the_network_mean_the_same(plain: Run, flux_miniature: Any, tmp_path: Path) -> None:
    data = images(plain.output.parent / "images")
    other = train(flux_miniature, tmp_path / "out", train_data_dir=data, network_module="networks.lora_flux")
    assert other.losses == plain.losses
    assert equal(other.tensors(), plain.tensors())


def test_clip_trains_with_a_cached_t5_and_t5_on_request(flux_miniature: Any, tmp_path: Path) -> None:
    data = images(tmp_path / "images")
    cached = train(flux_miniature, tmp_path / "cached", train_data_dir=data, network_train_unet_only=None)
    encoded = train(flux_miniature, tmp_path / "encoded", train_data_dir=data, **TEXT_ENCODERS_TOO)
    both = train(flux_miniature, tmp_path / "both", train_data_dir=data, train_t5xxl=True, **TEXT_ENCODERS_TOO)
    assert cached.losses == pytest.approx(encoded.losses, rel=1e-5)

    def prefixes(run: Run) -> set[str]:
        return {"_".join(key.split("_")[:2]) for key in run.tensors()}

    assert prefixes(cached) == prefixes(encoded) == {"lora_unet", "lora_te1"}
    assert prefixes(both) == {"lora_unet", "lora_te1", "lora_te3"}
    assert any(t.any() for key, t in both.tensors().items() if key.startswith("lora_te3") and "up" in key)


def test_the_attention_mask_hides_the_padding(plain: Run, flux_miniature: Any, tmp_path: Path) -> None:
    masked = train(flux_miniature, tmp_path / "masked", apply_t5_attn_mask=True)
    compiled = train(flux_miniature, tmp_path / "compiled", apply_t5_attn_mask=True, **TRACED)
    assert masked.losses != pytest.approx(plain.losses, rel=1e-4)
    assert compiled.losses == pytest.approx(masked.losses, rel=1e-5)


def test_diffusers_generates_the_image_of_the_run(flux_miniature: Any, tmp_path: Path) -> None:
    """Of all layers but linear1 of single blocks, which its loader knows in the real width only."""
    (tmp_path / "prompts.txt").write_text("a red circle --w 64 --h 64 --s 3 --d 7 --g 3.5")
    run = train(
        flux_miniature,
        tmp_path / "out",
        sample_prompts=tmp_path / "prompts.txt",
        sample_every_n_steps=3,
        network_args=["network_reg_dims=linear1=0"],
        learning_rate=0.1,
    )
    (event,) = run.events_of("sample")
    ours = np.asarray(Image.open(event["path"])) / 255

    files = {option: str(path) for option, path in flux_miniature.files.items()}
    settings = Settings(script_for("flux", "lora"), {**files, "t5xxl_max_token_length": 16})
    pipeline = pipeline_of(FLUX.open(settings, torch.float32, torch.device("cpu")).load())

    def theirs() -> Any:
        return pipeline(
            "a red circle",
            width=64,
            height=64,
            num_inference_steps=3,
            guidance_scale=3.5,
            max_sequence_length=16,
            generator=torch.Generator().manual_seed(7),
            output_type="np",
        ).images[0]

    before = theirs()
    pipeline.load_lora_weights(run.output / "short.safetensors")
    assert np.abs(ours - theirs()).max() < 2 / 255
    assert np.abs(ours - before).max() > 8 / 255


def test_impossible_settings_are_reported_in_one_sentence_before_loading(
    miniature: Any, flux_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sentence(name: str, **values: Any) -> str:
        run = train(flux_miniature, tmp_path / name, **values)
        (told,) = capsys.readouterr().err.strip().splitlines()
        assert run.status == 2
        assert not run.folder.path.exists(), "a run begins with loading"
        return str(told)

    tensors = load_file(flux_miniature.checkpoint)
    schnell = tmp_path / "schnell.safetensors"
    save_file({key: tensor for key, tensor in tensors.items() if not key.startswith("guidance_in")}, schnell)

    assert sentence("encoder", t5xxl=None).startswith("t5xxl: ")
    assert sentence("swapped files", clip_l=flux_miniature.files["t5xxl"]).startswith("clip_l: ")
    assert "sdxl_train_network.py" in sentence("sdxl", pretrained_model_name_or_path=miniature.checkpoint)
    assert "ignores guidance" in sentence("schnell", pretrained_model_name_or_path=schnell, guidance_scale=4.0)
    assert "blocks_to_swap: 3 exceeds 2" in sentence("swap", blocks_to_swap=3)
    assert sentence("fp8", fp8_compute=True).startswith("fp8_compute: needs mixed_precision = bf16")
    assert sentence("huber", loss_type="huber").startswith("huber_schedule: ")
    assert sentence("block", train_double_block_indices="7").startswith("train_double_block_indices: ")
