"""Impossible memory options of FLUX.1 are reported before a model loads, in one sentence."""

from typing import Any

import pytest
import torch

from sd_scripts.library.quantization import fp8
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.settings.checks.between import remarks_between
from sd_scripts.settings.settings import Settings
from sd_scripts.training.methods.external_network import require_unswapped
from tests.support.scripts import FLUX_LORA
from tests.support.swap import transformer

RIGHT = {"train_data_dir": "images", "resolution": "1024,1024", "output_dir": "out"}


def problems(**options: Any) -> list[str]:
    return list(map(str, Settings(FLUX_LORA, {**RIGHT, **options}).problems()))


def remarks(**options: Any) -> dict[str, str]:
    return dict(remarks_between(Settings(FLUX_LORA, {**RIGHT, **options}).filled, "flux"))


def test_fp8_products_are_for_bf16() -> None:
    assert problems(fp8_compute=True, mixed_precision="bf16") == problems()
    assert "fp8_compute: needs mixed_precision = bf16, not fp16" in problems(fp8_compute=True, mixed_precision="fp16")


@pytest.mark.parametrize("args", [["algo=full"], ["algo=glora", "dora_wd=True"]])
def test_a_network_that_trains_the_base_and_swapping_exclude_one_another(args: list[str]) -> None:
    chosen = {"network_module": "lycoris.kohya", "network_args": args}
    assert problems(**chosen) == problems()
    (problem,) = set(problems(**chosen, blocks_to_swap=2)) - set(problems())
    assert problem.startswith("blocks_to_swap: lycoris.kohya with ")
    built_in = ["algo=lokr", "dora_wd=True"]
    assert problems(network_module="lycoris.kohya", network_args=built_in, blocks_to_swap=2) == problems()


def test_the_weights_a_network_really_trains_are_checked() -> None:
    model = transformer()
    base, added = model.single_blocks[0].linear1.weight, torch.nn.Parameter(torch.ones(2))
    swapping = MemoryOptions(blocks_to_swap=2)
    network = "somebody.network"
    require_unswapped([{"params": [added]}], model, swapping, network)
    require_unswapped([{"params": [base]}], model, MemoryOptions(), network)
    with pytest.raises(ValueError, match=r"^blocks_to_swap: somebody\.network trains weights of the base model"):
        require_unswapped([{"params": [added, base]}], model, swapping, network)


def test_checkpoints_in_main_memory_without_effect_are_reported() -> None:
    offload = {"cpu_offload_checkpointing": True}
    assert "without gradient_checkpointing" in remarks(**offload)["cpu_offload_checkpointing"]
    offload["gradient_checkpointing"] = True
    assert "cpu_offload_checkpointing" not in remarks(**offload)
    assert "compile" in remarks(**offload, compile=True)["cpu_offload_checkpointing"]


def test_a_device_that_cannot_multiply_in_fp8_is_reported() -> None:
    problem = fp8.compute_problem(torch.device("meta"))
    assert problem is not None
    assert problem.startswith("fp8_compute: ")
    assert problem.endswith("turn it off")
