"""Two processes over gloo whose weights are in shards (FSDP2): they train like one process."""

import copy
import json
import os
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.reading import from_values
from sd_scripts.training import context
from sd_scripts.training.methods.sharded import Shards, require_fsdp_support
from tests.support.backends import backends
from tests.support.scripts import FLUX_FULL
from tests.support.suite.fresh import PATIENCE, group, launch, outcome, together, told_in
from tests.support.training import FULL, Run, equal, train_whole
from tests.training.methods.test_ddp import (
    TOLERANCE,
    apart,
    configure,
    copies,
    data_of,
    train_as_two,
    train_group,
    train_in_group,
)
from tests.training.methods.test_full_run import base_of, of_denoiser

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform == "win32", reason="gloo without CUDA is tried on Linux"),
]

BF16 = {"mixed_precision": "bf16", "save_precision": "float"}
HALF = {"mixed_precision": "bf16", "full_bf16": True}
COMPILED = {"compile": True, "compile_backend": "aot_eager"}
ON_CPU = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
DRIVER = """
import json, os, sys
from pathlib import Path

(Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
"""
"""A launched process records its launcher's settings."""


@pytest.fixture(autouse=True)
def _launched_with_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that accelerate launch --use_fsdp --fsdp_version 2 sets; a single one has no use for it."""
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}.items():
        monkeypatch.setenv(name, value)


def train_shards(folder: Path, miniature: Any, **values: Any) -> Run:
    """Full training by two processes, each of which stores about half of the weights; their results."""
    folder.mkdir(exist_ok=True)
    statuses, told = train_group(configure(folder, miniature, **{**FULL, **values}), miniature.family, "full")
    assert statuses == [0, 0], told
    one, other = (sum(rows.numel() for name, rows in held.items() if name != "losses") for held in copies(folder))
    assert 0.9 < one / other < 1.2
    base = base_of(miniature)
    assert one + other == sum(base[name].numel() for name in of_denoiser(base))
    return Run(0, folder / "out", RunFolder(folder / "out" / "run"))


CHECKPOINTED = {"gradient_checkpointing": True}


@pytest.mark.parametrize(
    ("name", "more"),
    [("any_miniature", COMPILED), ("qwen_image_miniature", {})],  # SDXL's are trained with its text encoders, below
    ids=["flux compiled", "qwen_image"],
)
def test_shards_train_like_whole_weights_and_generate_images(
    name: str, more: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, values = request.getfixturevalue(name), {**CHECKPOINTED, **more, **with_prompts(tmp_path)}
    two = train_shards(tmp_path / "two", model, **values, sample_every_n_steps=3)
    one = train_as_two(model, tmp_path / "one", data_of(tmp_path / "two"))
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert apart(two, one, model) < TOLERANCE
    assert two.files == ["sample", "short.safetensors"]
    assert len(two.events_of("sample")) == 3
    assert [event["breaks"] for event in two.events_of("compile")[-1:]] == [0] * ("compile" in more)


EVERYTHING: dict[str, Any] = {
    **BF16, "use_ema": True, "max_train_steps": 2, "save_state": True, "save_every_n_steps": 1,
    "validation_split": 0.34, "validate_every_n_steps": 1, "sample_every_n_steps": 1,
    "optimizer_args": ["eps=0.01"],
}  # fmt: skip
"""With this eps a gradient that is nothing but rounding moves a weight no further than it is large."""
TEXT_ENCODERS: dict[str, Any] = {
    "train_text_encoder": True, "cache_text_encoder_outputs": None, "save_state_on_train_end": True,
    "optimizer_args": EVERYTHING["optimizer_args"],
}  # fmt: skip


def with_prompts(folder: Path, *colours: str) -> dict[str, str]:
    prompts, colours = folder / "prompts.txt", colours or ("red", "blue", "green")
    prompts.write_text("\n".join(f"a {colour} circle --w 64 --h 64 --s 1 --d 1" for colour in colours))
    return {"sample_prompts": str(prompts)}


def test_masters_averages_validation_and_images_match_whole_weights(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**EVERYTHING, **with_prompts(tmp_path)}
    two = train_shards(tmp_path / "two", any_miniature, **values)
    prompts = [event["prompt"].split()[1] for event in two.events_of("sample")]
    assert prompts == ["red", "blue", "green"] * 2
    assert len({event["path"] for event in two.events_of("sample")}) == len(list((two.output / "sample").iterdir()))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    plain = tmp_path / "plain"
    plain.mkdir()
    statuses, told = train_group(configure(plain, any_miniature, **{**FULL, **values}), any_miniature.family, "full")
    assert statuses == [0, 0], told
    whole = Run(0, plain / "out", RunFolder(plain / "out" / "run"))
    assert two.files == whole.files
    # the first step is compared: how bfloat16 rounds grows from step to step, and differs between CPUs
    assert two.losses == pytest.approx(whole.losses, rel=1e-2)
    validated = [[event["loss"] for event in each.events_of("validation")] for each in (two, whole)]
    assert len(validated[0]) == len(validated[1]) == 2
    assert validated[0][0] == pytest.approx(validated[1][0], rel=1e-2)
    for file in ("short-step00000001.safetensors", "short-step00000001-ema.safetensors"):
        assert apart(two, whole, any_miniature, file) < 0.05  # bfloat16 itself is 0.1 from float32


def test_a_resumed_sharded_run_equals_an_uninterrupted_one(any_miniature: Any, tmp_path: Path) -> None:
    values = {**HALF, "use_ema": True, "max_train_steps": 4, "save_state": True, "save_every_n_steps": 2}
    whole = train_shards(tmp_path / "runs", any_miniature, **values)
    losses, files = whole.losses, ("short.safetensors", "short-ema.safetensors")
    tensors = [whole.tensors(file) for file in files]
    state = whole.output.rename(tmp_path / "whole") / "short-step00000002-state"
    again = train_shards(tmp_path / "runs", any_miniature, **values, resume=str(state))
    assert again.losses == losses[2:]
    assert all(equal(again.tensors(file), before) for file, before in zip(files, tensors, strict=True))


def test_one_process_resumes_from_a_state_of_two_and_two_from_a_state_of_one(
    any_miniature: Any, tmp_path: Path
) -> None:
    values = {**BF16, "use_ema": True, "save_state_on_train_end": True}
    two = train_shards(tmp_path / "two", any_miniature, **values, max_train_steps=2)
    one = train_whole(
        any_miniature, tmp_path / "one", **values, max_train_steps=4, resume=two.output / "short-state",
        train_data_dir=data_of(tmp_path / "two"),
    )  # fmt: skip
    assert one.steps == [3, 4]
    state = torch.load(one.output / "short-state" / "state.pt", weights_only=True)
    assert {s["step"] for s in state["optimizer"]["state"].values()} == {4}
    (tmp_path / "three").mkdir()
    last = train_shards(
        tmp_path / "three", any_miniature, **values, max_train_steps=5, resume=str(one.output / "short-state")
    )
    assert last.steps == [5]
    assert last.losses[0] == pytest.approx(one.losses[-1], rel=0.5)


CALLS = 13
"""Of compiled blocks, which are called in the fourth step then."""


def fail_to_compile(config: Path, ranks: str) -> int:
    """In another process. In these of them a compiled block fails in the fourth step."""
    calls = count(1)

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        def call(*inputs: Any) -> Any:
            if os.environ["RANK"] in ranks and next(calls) == CALLS:
                raise RuntimeError("no such kernel")
            return graph(*inputs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends(), "eager", backend)
        patch.setattr(context, "BARRIER_SECONDS", PATIENCE if len(ranks) == 2 else 2.0)
        return train_in_group(config, "flux", "full")


FAILING: dict[str, Any] = {
    **FULL, "compile": True, "compile_backend": "eager", "save_state": True, "save_every_n_steps": 2,
    "max_train_steps": 4,
}  # fmt: skip


def test_compiled_code_that_fails_in_both_processes_ends_neither(any_miniature: Any, tmp_path: Path) -> None:
    config = configure(tmp_path, any_miniature, **FAILING)
    statuses, told = together(2, tmp_path, fail_to_compile, config, "01")
    assert statuses == [0, 0], told
    assert told.count("The run continues without compiling") == 1


def test_text_encoders_train_whole_alongside_shards(miniature: Any, tmp_path: Path) -> None:
    """And SDXL's blocks are checkpointed and make an image."""
    folder = tmp_path / "two"
    folder.mkdir()
    values = {**FULL, **TEXT_ENCODERS, **CHECKPOINTED, **with_prompts(tmp_path, "red"), "sample_every_n_steps": 3}
    statuses, told = train_group(configure(folder, miniature, **values), "sdxl", "full")
    assert statuses == [0, 0], told
    two = Run(0, folder / "out", RunFolder(folder / "out" / "run"))
    held = [{name: t for name, t in each.items() if name.startswith("text_encoder")} for each in copies(folder)]
    assert equal(*held)
    assert len(two.events_of("sample")) == 1
    one = train_as_two(miniature, tmp_path / "one", data_of(folder), **TEXT_ENCODERS)
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert apart(two, one, miniature) < TOLERANCE
    states = [torch.load(run.output / "short-state" / "state.pt", weights_only=True) for run in (two, one)]
    shapes = [tree_map(lambda x: getattr(x, "shape", x), state["optimizer"]["state"]) for state in states]
    assert shapes[0] == shapes[1]


def test_options_that_need_whole_weights_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**values: Any) -> list[str]:
        try:
            require_fsdp_support(from_values(FLUX_FULL, values))
        except ValueError as error:
            return str(error).splitlines()
        return []

    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")  # which it turns off
    assert told() == []
    (fused,) = told(fused_backward_pass=True)
    assert fused.startswith("fused_backward_pass: not supported with FSDP, where each")
    (swap,) = told(**HALF, blocks_to_swap=2)
    assert swap.startswith("blocks_to_swap: not supported with FSDP, which spreads")
    (whole,) = told(optimizer_type="Adafactor")
    assert whole.startswith("optimizer_type: Adafactor needs whole weights")
    (half,) = told(**HALF, optimizer_type="Lion")
    assert half.startswith("full_bf16: with FSDP only AdamW can train half-precision weights")
    (graphs,) = told(compile=True, compile_mode="reduce-overhead")
    assert graphs == "compile_mode: CUDA graphs need weights at fixed addresses; choose default with FSDP"
    (graphs,) = told(compile=True, compile_backend="cudagraphs")
    assert graphs == "compile_backend: CUDA graphs need weights at fixed addresses; choose inductor with FSDP"
    (graphs,) = told(compile=True, compile_options=["triton.cudagraphs=True"])
    assert graphs.startswith("compile_options: CUDA graphs need weights at fixed addresses; remove triton.cudagraphs")
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    (offload,) = told()
    assert offload.startswith("fsdp_offload_params: not supported, shards stay on the GPUs")


def test_all_options_that_need_whole_weights_are_reported_once_and_both_processes_end(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDP_VERSION", "1")
    values = {"optimizer_type": "Adafactor", "fused_backward_pass": True}
    statuses, told = train_group(configure(tmp_path, any_miniature, **{**FULL, **values}), "flux", "full")
    assert statuses == [2, 2]
    assert told.count("optimizer_type: Adafactor needs whole weights") == 1
    assert told.count("fused_backward_pass: not supported with FSDP") == 1
    assert told.count("fsdp_version: FSDP 1 is not supported") == 1
    assert "Traceback" not in told


def test_a_lora_needs_no_shards(any_miniature: Any, tmp_path: Path) -> None:
    statuses, told = train_group(configure(tmp_path, any_miniature))
    assert statuses == [2, 2]
    assert told.count("use_fsdp: not supported for LoRA") == 1


def test_the_environment_that_accelerate_sets_turns_on_sharding(
    any_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCELERATE_USE_FSDP", "FSDP_VERSION"):
        monkeypatch.delenv(name)
    for name, value in ON_CPU.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "driver.py").write_text(DRIVER)
    console = tmp_path / "console.txt"
    launcher = launch(["--use_fsdp", "--fsdp_version=2"], [str(tmp_path / "driver.py"), str(tmp_path)], console)
    assert outcome(launcher) == 0, console.read_text()
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in told] == [("0", "2"), ("1", "2")]
    for name, value in told[0].items():
        if name.startswith(("ACCELERATE_", "FSDP_")):
            assert told[1][name] == value
            monkeypatch.setenv(name, value)
    train_shards(tmp_path / "two", any_miniature, max_train_steps=1)
    base, name = base_of(any_miniature), "double_blocks.0.img_attn.qkv.weight"
    assert {len(held[f"denoiser.{name}"]) for held in copies(tmp_path / "two")} == {len(base[name]) // 2}


def uneven() -> int:
    """One of three processes: two steps by hand on rows, some processes of which have none; how many are wrong."""
    torch.distributed.init_process_group("gloo")
    rank, wrong = torch.distributed.get_rank(), 0
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 1), nn.Linear(1, 7))
    module = copy.deepcopy(plain)
    context: Any = SimpleNamespace(device=torch.device("cpu"), world=3, is_main=rank == 0)
    shards = Shards(context, module, [module[1]])
    named = {name: (weight, shards.add(name, weight)) for name, weight in module.named_parameters()}
    x = torch.randn(6, 4)
    for _ in range(2):
        plain(x).square().mean().backward()
        module(x[2 * rank : 2 * rank + 2]).square().mean().backward()
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                sharded, rows = named[name]
                assert isinstance(sharded.grad, DTensor)
                assert weight.grad is not None
                rows.sub_(sharded.grad.to_local(), alpha=0.1)
                weight.sub_(weight.grad, alpha=0.1)
                weight.grad = sharded.grad = None
    whole = shards.values({sharded: rows for sharded, rows in named.values()})
    for name, weight in plain.state_dict().items():
        rows = named[name][1]
        wrong += not torch.allclose(shards.rows(weight), rows, atol=1e-6)
        wrong += rank == 0 and not torch.allclose(whole[name], weight, atol=1e-6)
    torch.distributed.destroy_process_group()
    return wrong


def test_rows_that_do_not_divide_evenly_are_updated_and_joined(tmp_path: Path) -> None:
    statuses = [outcome(each) for each in group(3, tmp_path, uneven)]
    assert statuses == [0, 0, 0], told_in(tmp_path)


def fail_and_end(config: Path) -> int:
    """In another process, which ends with its run like a launcher's processes. Compiled code fails in the second."""
    status = fail_to_compile(config, "1")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def test_compiled_code_that_fails_in_one_process_ends_both(any_miniature: Any, tmp_path: Path) -> None:
    """By the end of the process that failed, the other learns that it is gone. The last test: later ones would need
    new processes."""
    statuses, told = together(2, tmp_path, fail_and_end, configure(tmp_path, any_miniature, **FAILING))
    assert statuses == [1, 1], told
    why = "torch.compile failed: RuntimeError: no such kernel, but not in all processes, and with FSDP all"
    (failed,) = Run(1, tmp_path / "out", RunFolder(tmp_path / "out" / "run")).events_of("failed")
    assert failed["error"].startswith(f"another process of the run failed: {why}")
    assert failed["remedy"].startswith(f"the state of step 2 is in '{tmp_path / 'out' / 'short-step00000002-state'}';")
    assert told.count(why) == 2
    assert told.count("progress since the last state (steps: 1) is lost: with FSDP") == 1
    assert "Traceback" not in told
