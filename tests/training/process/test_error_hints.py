"""Faults in the middle of a run: which it survives, its messages, and that trained weights stay intact."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sd_scripts import flux_train_network
from sd_scripts.data.caches.cache_files import CACHE_KEY, open_cache, write_cache
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.settings import Settings
from sd_scripts.training.process import error_hints
from tests.support.faults import during
from tests.support.miniatures import sdxl_settings
from tests.support.runs import wait_for
from tests.support.training import Run, images, settings_for, train, train_whole

pytestmark = pytest.mark.run

__all__ = ["during"]

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are listed by /proc")
FROM_DISK = {"cache_latents": None, "cache_latents_to_disk": True}


@pytest.fixture(scope="module")
def data(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images with their latents on disk, one of which contains NaN."""
    root = tmp_path_factory.mktemp("data")
    train(any_miniature, root / "out", train_data_dir=images(root / "in", count=3), max_train_steps=1, **FROM_DISK)
    spoil(root / "in" / "1_noise" / "01_0064x0064_flux.safetensors")
    return root / "in"


def spoil(cache: Path) -> None:
    """Numbers that a cache may hold, and whose square is none."""
    with open_cache(cache) as held:
        tensors = dict(held)
        (size,) = (name.removeprefix("latents") for name in tensors)
        key = held.cache_key(size)
    tensors["latents" + size].fill_(1e30)
    write_cache(cache, tensors, {CACHE_KEY + size: key}, option="cache_latents_to_disk")


def sound(made: Run) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in made.tensors().values())


OPTIMIZERS = ["AdamW", "AdamW8bit", "Prodigy", "Lion", "Adafactor", "SGDNesterov", "AdamWScheduleFree"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_single_nan_loss_does_not_end_the_run_or_corrupt_weights(
    optimizer: str, data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    made = train(
        any_miniature, tmp_path / "out", train_data_dir=data, optimizer_type=optimizer, learning_rate=1e-3,
        max_train_steps=6, max_grad_norm=0.0 if optimizer == "Adafactor" else 1.0, **FROM_DISK,
    )  # fmt: skip
    assert made.status == 0
    broken = [event["step"] for event in made.events_of("step") if event.get("loss") is None]
    assert len(broken) == 2
    assert [w["text"].partition(";")[0] for w in made.events_of("warning") if "not finite" in w["text"]] == [
        f"the loss is not finite at step {step}" for step in broken
    ]
    assert sound(made)


def test_three_in_a_row_end_it_with_the_step_and_the_likely_causes(
    data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    alone = tmp_path / "in"
    shutil.copytree(data / "1_noise", alone / "1_noise", ignore=shutil.ignore_patterns("00*", "02*"))
    made = train(any_miniature, tmp_path / "out", train_data_dir=alone, max_train_steps=9, **FROM_DISK)
    assert made.status == 1
    (failed,) = made.events_of("failed")
    assert failed["error"] == "the loss is not finite at step 3 (3 steps in a row)"
    assert "learning_rate (now 0.01)" in failed["remedy"]
    assert "broken image" in failed["remedy"]
    assert made.files == []
    patient = train(
        any_miniature, tmp_path / "out", train_data_dir=alone, max_nonfinite_steps=5, max_train_steps=9, **FROM_DISK
    )
    assert "at step 5 (5 steps in a row)" in patient.events_of("failed")[-1]["error"]


def test_nothing_is_saved_while_the_loss_is_nan(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    made = train(
        any_miniature, tmp_path / "out", train_data_dir=data, max_train_steps=3, save_every_n_steps=1, **FROM_DISK
    )
    (broken,) = (event["step"] for event in made.events_of("step") if event.get("loss") is None)
    saved = {event["step"] for event in made.events_of("saved") if event["path"].endswith(".safetensors")}
    assert saved == {1, 2, 3} - ({broken} - {3})
    assert sound(made)


def test_whole_models_in_bf16_survive_a_nan_loss_too(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    data = shutil.copytree(data, tmp_path / "in")
    values = {"train_data_dir": data, "mixed_precision": "bf16", "max_train_steps": 6, **FROM_DISK}
    # latents in bf16 are others than those on disk, so they are rebuilt, corrupted, and found again
    first = train_whole(any_miniature, tmp_path / "out", **values)
    assert first.status == 0
    for cache in data.rglob("01_*_flux.safetensors"):
        spoil(cache)
    made = train_whole(any_miniature, tmp_path / "out", **values, full_bf16=True)
    assert made.status == 0
    assert sum(event.get("loss") is None for event in made.events_of("step")) == 2
    assert sound(made)


def test_a_nan_loss_that_would_corrupt_the_weights_ends_the_run(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    root = shutil.copytree(data, tmp_path / "in")
    made = train_whole(any_miniature, tmp_path / "out", train_data_dir=root, **FROM_DISK)
    assert made.status == 1
    assert "the loss is not finite at step" in made.events_of("failed")[-1]["error"]
    assert made.files == []


@LINUX
def test_a_save_on_a_full_disk_is_retried_and_the_run_continues(
    during: Any, any_miniature: Any, tmp_path: Path
) -> None:
    """The file does not fit at steps 1 and 2; then there is room."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "short-step00000002.safetensors").write_bytes(b"of an earlier run")
    during(1, lambda: limit(100_000))
    during(3, lambda: limit(None))
    made = train(any_miniature, output, max_train_steps=4, save_every_n_steps=1, network_dim=32)
    assert (output / "short.safetensors").stat().st_size > 100_000
    assert made.status == 0
    texts = [warning["text"] for warning in made.events_of("warning")]
    assert len([text for text in texts if "could not be written" in text and "tries again" in text]) == 2
    assert made.files[1:] == ["short-step00000003.safetensors", "short.safetensors"]
    assert (output / made.files[0]).read_bytes() == b"of an earlier run"
    assert sound(made)


def limit(size: int | None) -> None:
    """Let the system refuse to write more into one file."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


@LINUX
def test_a_sample_on_a_full_disk_does_not_end_the_run(during: Any, any_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 1")
    output = tmp_path / "out"
    output.mkdir()
    during(1, lambda: (output / "sample").write_text("a file in the way"))
    during(2, (output / "sample").unlink)
    made = train(any_miniature, output, sample_prompts=prompts, sample_every_n_steps=1)
    assert made.status == 0
    assert [event["step"] for event in made.events_of("sample")] == [2, 3]
    assert any(w["text"].startswith("output_dir: the sample '") for w in made.events_of("warning"))


@LINUX
def test_a_stop_whose_state_cannot_be_written_is_a_failure(during: Any, any_miniature: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"

    def stop() -> None:
        RunFolder(output / "run").command("stop")
        limit(100_000)

    during(2, stop)
    try:
        made = train(any_miniature, output, network_dim=32)
    finally:
        limit(None)
    assert made.status == 1
    assert made.events[-1]["kind"] == "failed"
    assert "could not be written" in made.events[-1]["error"]


def test_a_deleted_output_folder_is_created_again(during: Any, any_miniature: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    during(2, lambda: shutil.rmtree(output))
    made = train(any_miniature, output, save_every_n_steps=2, save_state=True)
    assert made.status == 0
    assert made.files == [
        "short-state",
        "short-step00000002-state",
        "short-step00000002.safetensors",
        "short.safetensors",
    ]
    assert any(w["text"].startswith(f"output_dir: '{output}' was deleted") for w in made.events_of("warning"))
    assert made.events_of("started")[0]["max_steps"] == 3  # again, since the page would not know
    assert made.events[-1]["kind"] == "finished"


def gpu_advice(family: str, method: str, **values: Any) -> str:
    settings = Settings(script_for(family, method), values)
    told = error_hints.explain(torch.OutOfMemoryError("CUDA out of memory"), settings)
    assert told
    return told[1]


def test_advice_for_a_full_gpu_starts_with_the_most_helpful_option_and_names_the_values_in_use() -> None:
    base = {"mixed_precision": "bf16"}
    assert gpu_advice("sdxl", "lora", **base, train_batch_size=4).startswith(
        "turn gradient_checkpointing on, or turn fp8_base on, or lower train_batch_size (now 4) and raise "
        "gradient_accumulation_steps (now 1) by the same factor, or set blocks_to_swap, or turn cache_latents on"
    )
    assert gpu_advice("flux", "lora", **base, gradient_checkpointing=True).startswith("turn fp8_base on, or set blocks")
    given = {**base, "gradient_checkpointing": True, "fp8_base": True, "blocks_to_swap": 10}
    assert gpu_advice("flux", "lora", **given).startswith("raise blocks_to_swap (now 10)")
    assert "blocks_to_swap" not in gpu_advice("flux", "lora", **given | {"blocks_to_swap": 35})
    assert gpu_advice("sdxl", "full", **base).startswith("turn full_bf16 on, or turn gradient_checkpointing on")
    assert gpu_advice("sdxl", "lora").startswith("set mixed_precision = bf16")


def test_options_already_in_use_are_not_advised() -> None:
    everything = {
        "mixed_precision": "bf16", "gradient_checkpointing": True, "cache_latents": True, "resolution": "1024",
        "cache_text_encoder_outputs": True, "network_dim": 64, "quantize_base": "nf4",
    }  # fmt: skip
    told = gpu_advice("sdxl", "lora", **everything)
    assert told.startswith("set blocks_to_swap, or lower network_dim (now 64), or lower resolution (now 1024)")
    assert "turn" not in told


@pytest.mark.parametrize(
    ("error", "sentence", "remedy"),
    [
        (RuntimeError("CUDA error: out of memory"), "the GPU is out of memory", "gradient_checkpointing"),
        (MemoryError(), "the system is out of RAM", "lower max_data_loader_n_workers (now 8)"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
            "the system is out of RAM",
            "close other programs",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            "a data loader process was killed",
            "max_data_loader_n_workers",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's"),
            "a data loader process ran out of shared memory",
            "--shm-size",
        ),
        (
            RuntimeError("cumsum_cuda does not have a deterministic implementation, but you set 'torch.use_determ"),
            "cumsum_cuda does not have a deterministic implementation",
            "turn deterministic off",
        ),
    ],
)
def test_memory_and_lost_processes_are_reported_in_a_sentence(error: Exception, sentence: str, remedy: str) -> None:
    told = error_hints.explain(error, sdxl_settings("model"))
    assert told
    assert told[0].startswith(sentence)
    assert remedy in told[1]


def test_other_errors_are_not_explained() -> None:
    assert error_hints.explain(RuntimeError("shapes do not fit"), sdxl_settings("model")) is None


FROM_IMAGES = {
    "cache_latents": None, "cache_text_encoder_outputs": None, "max_data_loader_n_workers": 2,
    "persistent_data_loader_workers": True,
}  # fmt: skip


@LINUX
def test_a_lost_data_loader_process_is_reported_in_one_sentence(
    during: Any, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    me = psutil.Process()
    others = me.children()  # of earlier tests: compilers, servers of forks

    def kill() -> None:
        workers = [each for each in me.children() if each not in others and each.cmdline() == me.cmdline()]
        assert len(workers) == 2
        workers[0].kill()
        time.sleep(0.5)

    during(2, kill)
    root = images(tmp_path / "in", count=4)
    made = train(any_miniature, tmp_path / "out", train_data_dir=root, max_train_steps=12, **FROM_IMAGES)
    assert made.status == 1
    assert made.events[-1]["error"].startswith("a data loader process was killed")
    assert "Traceback" not in capsys.readouterr().err


LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@LINUX
@pytest.mark.usefixtures("warm_python")
def test_a_training_whose_launcher_is_killed_saves_its_state_and_ends_with_its_workers(
    flux_miniature: Any, tmp_path: Path
) -> None:
    output, config = tmp_path / "out", tmp_path / "run.toml"
    paths = {"train_data_dir": images(tmp_path / "in", count=4), "output_dir": output, "run_dir": output / "run"}
    values = {**settings_for(flux_miniature), **paths, **FROM_IMAGES, "max_train_steps": 100_000}
    write_toml(config, {name: str(value) if isinstance(value, Path) else value for name, value in values.items()})
    command = [sys.executable, str(Path(flux_train_network.__file__)), "--config_file", str(config)]
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"},
        stderr=subprocess.DEVNULL,
    )
    tail = RunFolder(output / "run").events()
    wait_for(lambda: any(event["kind"] == "step" for event in tail), 120)
    family = psutil.Process(launcher.pid).children(recursive=True)
    assert len(family) == 3  # the training and two that read
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family), 120)
    events = list(RunFolder(output / "run").events())
    assert events[-1]["kind"] == "stopped"
    assert (output / f"short-step{events[-1]['step']:08d}-state" / "state.pt").is_file()
