"""Runs that bad input stops: one sentence, exit 2 before the first step and 1 after it, no partial file."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.support.faults import file_system
from tests.support.training import Run, images, run, train

pytestmark = pytest.mark.run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """The sentence of a run that stopped with `status`; its other output is phases and progress."""

    def told(made: Run, status: int = 2) -> str:
        err = capsys.readouterr().err
        assert made.status == status, err
        assert "Traceback" not in err
        sentence = err.strip().splitlines()[-1]
        if made.folder.path.is_dir():
            (failed,) = made.events_of("failed")
            assert sentence.startswith(failed["error"])
        partial = [path for path in made.output.rglob("*") if ".part" in path.name] if made.output.is_dir() else []
        assert partial == []
        return sentence

    return told


def cut(path: Path, source: Path, share: float) -> Path:
    data = source.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def test_a_missing_model_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    sentence = told(train(miniature, tmp_path / "out", pretrained_model_name_or_path=None))
    assert sentence.startswith("pretrained_model_name_or_path: not set; choose a .safetensors file")


def test_a_run_that_never_started_leaves_no_folder(miniature: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    for broken in images(tmp_path / "data").rglob("*.png"):
        broken.write_bytes(broken.read_bytes()[:20])
    made = train(miniature, output, run_dir=None, train_data_dir=tmp_path / "data")
    assert made.status == 2
    assert list(output.iterdir()) == []
    state = tmp_path / "no state"
    state.mkdir()
    made = train(miniature, output, run_dir=None, resume=state)
    assert made.status == 2
    assert list(output.iterdir()) == []


def test_a_model_that_does_not_exist_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    sentence = told(train(miniature, tmp_path / "out", pretrained_model_name_or_path=tmp_path / "none.safetensors"))
    assert sentence.startswith("pretrained_model_name_or_path: file or folder not found")


def test_a_mistake_found_before_loading_is_recorded_in_the_run_folder_of_the_gui(
    told: Any, miniature: Any, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    (output / "run").mkdir(parents=True)  # the GUI makes it before it starts the run
    made = train(miniature, output, pretrained_model_name_or_path=tmp_path / "none.safetensors")
    sentence = told(made)
    assert [event["kind"] for event in made.events] == ["failed"]
    assert made.events[0]["error"] == sentence


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
def test_a_text_file_as_model_is_reported(suffix: str, told: Any, miniature: Any, tmp_path: Path) -> None:
    wrong = tmp_path / f"model{suffix}"
    wrong.write_text("this is no model, whatever its name says")
    sentence = told(train(miniature, tmp_path / "out", pretrained_model_name_or_path=wrong))
    assert sentence.startswith("pretrained_model_name_or_path: ")


def test_a_lora_as_model_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    lora = tmp_path / "lora.safetensors"
    safetensors.torch.save_file({"lora_unet_mid.lora_down.weight": torch.zeros(2, 4)}, lora)
    sentence = told(train(miniature, tmp_path / "out", pretrained_model_name_or_path=lora))
    assert sentence.startswith("pretrained_model_name_or_path: ")


def test_half_a_model_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    half = cut(tmp_path / "half.safetensors", miniature.checkpoint, 0.5)
    sentence = told(train(miniature, tmp_path / "out", pretrained_model_name_or_path=half))
    assert sentence.startswith("pretrained_model_name_or_path: ")


def test_half_a_vae_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    half = cut(tmp_path / "half.safetensors", miniature.checkpoint, 0.5)
    assert told(train(miniature, tmp_path / "out", vae=half)).startswith("vae: ")


def test_a_folder_without_images_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    (tmp_path / "empty" / "10_cat").mkdir(parents=True)
    sentence = told(train(miniature, tmp_path / "out", train_data_dir=tmp_path / "empty"))
    assert sentence.startswith("train_data_dir: ")


def test_a_missing_data_folder_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    assert told(train(miniature, tmp_path / "out", train_data_dir=tmp_path / "none")).startswith("train_data_dir: ")


def test_images_that_cannot_be_read_are_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "broken")
    for image in root.rglob("*.png"):
        image.write_bytes(image.read_bytes()[:100])
    sentence = told(train(miniature, tmp_path / "out", train_data_dir=root, cache_latents=None))
    assert sentence.startswith("train_data_dir: ")


def test_a_file_in_place_of_the_output_folder_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    made = train(miniature, tmp_path / "out", run_dir=tmp_path / "run")
    assert told(made).startswith("output_dir: ")


@pytest.mark.parametrize("place", ["run_dir", "runs"])
def test_a_file_in_place_of_the_run_folder_is_reported(place: str, told: Any, miniature: Any, tmp_path: Path) -> None:
    way = tmp_path / "out" / "runs"
    way.parent.mkdir()
    way.write_text("in the way")
    made = train(miniature, tmp_path / "out", run_dir=way if place == "run_dir" else None)
    assert told(made).startswith("run_dir: ")


def test_an_impossible_console_file_is_reported(told: Any, miniature: Any, tmp_path: Path) -> None:
    made = train(miniature, tmp_path / "out", console_log_file=tmp_path / "nowhere" / "console.txt")
    assert told(made).startswith("console_log_file: ")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--learningrate=1"], "--learningrate: unknown option. Did you mean --learning_rate?"),
        (["--network_dim=many"], "network_dim: 'many' is not a whole number"),
        (["--train_batch_size=-1"], "train_batch_size: -1 is outside"),
        (["--optimizer_type=AdamX"], "optimizer_type: "),
        (["--optimizer_args", "momentum=3"], "optimizer_args: AdamW does not accept momentum"),
        (["--lr_scheduler=sine"], "lr_scheduler: "),
        (
            ["--lr_scheduler=constant", "--lr_scheduler_args", "x=1"],
            "lr_scheduler_args: constant does not accept these arguments",
        ),
        (["--config_file=nowhere"], "config_file: file not found: 'nowhere.toml'"),
        (["--mixed_precision=fp16"], "mixed_precision: fp16 is for GPUs"),
        (["--log_with=tensorboard"], "logging_dir: "),
        (["--network_weights=nowhere.safetensors"], "network_weights: "),
        (["--network_module=no.such.module"], "network_module: "),
        (["--network_module=."], "network_module: module not found: '.'"),
        (["--network_args", "conv_dim=1e9"], "network_args: conv_dim=1e9 must be at most 4096"),
        (["--learning_rate=0"], "learning_rate: all learning rates are 0"),
        (["--base_weights", "nowhere.safetensors"], "base_weights: "),
        (["--log_tracker_config=nowhere.toml"], "log_tracker_config: "),
        (["--initial_step=5", "--max_train_steps=3"], "initial_step: "),
    ],
    ids=lambda value: value[0].lstrip("-") if isinstance(value, list) else "",
)
def test_impossible_flags_are_reported(
    flags: list[str], sentence: str, told: Any, miniature: Any, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    good = [
        f"--pretrained_model_name_or_path={miniature.checkpoint}", f"--train_data_dir={images(tmp_path / 'data')}",
        f"--output_dir={output}", f"--run_dir={output / 'run'}", "--resolution=64", "--learning_rate=1e-4",
        "--network_module=networks.lora", "--seed=1",
    ]  # fmt: skip
    assert told(run([*good, *flags], output)).startswith(sentence)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"train_single_block_indices": "0-99999999999"},
            "train_single_block_indices: '0-99999999999' is not a number",
        ),
        ({"network_args": ["single_dim=1e9"]}, "network_args: single_dim=1e9 must be at most 4096"),
        ({"train_blocks": "double", "train_double_block_indices": "none"}, "network_args: all ranks"),
        ({"unet_lr": 0.0}, "learning_rate: all learning rates are 0"),
        ({"clip_l": "empty.safetensors"}, "clip_l: "),
        (
            {"network_weights": "sdxl.safetensors"},
            "network_weights: 'sdxl.safetensors' is an SDXL LoRA, not",
        ),
        (
            {"base_weights": ["model.safetensors"]},
            "base_weights: 'model.safetensors' is FLUX.1 dev, not a LoRA",
        ),
        ({"base_weights": ["empty.safetensors"]}, "base_weights: 'empty.safetensors' is empty"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_flux_does_not_support_are_reported_before_it_is_loaded(
    values: dict[str, Any],
    sentence: str,
    told: Any,
    flux_miniature: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.safetensors").touch()
    Path("model.safetensors").symlink_to(flux_miniature.checkpoint)
    safetensors.torch.save_file({"lora_te2_x.lora_down.weight": torch.zeros(2, 4)}, "sdxl.safetensors")
    made = train(flux_miniature, tmp_path / "out", **values)
    assert told(made).startswith(sentence)
    assert not made.folder.path.exists()


def test_random_captions_are_refused_before_anything_is_encoded(told: Any, each_miniature: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.toml"
    data.write_text(
        f"[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = '{images(tmp_path / 'in') / '1_noise'}'\n"
        "shuffle_caption = true\n"
    )
    made = train(each_miniature, tmp_path / "out", dataset_config=data, resolution=None)
    path = "datasets[0].subsets[0].shuffle_caption (line 5)"
    assert told(made).startswith(f"dataset_config: {path} changes captions at every step, so they cannot be cached")
    assert made.events_of("phase") == []


def test_a_network_for_a_different_model_is_reported(told: Any, flux_miniature: Any, tmp_path: Path) -> None:
    made = train(flux_miniature, tmp_path / "out", network_module="tests.support.networks.foreign_network")
    assert told(made).startswith("network_module: this network finds no layer to adapt")


def test_a_cache_that_cannot_be_written_leaves_nothing_next_to_the_images(
    told: Any, small_disk: Path, flux_miniature: Any, tmp_path: Path
) -> None:
    data = images(small_disk / "data")
    (small_disk / "filler").write_bytes(bytes(32 * 1024))
    disk = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
    sentence = told(train(flux_miniature, tmp_path / "out", train_data_dir=data, **disk))
    assert sentence.startswith("cache_")
    assert "cannot be written (the disk is full); free some space, or turn the option off" in sentence
    assert not [path for path in data.rglob("*") if path.suffix not in ("", ".png", ".txt")]


def test_a_seed_out_of_range_is_reported_before_loading(told: Any, each_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat --d 99999999999999999999")
    made = train(each_miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=1)
    assert "line 1: seed: 99999999999999999999" in told(made)
    assert made.events_of("phase") == []


def test_without_a_matching_tokenizer_nothing_is_loaded(told: Any, flux_miniature: Any, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    alone.symlink_to(flux_miniature.checkpoint)
    made = train(flux_miniature, tmp_path / "out", pretrained_model_name_or_path=alone)
    assert told(made).startswith("tokenizer_cache_dir: found no tokenizer")


def test_a_nan_loss_stops_the_run_before_anything_is_saved(told: Any, miniature: Any, tmp_path: Path) -> None:
    made = train(
        miniature, tmp_path / "out", learning_rate=1000.0, max_grad_norm=0.0, max_train_steps=20, save_every_n_steps=1
    )
    sentence = told(made, 1)
    assert sentence.startswith("the loss is not finite at step")
    assert "learning_rate" in sentence
    saved = [safetensors.torch.load_file(made.output / name) for name in made.files]
    assert all(bool(tensor.isfinite().all()) for tensors in saved for tensor in tensors.values())
    assert "short.safetensors" not in made.files


def test_a_vae_that_overflows_names_the_option(
    told: Any, miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images are encoded in the step; one of them drives the VAE out of range."""
    tensors = safetensors.torch.load_file(miniature.checkpoint)
    name = next(name for name in tensors if name.endswith("quant_conv.weight") and "post" not in name)
    tensors[name] = tensors[name] * float("inf")
    broken = tmp_path / "broken.safetensors"
    safetensors.torch.save_file(tensors, broken)
    made = train(miniature, tmp_path / "out", vae=broken, cache_latents=None)
    assert told(made, 1).startswith("no_half_vae: ")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The system refuses to write more into one file."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("state", [False, True], ids=["file", "state"])
def test_a_file_that_cannot_be_written_leaves_nothing(state: bool, told: Any, miniature: Any, tmp_path: Path) -> None:
    """The LoRA is 260 kB, its state with both moments is 700 kB; events and settings are a few."""
    size = 400_000 if state else 100_000
    output = tmp_path / "out"
    with files_no_larger_than(size):
        made = train(miniature, output, save_state=state)
    assert told(made, 1 if state else 2).startswith("output_dir: ")
    assert made.files == (["short.safetensors"] if state else [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    with file_system(tmp_path / "disk", "64k") as place:
        yield place


def test_a_full_disk_is_reported_in_one_sentence(
    told: Any, small_disk: Path, any_miniature: Any, tmp_path: Path
) -> None:
    made = train(any_miniature, small_disk / "out", train_data_dir=images(tmp_path / "data"), network_dim=32)
    assert "the disk is full" in told(made)
    assert made.files == []


def test_a_disk_too_full_for_an_event_is_reported_too(small_disk: Path, miniature: Any, tmp_path: Path) -> None:
    """Nothing can be written at all once the run has begun; on the way out, nothing may be printed but the sentence."""
    from sd_scripts import sdxl_train_network

    (small_disk / "filler").write_bytes(bytes(56 * 1024))
    flags = [
        f"--pretrained_model_name_or_path={miniature.checkpoint}", f"--train_data_dir={images(tmp_path / 'data')}",
        f"--output_dir={small_disk / 'out'}", "--resolution=64", "--learning_rate=1e-4", "--max_train_steps=100",
        "--max_data_loader_n_workers=0",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(sdxl_train_network.__file__)), *flags],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "No space left" in done.stderr or "the disk is full" in done.stderr
