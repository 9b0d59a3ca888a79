"""LoRA against peft: the same layers, tensors and inputs give the same gradients and the same optimizer step.

Both compute in float64, so that a remaining difference is not the rounding of small gradients.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from sd_scripts.families.common.family import Components, StepInputs, family_of
from sd_scripts.families.common.objective import ObjectiveOptions
from sd_scripts.families.sdxl.tiny import UNET
from sd_scripts.families.sdxl.unet import prepare_unet
from sd_scripts.networks.network import AdapterNetwork, attach
from sd_scripts.networks.plan import AdaptedModule, NetworkArgs, parameter_groups, plan_layers
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.methods.lora import LoraTrainable
from tests.support.families.flux import text_of, tiny_parts
from tests.support.networks.lora import fill_ups
from tests.support.scripts import FLUX_LORA, SDXL_LORA

pytestmark = pytest.mark.run

RANK, ALPHA, LR, DECAY, MAX_NORM = 4, 2.0, 1e-2, 0.1, 1e-3
EPS = 1e-6
"""About the size of clipped gradients, so that rounding errors of the smallest are not steps of full size."""
CLOSE = {"rtol": 1e-6, "atol": 2e-8}
"""Both share a few steps in float32, such as the embedding of timesteps."""

Make = Callable[[], tuple[Components, list[dict[str, Tensor]], dict[str, Tensor]]]


def tiny_sdxl() -> tuple[Components, list[dict[str, Tensor]], dict[str, Tensor]]:
    """A U-Net as diffusers makes it, the inputs of two micro-batches, and the text."""
    torch.manual_seed(0)
    # at one channel per group, the norms would remove the time embedding, and its gradients with it
    unet = UNet2DConditionModel(**UNET, norm_num_groups=8).requires_grad_(False)
    components = Components(denoiser=unet, vae=nn.Identity(), text_encoders=[], tokenizers=[], source="tiny")
    inputs = [
        {
            "noisy": torch.randn(2, 4, 16, 8),
            "target": torch.randn(2, 4, 16, 8),
            "timesteps": torch.tensor([200, 700]),
            "sizes": torch.full((2, 6), 64.0),
            "loss_weight": torch.tensor([1.0, 0.5]),
        }
        for _ in range(2)
    ]
    width = UNET["cross_attention_dim"] - 64
    text = {"hidden_state1": torch.randn(2, 77, 64), "hidden_state2": torch.randn(2, 77, width)}
    return components, inputs, text | {"pool2": torch.randn(2, width)}


def tiny_flux() -> tuple[Components, list[dict[str, Tensor]], dict[str, Tensor]]:
    components = tiny_parts()
    torch.manual_seed(0)
    inputs = [
        {
            "noisy": torch.randn(2, 16, 8, 4),
            "target": torch.randn(2, 16, 8, 4),
            "timesteps": torch.tensor([0.3, 0.8]),
            "loss_weight": torch.tensor([1.0, 0.5]),
        }
        for _ in range(2)
    ]
    return components, inputs, text_of(2)


def doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def in_peft(components: Components, network: AdapterNetwork, paths: list[str]) -> tuple[Components, list[Tensor]]:
    """The denoiser with peft's LoRA of the same tensors, and these tensors: down and up of each layer in turn."""
    model = deepcopy(components.denoiser)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=paths)
    inject_adapter_in_model(config, model)
    tensors: list[Tensor] = []
    for path, layer in zip(paths, network.layers, strict=True):
        theirs: Any = model.get_submodule(path)
        for own, part in zip(layer.masters, (theirs.lora_A["default"], theirs.lora_B["default"]), strict=True):
            part.weight.data.copy_(own.detach().view(part.weight.shape))
            tensors.append(part.weight)
    assert len(tensors) == sum(parameter.requires_grad for parameter in model.parameters())
    return replace(components, denoiser=model), tensors


def ours_of(network: AdapterNetwork, *, gradients: bool = False) -> list[Tensor]:
    parameters = [master for layer in network.layers for master in layer.masters]
    return [p.grad.clone() if gradients and p.grad is not None else p.detach().clone() for p in parameters]


@pytest.mark.parametrize(
    ("make", "script", "network_args"),
    [
        pytest.param(tiny_sdxl, SDXL_LORA, [], id="sdxl"),
        pytest.param(tiny_sdxl, SDXL_LORA, [f"conv_dim={RANK}", f"conv_alpha={ALPHA}"], id="sdxl with convolutions"),
        pytest.param(tiny_flux, FLUX_LORA, [], id="flux"),
    ],
)
def test_gradients_and_optimizer_steps_match_peft(make: Make, script: Script, network_args: list[str]) -> None:
    """Two steps of two micro-batches with gradient clipping, from random downs and ups."""
    family = family_of(script.family)
    components, micro_batches, text = make()
    components.denoiser.double()
    micro_batches = [{name: doubled(tensor) for name, tensor in inputs.items()} for inputs in micro_batches]
    text = {name: doubled(tensor) for name, tensor in text.items()}
    options = {"network_dim": RANK, "network_alpha": ALPHA, "learning_rate": LR, "max_grad_norm": MAX_NORM}
    more = {
        "network_args": network_args,
        "optimizer_args": [f"weight_decay={DECAY}", f"eps={EPS}"],
        "optimizer_type": "AdamW",
    }
    settings = from_values(script, options, more)
    objective = family.objective_options(settings)
    plain = deepcopy(components)

    target = AdaptedModule(module=components.denoiser, target=family.lora, lr=LR)
    args = NetworkArgs.read(settings, pytest.fail)
    plans = plan_layers([target], args)
    if script.family == "sdxl":
        prepare_unet(components.denoiser)  # type: ignore[arg-type]
    network = attach(plans, args.dropouts, torch.Generator().manual_seed(1), torch.float64)
    fill_ups(network)
    theirs, leaves = in_peft(plain, network, [plan.path for plan in plans])

    trainable = LoraTrainable(network, parameter_groups(network), [components.denoiser])
    optimizer = trainable.make_optimizer(settings[OptimizerOptions])
    eager = Eager(
        trainable=trainable,
        optimizer=optimizer,
        loss=lambda inputs: family.loss(components, inputs, objective),
        inputs=lambda batch, number: pytest.fail("micro-steps are called directly"),
        max_grad_norm=MAX_NORM,
        accumulation=len(micro_batches),
    )
    reference = torch.optim.AdamW(leaves, lr=LR, weight_decay=DECAY, eps=EPS)
    for _ in range(2):
        losses = [eager.micro_step(StepInputs(model=inputs, text=text)) for inputs in micro_batches]
        their_losses = [gradients_of(family.loss, theirs, inputs, text, objective) for inputs in micro_batches]
        torch.testing.assert_close(losses, their_losses, rtol=1e-6, atol=0)
        for own, leaf in zip(ours_of(network, gradients=True), leaves, strict=True):
            assert leaf.grad is not None
            largest = float(leaf.grad.abs().max())
            torch.testing.assert_close(own, leaf.grad.view(own.shape), rtol=1e-6, atol=1e-6 * largest)
        norm = eager.update(None)
        their_norm = torch.nn.utils.clip_grad_norm_(leaves, MAX_NORM)
        assert float(their_norm) > MAX_NORM, "nothing is clipped"
        torch.testing.assert_close(norm, their_norm, rtol=1e-6, atol=0)
        before = [leaf.detach().clone() for leaf in leaves]
        reference.step()
        reference.zero_grad()
        for own, leaf, was in zip(ours_of(network), leaves, before, strict=True):
            torch.testing.assert_close(own, leaf.detach().view(own.shape), **CLOSE)
            assert not torch.allclose(leaf, was, **CLOSE), "the step changed nothing"


def gradients_of(
    loss: Any,
    components: Components,
    inputs: dict[str, Tensor],
    text: dict[str, Tensor],
    options: ObjectiveOptions,
) -> Tensor:
    """Half of the gradients of a micro-batch, since there are two; return its mean loss."""
    mean = loss(components, StepInputs(model=inputs, text=text), options).mean()
    (mean / 2).backward()
    return mean.detach()
