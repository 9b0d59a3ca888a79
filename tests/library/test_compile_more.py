"""Text encoders and the VAE compiled with or without the denoiser: the same losses, no breaks, and reported."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.library import compile_support
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.training.compiling.compiler import GRAPHS_OF_LAYER
from tests.support.data import make_folder
from tests.support.training import CAPTIONS_IN_THE_STEP, GRAPHS, TEXT_ENCODERS_TOO, Run, train, train_whole

TRACED = {"compile_backend": "eager", "compile_fullgraph": True}
"""For what shows when a module is traced: which graphs there are, and whether modules share some that they must not."""
TEXT = {**TRACED, "compile_text_encoder": True}
VAE = {**TRACED, "compile_vae": True}
LEARNING = {"train_text_encoder": True, "cache_text_encoder_outputs": None}
UNCACHED = {"cache_latents": None}
BESIDE = {"compile": True}
"""A compiled denoiser."""


pytestmark = [
    pytest.mark.deep,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.fixture
def two_sizes(tmp_path: Path) -> dict[str, Any]:
    """Steps of 2 large and of 1 small image, each shape often enough for its guards to be spared."""
    make_folder(tmp_path / "data" / "1_noise", [(96, 96)] * 2 + [(64, 96)])
    return {"train_data_dir": tmp_path / "data", "resolution": "96,96", "train_batch_size": 2, "max_train_steps": 6}


def graphs(run: Run) -> int:
    last = run.events_of("compile")[-1]
    assert last["breaks"] == 0
    assert [event["text"] for event in run.events_of("warning") if "compile" in event["text"]] == []
    return int(last["graphs"])


def losses_agree(ours: Run, plain: Run) -> None:
    assert ours.status == plain.status == 0
    assert ours.losses == pytest.approx(plain.losses, rel=1e-4)
    assert ours.tensors().keys() == plain.tensors().keys()


@pytest.fixture
def two_batches(tmp_path: Path) -> dict[str, Any]:
    """Steps of 2 images and of 1, as often."""
    make_folder(tmp_path / "data" / "1_noise", [(64, 64)] * 3)
    return {"train_data_dir": tmp_path / "data", "train_batch_size": 2, "max_train_steps": 6}


def test_text_encoders_of_a_lora_train_the_same_with_a_compiled_denoiser(any_miniature: Any, tmp_path: Path) -> None:
    """Two graphs for each encoder: only the first layer reads inputs without gradient; T5, which is frozen, has
    one that makes the position bias and one that reads it."""
    plain = train(any_miniature, tmp_path / "plain", **TEXT_ENCODERS_TOO)
    both = train(any_miniature, tmp_path / "both", **{**TEXT_ENCODERS_TOO, **TEXT, **BESIDE})
    losses_agree(both, plain)
    assert graphs(both) == GRAPHS[any_miniature.family] + 4


def test_a_trained_t5_is_compiled_with_its_dropout(any_miniature: Any, tmp_path: Path) -> None:
    plain = train(any_miniature, tmp_path / "plain", **TEXT_ENCODERS_TOO, train_t5xxl=True)
    ours = train(any_miniature, tmp_path / "ours", **TEXT_ENCODERS_TOO, **TEXT, train_t5xxl=True)
    losses_agree(ours, plain)
    assert graphs(ours) <= 2 * GRAPHS_OF_LAYER


@pytest.mark.parametrize(
    "more",
    [{}, {"learning_rate_te1": 0.0, "gradient_checkpointing": True}],
    ids=["both", "second checkpointed"],
)
def test_text_encoders_of_a_whole_model_train_the_same(
    more: dict[str, Any], two_batches: dict[str, Any], miniature: Any, tmp_path: Path
) -> None:
    """One of them encodes without gradients where only the other is trained. AOTAutograd on them is tested in
    test_textual_inversion.py."""
    values = {**TEXT, **LEARNING, "learning_rate": 1e-4, **more, **two_batches}
    plain = train_whole(miniature, tmp_path / "plain", **{**values, "compile_text_encoder": False})
    ours = train_whole(miniature, tmp_path / "ours", **values)
    losses_agree(ours, plain)
    assert graphs(ours) <= 2 * GRAPHS_OF_LAYER * 2


def test_images_are_encoded_the_same_in_steps_with_a_compiled_denoiser(miniature: Any, tmp_path: Path) -> None:
    """SDXL's U-Net and VAE share a class of block, here even at equal widths. A LoRA of rank 8 is folded. With SGD
    its weights are as close as its gradients."""
    values = {**UNCACHED, "network_dim": 8, "train_batch_size": 2, "optimizer_type": "SGD", "learning_rate": 10.0}
    plain = train(miniature, tmp_path / "plain", **values)
    both = train(miniature, tmp_path / "both", **{**values, **VAE, **BESIDE})
    losses_agree(both, plain)
    assert graphs(both) > GRAPHS["sdxl"]
    learned = both.tensors()
    assert max(float(tensor.abs().max()) for name, tensor in learned.items() if "lora_up" in name) > 1e-2
    for name, tensor in plain.tensors().items():
        torch.testing.assert_close(learned[name], tensor, rtol=1e-2, atol=1e-4)


def images_are_encoded_by_the_same_graphs(miniature: Any, folder: Path, **values: Any) -> None:
    plain = train(miniature, folder / "plain", **values)
    ours = train(miniature, folder / "ours", **{**VAE, **values})
    assert ours.losses == plain.losses
    (told,) = ours.events_of("compile")
    assert told["text"].startswith("before the first step: ")
    assert (told["step"], told["breaks"]) == (0, 0)


def test_images_that_are_cached_are_encoded_by_the_same_graphs(any_miniature: Any, tmp_path: Path) -> None:
    images_are_encoded_by_the_same_graphs(any_miniature, tmp_path, compile_backend="aot_eager")


def test_qwen_images_own_vae_is_compiled_too(qwen_image_miniature: Any, tmp_path: Path) -> None:
    images_are_encoded_by_the_same_graphs(qwen_image_miniature, tmp_path)


def test_images_are_encoded_the_same_in_steps_and_samples_add_no_graphs(
    two_sizes: dict[str, Any], any_miniature: Any, tmp_path: Path
) -> None:
    """Compilations after the first step are reported again: here, the graphs of the second size."""
    values = {**TEXT_ENCODERS_TOO, **UNCACHED, **two_sizes}
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a fox --w 64 --h 64 --s 1 --d 1")
    plain = train(any_miniature, tmp_path / "plain", **values)
    samples = {"sample_prompts": prompts, "sample_every_n_steps": 3}
    watched = train(any_miniature, tmp_path / "watched", **{**values, **TEXT, **VAE, **samples})
    assert len(watched.events_of("sample")) == 2
    losses_agree(watched, plain)
    assert [event["step"] for event in watched.events_of("compile")] == [1, 2]


@pytest.mark.parametrize("caches", [{}, UNCACHED], ids=["ahead", "in steps"])
def test_a_vae_that_cannot_be_compiled_is_reported_and_the_run_continues(
    caches: dict[str, Any], any_miniature: Any, tmp_path: Path
) -> None:
    plain = train(any_miniature, tmp_path / "plain", **caches)
    broken = {"cpp.cxx": (None, "/no/such/compiler"), "force_disable_caches": True}
    with torch._inductor.config.patch(broken):
        ours = train(any_miniature, tmp_path / "ours", compile_vae=True, compile=True, **caches)
    losses_agree(ours, plain)
    (told,) = [event["text"] for event in ours.events_of("warning") if "torch.compile failed" in event["text"]]
    assert "install a C++ compiler" in told


def test_compiling_without_effect_is_reported(any_miniature: Any, tmp_path: Path) -> None:
    def told(name: str, **values: Any) -> list[str]:
        run = train(any_miniature, tmp_path / name, max_train_steps=1, **values)
        return [event["text"] for event in run.events_of("warning")]

    assert told("cached", **TEXT, compile_vae=True) == [
        "compile_text_encoder: has no effect: captions are cached and no text encoder is trained",
        "compile_vae: latents are cached, so the VAE only runs before the first step; worth it for many images only",
    ]
    assert told("used", **CAPTIONS_IN_THE_STEP, **UNCACHED, **TEXT, compile_vae=True) == []
    graphed = {**TEXT, "compile_backend": "cudagraphs", "compile_fullgraph": False}
    assert told("graphed", **CAPTIONS_IN_THE_STEP, **graphed) == [
        "compile_text_encoder: has no effect with compile_backend = cudagraphs; set compile_backend = inductor"
    ]


def test_missing_compile_requirements_name_the_option_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    more = CompileMoreOptions(compile_text_encoder=True, compile_vae=True)
    (told,) = compile_support.problems(CompileOptions(), more, torch.device("cuda"))
    assert told.startswith("compile_text_encoder, compile_vae: Triton is not installed")
    assert told.endswith("or turn compile_text_encoder and compile_vae off")
