"""The rows of a comparison: steps of sd-scripts' model, and ours in several ways."""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.gradients.comparison import RANK, Comparison, on_meta
from benchmarks.gradients.table import Gradients
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.registry import module_of
from sd_scripts.families.common.components import DENOISER, TEXT_ENCODER, VAE, Components, WeightSource
from sd_scripts.formats.models.lora_keys import DOWN, UP
from sd_scripts.training.compiling.compiler import Compiler
from sd_scripts.training.context import Context, make_context
from sd_scripts.training.execution.compiled import Compiled
from sd_scripts.training.execution.eager import Eager
from sd_scripts.training.methods.lora import Lora, LoraTrainable

BF16 = {"mixed_precision": "bf16"}
UNFOLDED, FOLDED = "compiled", "compiled, LoRA in the base product"
FLOAT32_NORMS = "eager, float32_norms"
OURS: dict[str, dict[str, Any]] = {
    "eager float32": {"mixed_precision": "no"},
    "eager": BF16,
    FLOAT32_NORMS: BF16 | {"float32_norms": True},
    UNFOLDED: BF16,
    FOLDED: BF16 | {"compile": True},
}
"""Our rows, and their options when the LoRA is attached."""
Results = Iterator[tuple[float, Gradients]]
"""Loss and gradients for each of the inputs; the gradients are valid until the next ones."""


def theirs(case: Comparison, dtype: torch.dtype) -> Results:
    """Yield the results of sd-scripts in float32, or in bf16 as it trains: weights in bf16, under autocast."""
    model = on_meta(lambda: case.models.make_theirs(case.empty))
    state = case.models.their_state(case.weights())
    for name in state:  # one by one: both dtypes of all of them may not fit
        state[name] = state[name].to(dtype)
    model.load_state_dict(state, assign=True)
    del state
    model.requires_grad_(False)
    alpha = case.settings.value("network_alpha")
    network = import_module(case.models.NETWORK).create_network(1.0, RANK, alpha, None, [], model)
    network.apply_to([], model, apply_text_encoder=False)
    network.load_state_dict(case.lora(network.state_dict()))
    network.to(case.device)
    for inputs in case.inputs():
        with torch.autocast(case.device.type, dtype, enabled=dtype != torch.float32):
            predicted = case.models.predict_theirs(model, inputs, dtype)
        loss = F.mse_loss(predicted.float(), inputs.model["target"])
        loss.backward()
        yield loss.item(), {name: parameter.grad for name, parameter in network.named_parameters()}
        network.zero_grad()


def ours(case: Comparison, row: str) -> Results:
    """Yield the results of one of our rows."""
    with tempfile.TemporaryDirectory() as folder:
        context = make_context(case.settings.replaced({**OURS[row], "run_dir": folder}))
        components = loaded(case, context)
        trainable: Any = Lora().prepare(case.family, components, context)
        network = trainable.network
        missing = network.load_tensors(case.lora(network.file_tensors(None)))
        assert not missing
        network.refresh()
        trainable.train()
        context.settings = context.settings.replaced({"compile": row in (UNFOLDED, FOLDED)})
        compiler = Compiler(context, case.family, components, [BatchShape(extent=case.extent, images=1)])
        compiler.compile_for_steps([])
        batches = case.inputs()
        objective = case.family.objective_options(context.settings)
        eager = Eager(
            trainable=trainable,
            optimizer=torch.optim.SGD(trainable.parameter_groups()),
            loss=lambda inputs: case.family.loss(components, inputs, objective),
            inputs=lambda batch, number: batches[number],
        )
        launch = Compiled(eager, skips_guards=False, cuda_graphs=False) if compiler.active else eager
        for inputs in batches:
            yield launch.micro_step(inputs).item(), gradients_of(trainable)
            trainable.gradients.clear()
        compiler.close()
        context.close()
        torch._dynamo.reset()


def loaded(case: Comparison, context: Context) -> Components:
    """Return the components of the model. Only the denoiser has weights."""
    source = WeightSource(
        empty=case.empty,
        make=case.make_denoiser,
        path="",
        read=lambda dtype, keep: case.weights(),
        dtype=context.dtype,
        finish=case.family.layouts[DENOISER].finish,
        device=case.device,
    )
    modules = module_of(case.family.card.name, "full_size").modules()
    components = Components(
        denoiser=case.empty,
        vae=modules[VAE],
        text_encoders=[module for name, module in modules.items() if name.startswith(TEXT_ENCODER)],
        tokenizers=[],
        source="",
        sources={DENOISER: source},
    )
    case.family.prepare(components, context.settings)
    return components.load(DENOISER)


def gradients_of(trainable: LoraTrainable) -> Gradients:
    """Return the gradients of a LoRA by the names of its tensors in files."""
    return {
        f"{layer.name}.{part}": master.grad
        for layer in trainable.network.layers
        for part, master in zip((DOWN, UP), layer.masters, strict=True)
        if master.grad is not None
    }
