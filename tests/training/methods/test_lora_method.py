"""The LoRA method on the miniature: the trained modules, the file's contents, external networks."""

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.runs.folder import RunFolder
from sd_scripts.training.compiling.compile_progress import CompileProgress
from sd_scripts.training.execution.checked import CompileCheck, require_one_process
from sd_scripts.training.methods.external_network import find_module
from sd_scripts.training.methods.lora import Lora
from tests.support.networks.lora_sdxl import Prepared, base, context, losses, prepare, save, say_something

pytestmark = pytest.mark.run

UNET_ONLY = {"network_train_unet_only": True}
TEXT_ONLY = {"network_train_text_encoder_only": True}
FOREIGN = "tests.support.networks.foreign_network"


@pytest.fixture(scope="module")
def model(miniature: Any) -> Path:
    return miniature.checkpoint


def starts(names: Any) -> set[str]:
    return {"_".join(name.split("_")[:2]) for name in names}


def backward(prepared: Prepared) -> None:
    losses(prepared.components).mean().backward()
    prepared.trainable.gradients.collect()


@pytest.mark.parametrize(
    ("options", "learning"),
    [
        ({}, {"lora_unet", "lora_te1", "lora_te2"}),
        (UNET_ONLY, {"lora_unet"}),
        ({"text_encoder_lr": [0.0]}, {"lora_unet"}),
        (TEXT_ONLY, {"lora_te1", "lora_te2"}),
    ],
)
def test_trained_modules_have_gradients_and_are_in_the_file(
    model: Path, tmp_path: Path, options: dict[str, Any], learning: set[str]
) -> None:
    prepared = prepare(model, tmp_path, **options)
    say_something(prepared)
    backward(prepared)
    reached = [layer.name for layer in prepared.network.layers if layer.down.grad.any() and layer.up.grad.any()]
    assert starts(reached) == learning
    assert starts(safetensors.torch.load_file(save(prepared, tmp_path / "lora.safetensors"))) == learning
    unreached = {layer.name for layer in prepared.network.layers} - set(reached)
    assert all("encoder_layers_2" in name and "te1" in name for name in unreached)  # SDXL reads the last but one
    frozen = [prepared.components.denoiser, *prepared.components.text_encoders]
    learns = {id(copy) for copy in prepared.network.copies}
    assert {id(p) for part in frozen for p in part.parameters() if p.requires_grad} == learns


def test_a_fresh_lora_changes_nothing(model: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        prepared = prepare(model, tmp_path, network_args=["conv_dim=4"])
        assert torch.equal(losses(prepared.components), losses(base(model)))


def test_unet_and_each_encoder_have_their_own_rates(model: Path, tmp_path: Path) -> None:
    groups = prepare(model, tmp_path, unet_lr=1e-4, text_encoder_lr=[1e-5, 2e-5]).trainable.parameter_groups()
    assert {g["name"]: g["lr"] for g in groups} == {"unet": 1e-4, "textencoder 1": 1e-5, "textencoder 2": 2e-5}


def test_one_rate_of_the_encoders_is_for_both_and_unset_rates_are_learning_rate(model: Path, tmp_path: Path) -> None:
    groups = prepare(model, tmp_path, text_encoder_lr=[1e-5]).trainable.parameter_groups()
    assert {g["name"]: g["lr"] for g in groups} == {"unet": 1e-3, "textencoder 1": 1e-5, "textencoder 2": 1e-5}


@pytest.mark.parametrize(
    ("rates", "learning"), [([1e-5, 0.0], "lora_te1"), ([0.0, 1e-5], "lora_te2")], ids=["second", "first"]
)
@pytest.mark.parametrize("module", ["networks.lora", FOREIGN])
def test_an_encoder_with_rate_0_stays_unchanged(
    module: str, rates: list[float], learning: str, model: Path, tmp_path: Path
) -> None:
    given = prepare(model, tmp_path, network_module=module, text_encoder_lr=rates)
    assert Lora().trains_text_encoders(SDXL, given.context) == tuple(rate > 0 for rate in rates)
    assert starts(safetensors.torch.load_file(save(given, tmp_path / "lora.safetensors"))) == {"lora_unet", learning}
    names = {group["name"].removesuffix(" 1").removesuffix(" 2") for group in given.trainable.parameter_groups()}
    assert names == {"unet", "textencoder"}


def test_nothing_to_train_is_reported(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^learning_rate: all learning rates are 0"):
        prepare(model, tmp_path, text_encoder_lr=[0.0], **TEXT_ONLY)


def test_gradient_checkpointing_changes_no_gradient(model: Path, tmp_path: Path) -> None:
    prepared = prepare(model, tmp_path, network_args=["conv_dim=4"])
    say_something(prepared)
    prepared.trainable.train()
    backward(prepared)
    without = prepared.network.gradients.clone()
    prepared.network.zero_grad()
    prepared.components.denoiser.enable_gradient_checkpointing()
    for encoder in prepared.components.text_encoders:
        encoder.gradient_checkpointing_enable({"use_reentrant": False})
    backward(prepared)
    torch.testing.assert_close(prepared.network.gradients, without, rtol=1e-4, atol=1e-7)


def test_an_eager_step_leaves_gradients_and_random_state_unchanged(model: Path, tmp_path: Path) -> None:
    prepared = prepare(model, tmp_path, compile=True, compile_check_every=2)
    say_something(prepared)
    check = CompileCheck(prepared.context, prepared.trainable)
    assert [step for step in range(1, 7) if check.due(step)] == [2, 4, 6]

    def run() -> Tensor:
        torch.rand(3)
        backward(prepared)
        return torch.tensor(1.0)

    before = torch.get_rng_state()
    eager = check.eager_step(run)
    assert eager is not None
    assert eager.gradients["masters"].any()
    assert torch.equal(torch.get_rng_state(), before)
    backward(prepared)
    assert torch.equal(prepared.network.gradients, eager.gradients["masters"])  # once, not twice


@pytest.mark.parametrize(("world", "compiles"), [(1, True), (2, False)])
def test_a_check_is_for_one_process(world: int, compiles: bool, model: Path, tmp_path: Path) -> None:
    given = context(model, tmp_path, compile=compiles, compile_check_every=5)
    given.world = world
    require_one_process(given)
    given = context(model, tmp_path, compile=True, compile_check_every=5)
    given.world = 2
    with pytest.raises(ValueError, match=r"^compile_check_every: several processes .* set compile_check_every = 0"):
        require_one_process(given)


def test_steps_are_no_longer_checked_once_memory_does_not_suffice(model: Path, tmp_path: Path) -> None:
    prepared = prepare(model, tmp_path, compile=True, compile_check_every=1)
    check = CompileCheck(prepared.context, prepared.trainable)

    def run() -> Tensor:
        backward(prepared)
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert check.eager_step(run) is None
    assert not check.due(2)
    (warning,) = [event["text"] for event in RunFolder(prepared.context.run_dir).events() if event["kind"] == "warning"]
    assert warning == "compile_check_every: an eager step does not fit into memory, so no step is checked"
    assert not prepared.network.collected


def test_the_same_seed_creates_the_same_network(model: Path, tmp_path: Path) -> None:
    one, other = (prepare(model, tmp_path, **UNET_ONLY).network.masters for _ in range(2))
    assert torch.equal(one, other)


def test_full_bf16_stores_trained_weights_in_bf16_too(model: Path, tmp_path: Path) -> None:
    prepared = prepare(model, tmp_path, mixed_precision="bf16", full_bf16=True, **UNET_ONLY)
    assert prepared.network.masters.dtype == torch.bfloat16


@pytest.mark.parametrize("name", [None, "networks.lora", "sd_scripts.networks.lora"])
def test_our_lora_has_these_names(model: Path, tmp_path: Path, name: str | None) -> None:
    assert prepare(model, tmp_path, network_module=name, **UNET_ONLY).network.layers


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lycoris.kohya.nothing", "module not found: 'lycoris.kohya.nothing'; install it with `pip install lycoris-l"),
        ("networks.oft", "module not found: 'networks.oft'; set it to networks.lora, or install it"),
        ("json", "'json' has no create_network, so it is not a network"),
        ("broken_network", "'broken_network' cannot be imported: No module named 'nowhere'"),
    ],
)
def test_a_module_that_is_not_a_network_is_reported_in_one_sentence(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_network.py").write_text("import nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"^network_module: {problem}"):
        find_module(name)


def foreign(model: Path, folder: Path, **options: Any) -> Prepared:
    return prepare(model, folder, **{"network_module": FOREIGN, "network_args": ["preset=full"], **options})


def learn(prepared: Prepared) -> None:
    """One step."""
    learning = prepared.trainable
    optimizer = torch.optim.SGD(learning.parameter_groups())
    backward(prepared)
    assert learning.gradients.clip(1e9) > 0
    optimizer.step()
    learning.updated()


@pytest.mark.parametrize(
    ("options", "learning"),
    [({}, {"lora_unet", "lora_te1", "lora_te2"}), (UNET_ONLY, {"lora_unet"}), (TEXT_ONLY, {"lora_te1", "lora_te2"})],
)
def test_an_external_network_trains_with_the_options(
    model: Path, tmp_path: Path, options: dict[str, Any], learning: set[str]
) -> None:
    prepared = foreign(model, tmp_path, unet_lr=10.0, text_encoder_lr=[1.0], **options)
    before = losses(prepared.components).detach()
    assert torch.equal(before, losses(base(model)))
    learn(prepared)
    assert losses(prepared.components).mean() < before.mean()
    tensors = safetensors.torch.load_file(save(prepared, tmp_path / "foreign.safetensors"))
    assert starts(tensors) == learning
    assert all(tensor.any() for key, tensor in tensors.items() if "te1_text_model_encoder_layers_2" not in key)


def test_an_external_network_file_has_the_familys_names_and_is_read_again(model: Path, tmp_path: Path) -> None:
    prepared = foreign(model, tmp_path, unet_lr=10.0)
    learn(prepared)
    file = save(prepared, tmp_path / "foreign.safetensors")
    tensors = safetensors.torch.load_file(file)
    assert "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_q.shift" in tensors
    assert "lora_te1_text_model_encoder_layers_0_self_attn_q_proj.shift" in tensors
    for more in ({}, {"dim_from_weights": True}):
        again = foreign(model, tmp_path, network_weights=str(file), **more)
        if not more:
            with torch.no_grad():
                torch.testing.assert_close(losses(again.components), losses(prepared.components))
        assert starts(again.trainable.state_dict()) == {"lora_unet", "lora_te1", "lora_te2"}


def test_an_external_network_gets_its_arguments_and_names_its_groups(model: Path, tmp_path: Path) -> None:
    prepared = foreign(model, tmp_path, network_dropout=0.25, text_encoder_lr=[1e-5])
    kwargs = {"dim": 4, "neuron_dropout": 0.25, "dropout": 0.25, "preset": "full"}
    assert prepared.trainable.network.kwargs == kwargs  # type: ignore[attr-defined]
    rates = {group["name"]: group["lr"] for group in prepared.trainable.parameter_groups()}
    assert rates == {"textencoder": 1e-5, "unet": 1e-3}


def test_an_external_network_resumes_bit_for_bit(model: Path, tmp_path: Path) -> None:
    prepared, again = foreign(model, tmp_path, unet_lr=10.0), foreign(model, tmp_path, unet_lr=10.0)
    learn(prepared)
    again.trainable.load_state_dict(prepared.trainable.state_dict())
    assert torch.equal(losses(again.components), losses(prepared.components))


def test_an_external_network_that_cannot_be_created_is_reported_in_one_sentence(model: Path, tmp_path: Path) -> None:
    why = rf"^network_module: '{re.escape(FOREIGN)}' cannot make a network with these network"
    with pytest.raises(ValueError, match=why):
        foreign(model, tmp_path, network_args=["multiplier=twice"])


def test_class_names_are_restored_after_an_external_network_is_created(model: Path, tmp_path: Path) -> None:
    prepared = foreign(model, tmp_path)
    assert {"Attention", "TimestepEmbedding"} <= {
        type(part).__name__ for part in prepared.components.denoiser.modules()
    }


def test_the_recording_of_cuda_graphs_is_a_phase_of_its_own_and_only_of_steps(model, tmp_path):
    from torch._dynamo.callback import CallbackTrigger

    given = context(model, tmp_path)
    progress = CompileProgress(given, "14 graphs so far, backward pass {}".format)
    progress.install()
    recording = torch._dynamo.callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, "0/0")
    given.phase("sampling")
    with recording:
        pass
    given.phase("training")
    for trigger in (CallbackTrigger.DYNAMO, CallbackTrigger.LAZY_BACKWARD, CallbackTrigger.CUDAGRAPH_RECORDING):
        progress.step_done()  # else two events within half a second are one
        with torch._dynamo.callback_handler.install_callbacks(trigger, "0/0"):
            pass
    progress.remove()
    with torch._dynamo.callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "0/0"):
        pass
    told = [(event["name"], event.get("note")) for event in RunFolder(given.run_dir).events()]
    assert told == [
        ("sampling", None),
        ("training", None),
        ("compiling", "14 graphs so far, backward pass 0"),
        ("compiling", "14 graphs so far, backward pass 1"),
        ("recording CUDA graphs", "2 graphs"),
    ]
