"""LoRAs of short whole runs: the metadata of their files, their initial weights, eager and compiled."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch._dynamo.testing import CompileCounterWithBackend

from sd_scripts.families.sdxl.family import SDXL
from tests.support.networks.lora_sdxl import losses, prepare, save, say_something
from tests.support.training import CAPTIONS_IN_THE_STEP, equal, train

pytestmark = pytest.mark.run


def test_the_file_records_its_kind_and_keeps_its_precision(miniature: Any, tmp_path: Path) -> None:
    args = ["conv_dim=3", "conv_alpha=6", "rank_dropout=0.1"]
    own = {"network_args": args, "network_dropout": 0.1, "max_train_steps": 4}  # two epochs
    run = train(miniature, tmp_path / "out", save_precision="fp16", **own)
    assert run.status == 0
    tensors = run.tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    ups = [tensor for key, tensor in tensors.items() if key.endswith("lora_up.weight")]
    assert all(up.any() for up in ups), "every layer has learned"
    assert {float(tensor) for key, tensor in tensors.items() if key.endswith("alpha")} == {1.0, 6.0}

    path = run.output / "short.safetensors"
    with safe_open(path, "pt") as file:
        told = file.metadata()
    expected = {
        "ss_network_module": "networks.lora",
        "ss_network_dim": "2",
        "ss_network_alpha": "1.0",
        "ss_network_dropout": "0.1",
        "ss_network_args": '{"conv_dim": "3", "conv_alpha": "6", "rank_dropout": "0.1"}',
        "ss_base_model_version": "sdxl_base_v1-0",
        "ss_steps": "4",
        "ss_epoch": "2",
        "ss_seed": "1",
        "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
        "modelspec.title": "short",
        "modelspec.prediction_type": "epsilon",
    }
    assert {key: told.get(key) for key in expected} == expected
    data = path.read_bytes()
    payload = data[8 + int.from_bytes(data[:8], "little") :]
    assert told["sshs_model_hash"] == hashlib.sha256(payload).hexdigest()


def test_cached_captions_depend_on_base_weights(miniature: Any, tmp_path: Path) -> None:
    other = prepare(miniature.checkpoint, tmp_path)
    say_something(other)
    file = str(save(other, tmp_path / "base.safetensors"))
    once = {"max_train_steps": 1}
    cached = train(miniature, tmp_path / "cached", base_weights=[file], **once)
    encoded_in_the_step = train(miniature, tmp_path / "step", base_weights=[file], **CAPTIONS_IN_THE_STEP, **once)
    without = train(miniature, tmp_path / "without", **once)
    assert cached.status == 0
    assert cached.losses == pytest.approx(encoded_in_the_step.losses, rel=1e-5)
    assert cached.losses != pytest.approx(without.losses, rel=1e-3)


def test_norms_stay_below_scale_weight_norms(any_miniature: Any, tmp_path: Path) -> None:
    limit = 0.01
    tensors = train(any_miniature, tmp_path / "out", scale_weight_norms=limit, learning_rate=1.0).tensors()
    names = {key.partition(".")[0] for key in tensors}
    norms = []
    for name in names:
        up, down = (tensors[f"{name}.lora_{part}.weight"].flatten(1) for part in ("up", "down"))
        norms.append((up @ down * tensors[f"{name}.alpha"] / len(down)).norm().item())
    assert limit * 0.99 < max(norms) < limit * 1.01


@pytest.mark.usefixtures("no_graphs")
def test_blocks_with_dropouts_compile_whole_and_match_eager_ones(miniature: Any, tmp_path: Path) -> None:
    args = ["rank_dropout=0.3", "module_dropout=0.2"]
    prepared = prepare(
        miniature.checkpoint, tmp_path, network_args=args, network_dropout=0.2, network_train_unet_only=True
    )
    say_something(prepared)
    prepared.trainable.train()
    unet = prepared.components.denoiser
    eager = [_step(prepared, seed) for seed in range(2)]
    blocks = [b for part in SDXL.blocks.denoiser(unet) for b in part if type(b).__name__ == "BasicTransformerBlock"]
    counter = CompileCounterWithBackend("eager")  # test_adapter_kinds tests autograd with dropouts
    for block in blocks:
        block.compile(backend=counter, fullgraph=True, dynamic=False)
    compiled = [_step(prepared, seed) for seed in range(2)]

    assert len(blocks) > counter.frame_count
    assert counter.frame_count <= 2 * SDXL.blocks.graph_kinds(unet)["BasicTransformerBlock"]
    for (loss, gradient), (expected, expected_gradient) in zip(compiled, eager, strict=True):
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-6)


def _step(prepared: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    loss = losses(prepared.components)
    loss.mean().backward()
    prepared.trainable.gradients.collect()
    gradient = prepared.network.gradients.clone()
    prepared.network.zero_grad()
    return loss.detach(), gradient


def test_swapped_blocks_of_a_u_net_train_and_sample_like_resident_ones(miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 2 --d 1\n")
    more = {"gradient_checkpointing": True, "sample_prompts": prompts, "sample_every_n_steps": 2}
    swapped = train(miniature, tmp_path / "swapped", blocks_to_swap=9, **more)
    resident = train(miniature, tmp_path / "resident", **more)
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())
    (ours,), (wanted,) = (run.events_of("sample") for run in (swapped, resident))
    assert Path(ours["path"]).read_bytes() == Path(wanted["path"]).read_bytes()
