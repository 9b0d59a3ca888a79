"""Two processes over gloo: they train as one, report once, and end together."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor

from sd_scripts.families.common.family import StepInputs
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.context import Context
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.methods.gradient_averaging import MAX_IN_FLIGHT
from sd_scripts.training.trainer import Trainer
from tests.support.backends import FailingCode, backends
from tests.support.suite.fresh import together
from tests.support.training import (
    ALONE,
    ENCODED,
    FULL,
    Run,
    encoding_is_usual,
    equal,
    images,
    run,
    settings_for,
    train_whole,
)
from tests.training.methods.test_full_run import base_of

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform == "win32", reason="gloo without CUDA is tried on Linux"),
]


@contextmanager
def keeping_copies(folder: Path) -> Iterator[None]:
    """Let training in this process also write, in the end, its weights and losses."""
    losses, in_flight, micro_step, finish = [], [], Eager.micro_step, Trainer._finish

    def noted(eager: Eager, inputs: StepInputs) -> Tensor:
        losses.append(micro_step(eager, inputs))
        averaging = getattr(eager.trainable.gradients, "averaging", None)
        in_flight.append(len(averaging.in_flight) if averaging else 0)
        return losses[-1]

    def with_copy(trainer: Trainer) -> Path:
        held = {**trainer.trainable.state_dict(), "losses": torch.stack(losses)}
        torch.save(held, folder / f"held{trainer.context.rank}.pt")
        torch.save(in_flight, folder / f"underway{trainer.context.rank}.pt")
        return finish(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eager, "micro_step", noted)
        patch.setattr(Trainer, "_finish", with_copy)
        yield


def copies(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of both processes."""
    one, other = (torch.load(folder / f"held{rank}.pt", weights_only=True) for rank in (0, 1))
    return one, other


def configure(folder: Path, miniature: Any, **values: Any) -> Path:
    """A settings file; the output is `folder`/out and the run's folder is run in it."""
    usual = encoding_is_usual(values)
    paths = {
        **(ENCODED if usual else {}),
        "train_data_dir": str(encoded(miniature) if usual else images(folder / "images", count=6)),
        "output_dir": str(folder / "out"),
        "run_dir": str(folder / "out" / "run"),
    }
    write_toml(folder / "run.toml", {**_plain(settings_for(miniature)), **paths, **values})
    return folder / "run.toml"


def encoded(miniature: Any) -> Path:
    """Images whose encodings are shared by all runs with the usual ones."""
    return images(miniature.data_dir.parent / "six encoded", count=6)


def data_of(folder: Path) -> Path:
    """The images of the run that was configured there."""
    return Path(read_toml(folder / "run.toml")["train_data_dir"])


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def test_two_processes_train_as_one(any_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"a {colour} circle --w 64 --h 64 --s 1 --d 1" for colour in ("red", "blue", "green")))
    config = configure(
        tmp_path, any_miniature, save_state=True, validation_split=0.34, validate_every_n_steps=3,
        sample_prompts=str(prompts), sample_every_n_steps=3,
    )  # fmt: skip
    statuses, told = train_group(config)
    assert statuses == [0, 0], told
    made = Run(0, tmp_path / "out", RunFolder(tmp_path / "out" / "run"))
    one, other = copies(tmp_path)

    assert one["masters"].any()
    assert torch.equal(one["masters"], other["masters"])
    assert made.losses == pytest.approx(((one["losses"] + other["losses"]) / 2).tolist())
    assert not torch.equal(one["losses"], other["losses"])
    assert made.steps == [1, 2, 3]
    assert made.events_of("started")[0]["batches_per_epoch"] == 2  # of four images; two are kept for validation
    assert len(made.events_of("started")) == len(made.events_of("finished")) == len(made.events_of("validation")) == 1
    assert [event["prompt"].split()[1] for event in made.events_of("sample")] == ["red", "blue", "green"]
    assert made.files == ["sample", "short-state", "short.safetensors"]


def train_group(config: Path, family: str = "flux", method: str = "lora") -> tuple[list[int], str]:
    """Exit statuses of two processes without the launcher, and the output of both."""
    return together(2, config.parent, train_in_group, config, family, method)


def train_in_group(config: Path, family: str, method: str) -> int:
    """In a process that is not this one, and may have trained before."""
    AcceleratorState._reset_state(reset_partial_state=True)  # there is another group now
    torch._dynamo.reset()
    os.environ["ACCELERATE_USE_CPU"] = "true"
    with keeping_copies(config.parent):
        return run(["--config_file", str(config)], config.parent / "out", family, method).status


def test_two_processes_train_the_same_embeddings(miniature: Any, tmp_path: Path) -> None:
    statuses, told = train_group(configure(tmp_path, miniature, **ALONE), "sdxl", "textual_inversion")
    assert statuses == [0, 0], told
    one, other = copies(tmp_path)
    assert torch.equal(one["masters"], other["masters"])
    assert not torch.equal(one["losses"], other["losses"])


def test_a_mistake_ends_both_processes_with_one_sentence(any_miniature: Any, tmp_path: Path) -> None:
    statuses, told = train_group(configure(tmp_path, any_miniature, resume=str(tmp_path / "nowhere")))
    assert statuses == [2, 2]
    assert told.count("resume: folder not found") == 1


def test_a_nan_loss_ends_both_processes(any_miniature: Any, tmp_path: Path) -> None:
    values = {"learning_rate": 1e3, "max_train_steps": 20, "max_grad_norm": 0.0}
    statuses, told = train_group(configure(tmp_path, any_miniature, **values))
    assert statuses == [1, 1]
    assert told.count("lower learning_rate (now 1000.0)") == 1


def test_two_processes_find_the_newest_state_together_and_resume_exactly(any_miniature: Any, tmp_path: Path) -> None:
    kept = {"save_state": True, "max_train_steps": 4, "save_every_n_steps": 2, "resume": "latest"}
    statuses, told = train_group(configure(tmp_path, any_miniature, **kept))
    assert statuses == [0, 0], told
    output = tmp_path / "out"
    whole = Run(0, output, RunFolder(output / "run"))
    losses, tensors = whole.losses, whole.tensors()
    for path in (output / "short-state", output / "run"):
        shutil.rmtree(path)
    statuses, told = train_group(configure(tmp_path, any_miniature, **kept))
    assert statuses == [0, 0], told
    assert whole.losses == losses[2:]
    assert equal(whole.tensors(), tensors)
    (started,) = whole.events_of("started")
    assert started["resumed_from"] == str(output / "short-step00000002-state")


def test_compiled_swapped_blocks_train_the_same_in_both_processes(flux_miniature: Any, tmp_path: Path) -> None:
    everything = {
        "blocks_to_swap": 2,
        "gradient_checkpointing": True,
        "compile": True,
        "compile_backend": "eager",
    }
    losses, masters = [], []
    for name, options in {"plain": {}, "everything": everything}.items():
        (tmp_path / name).mkdir()
        statuses, told = train_group(configure(tmp_path / name, flux_miniature, max_train_steps=2, **options), "flux")
        assert statuses == [0, 0], told
        one, other = copies(tmp_path / name)
        assert one["masters"].any()
        assert torch.equal(one["masters"], other["masters"])
        assert not torch.equal(one["losses"], other["losses"])
        output = tmp_path / name / "out"
        made = Run(0, output, RunFolder(output / "run"))
        assert made.losses == pytest.approx(((one["losses"] + other["losses"]) / 2).tolist())
        assert [event["graphs"] for event in made.events_of("compile")] == ([2] if options else [])
        losses.append(made.losses)
        masters.append(one["masters"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(masters[1], masters[0], rtol=1e-3, atol=1e-5)


HALF = {"mixed_precision": "bf16", "full_bf16": True}
WITHIN = {"fused_backward_pass": True}
"""Backward updates a block as soon as its gradients are there, and averaged."""
TOLERANCE = 0.02
"""AdamW takes whole steps by gradients that are nothing but rounding, such as of a bias before a norm."""
ENCODERS = {"train_text_encoder": True, "cache_text_encoder_outputs": None}


def train_two(folder: Path, miniature: Any, **values: Any) -> Run:
    """Full training by two processes, which end with equal weights; the results of the first."""
    folder.mkdir(exist_ok=True)
    statuses, told = train_group(configure(folder, miniature, **{**FULL, **values}), miniature.family, "full")
    assert statuses == [0, 0], told
    one, other = copies(folder)
    assert not torch.equal(one.pop("losses"), other.pop("losses"))
    assert equal(one, other)
    return Run(0, folder / "out", RunFolder(folder / "out" / "run"))


def fail_in_backward(config: Path, family: str, method: str) -> int:
    """In another process. In the second of them the backward pass of compiled code fails in its third block, when the
    processes have averaged the gradients of two."""
    nth = 3 if os.environ["RANK"] == "1" else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends(), "eager", FailingCode(nth, lambda: RuntimeError("no such kernel"), in_backward=True))
        return train_in_group(config, family, method)


@pytest.mark.parametrize("more", [{}, WITHIN], ids=["at the end", "within backward"])
def test_both_processes_keep_training_when_compiled_code_fails_in_one(
    more: dict[str, Any], any_miniature: Any, as_two: Callable[..., Run], tmp_path: Path
) -> None:
    values = {**FULL, "max_grad_norm": 0.0, "compile": True, "compile_backend": "eager", **more}
    config = configure(tmp_path, any_miniature, **values)
    statuses, told = together(2, tmp_path, fail_in_backward, config, "flux", "full")
    assert statuses == [0, 0], told
    one, other = copies(tmp_path)
    del one["losses"], other["losses"]
    assert equal(one, other)
    two = Run(0, tmp_path / "out", RunFolder(tmp_path / "out" / "run"))
    if more:  # the rest of the failed step uses the updates of its first blocks
        return
    alone = as_two(max_grad_norm=0.0)
    assert two.losses == pytest.approx(alone.losses, rel=1e-5)
    assert apart(two, alone, any_miniature) < TOLERANCE


@pytest.fixture(scope="module")
def as_two(any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Trains in one process what two train with the same values; once for all tests."""

    @cache
    def train(**values: Any) -> Run:
        return train_as_two(any_miniature, tmp_path_factory.mktemp("one"), encoded(any_miniature), **values)

    return train


def train_as_two(miniature: Any, output: Path, data: Path, **values: Any) -> Run:
    """One process with twice the batch: two micro-steps, each with the draws of a process."""

    def generator(context: Context, step: int, micro: int) -> torch.Generator:
        return torch.Generator().manual_seed(context.number(micro, step, 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "generator", generator)
        return train_whole(miniature, output, train_data_dir=data, gradient_accumulation_steps=2, **values)


def apart(one: Run, other: Run, miniature: Any, file: str = "short.safetensors") -> float:
    """How far two models are from each other, relative to how far they have moved."""
    base, ours, theirs = (
        torch.cat([tensor.flatten().float() for _, tensor in sorted(tensors.items())])
        for tensors in (base_of(miniature), one.tensors(file), other.tensors(file))
    )
    return float((ours - theirs).norm() / (theirs - base).norm())


@pytest.mark.parametrize(
    ("values", "more"),
    [({}, {}), ({"max_grad_norm": 0.0}, WITHIN)],
    ids=["at the end", "within backward"],  # test_encoders_... trains SDXL's within backward
)
def test_two_processes_equal_one_process_with_twice_the_batch(
    values: dict[str, Any], more: dict[str, Any], any_miniature: Any, as_two: Callable[..., Run], tmp_path: Path
) -> None:
    two = train_two(tmp_path / "two", any_miniature, **values, **more)
    one = as_two(**values)
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert apart(two, one, any_miniature) < TOLERANCE
    assert torch.load(tmp_path / "two" / "underway0.pt") == [0 if more else MAX_IN_FLIGHT] * 3  # when backward is done
    assert two.files == ["short.safetensors"]


@pytest.mark.parametrize("values", [HALF, {"mixed_precision": "bf16"}], ids=["half", "masters"])
def test_gradients_in_half_precision_are_averaged_as_they_arrive(
    values: dict[str, Any], any_miniature: Any, as_two: Callable[..., Run], tmp_path: Path
) -> None:
    """Masters' gradients are then coarser than when one process adds them up."""
    values = {**values, "save_precision": "float"}
    two = train_two(tmp_path / "two", any_miniature, **values)
    one = as_two(**values)
    assert two.losses == pytest.approx(one.losses, rel=1e-3)
    assert apart(two, one, any_miniature) < TOLERANCE


def test_encoders_with_unused_last_layers_are_updated_within_backward_too(miniature: Any, tmp_path: Path) -> None:
    values = {"max_grad_norm": 0.0, "max_train_steps": 2, **ENCODERS}
    blocks = train_two(tmp_path / "blocks", miniature, **values, **WITHIN)
    groups = train_two(tmp_path / "groups", miniature, **values, fused_optimizer_groups=3)
    one = train_as_two(miniature, tmp_path / "one", data_of(tmp_path / "blocks"), **values)
    assert blocks.losses == pytest.approx(one.losses, rel=1e-5)
    assert apart(blocks, one, miniature) < TOLERANCE
    assert apart(groups, one, miniature) < TOLERANCE


@pytest.mark.parametrize("more", [{}, WITHIN], ids=["at the end", "within backward"])
def test_trained_swapped_blocks_match_resident_ones(more: dict[str, Any], flux_miniature: Any, tmp_path: Path) -> None:
    values = {**HALF, **more, "optimizer_type": "SGDNesterov", "learning_rate": 1e-2}
    swapped = train_two(tmp_path / "swapped", flux_miniature, **values, blocks_to_swap=2)
    resident = train_two(tmp_path / "resident", flux_miniature, **values)
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())


def test_resumed_full_training_of_two_processes_equals_an_uninterrupted_run(any_miniature: Any, tmp_path: Path) -> None:
    values = {**HALF, **WITHIN, "use_ema": True, "max_train_steps": 4, "save_state": True, "save_every_n_steps": 2}
    whole = train_two(tmp_path / "runs", any_miniature, **values)
    losses, files = whole.losses, ("short.safetensors", "short-ema.safetensors")
    tensors = [whole.tensors(file) for file in files]
    state = whole.output.rename(tmp_path / "whole") / "short-step00000002-state"
    again = train_two(tmp_path / "runs", any_miniature, **values, resume=str(state))
    assert again.losses == losses[2:]
    assert all(equal(again.tensors(file), before) for file, before in zip(files, tensors, strict=True))
