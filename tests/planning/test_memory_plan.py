"""The plan's memory equals GPU measurements, and its facts match the real models and optimizers."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.full_size import full_size
from benchmarks.presets import presets_of
from benchmarks.steps import COMMON
from kohya_gui.form.presets import measured
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.family_card import DENOISER
from sd_scripts.families.cards.registry import card_of, cards, module_of
from sd_scripts.families.cards.stream_memory import swap_counts
from sd_scripts.families.common.family import family_of
from sd_scripts.families.common.quantizing import can_be_quantized
from sd_scripts.families.flux.load import BLOCK_LISTS
from sd_scripts.families.sdxl.card import memory_facts
from sd_scripts.families.sdxl.memory import swappable_blocks
from sd_scripts.families.sdxl.unet import predict, prepare_exact_unet, prepare_unet
from sd_scripts.library.diffusion.block_swap import SLOTS
from sd_scripts.library.optim.optimizers import make_optimizer, train_mode
from sd_scripts.networks.adapter import adapter_kinds
from sd_scripts.networks.adapters.oft import Oft
from sd_scripts.networks.targets import adaptable, is_conv
from sd_scripts.networks.update_adapter import UpdateAdapter
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.options.optimization.optimizer_table import OPTIMIZERS
from sd_scripts.planning.memory import GIB, TRAINING, MemoryPlan, plan_memory
from sd_scripts.planning.memory_advice import memory_advice
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.training.process.device_memory import RECENT, SpillWatch

pytestmark = pytest.mark.run

MEASURED: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("sdxl", "lora"): {
        **{"eager": 12.35, "compiled": 11.67, "graphs": 11.68, "eager4": 31.47, "compiled4": 27.84},
        **{"compiled_accumulation": 11.99, "graphs_accumulation": 11.36, "budget50": 9.26, "budget0": 7.02},
    },
    ("sdxl", "full"): {
        "eager": 20.87,
        "graphs": 20.19,
        "compiled4": 36.49,
        "graphs_masters": 39.3,
    },
    ("flux", "lora"): {
        **{"compiled": 51.74, "eager_checkpointing": 25.59, "compiled_checkpointing": 25.54},
        **{"fp8_compute": 51.81, "fp8_base": 14.69, "fp8_all": 14.59, "swap18": 15.09, "swap34": 5.81},
        **{"swap34_fp8": 4.81, "budget50": 39.88, "budget0": 25.85},
    },
    ("flux", "full"): {"fused": 68.84, "fused_swap18": 58.39},
    ("anima", "lora"): {"eager": 14.69, "compiled": 15.15, "fp8_compute": 14.73, "swap26_fp8": 1.73},
    ("chroma", "lora"): {"eager": 41.35, "compiled": 42.92, "fp8_compute": 43.13},
    ("flux2", "lora"): {"eager": 22.0, "compiled": 20.21, "fp8_compute": 20.22, "swap11_fp8": 3.16},
    ("flux2 9b", "lora"): {"eager": 42.12, "compiled": 38.98, "fp8_compute": 38.99},
    ("krea2", "lora"): {"eager": 62.0, "compiled": 53.14, "fp8_compute": 53.15},
    ("z_image", "lora"): {"eager": 37.24, "compiled": 30.44, "fp8_compute": 30.5},
    ("wan", "lora"): {
        **{"eager_checkpointing": 50.71, "compiled_checkpointing": 47.86, "fp8_all": 34.89, "swap36_fp8": 23.44},
    },
    ("wan_5b", "lora"): {"eager_checkpointing": 13.27, "compiled_checkpointing": 12.83},
    ("hunyuan_video", "lora"): {
        **{"eager_checkpointing": 41.11, "compiled_checkpointing": 40.71, "fp8_all": 30.72, "swap34_fp8": 21.43},
    },
}
"""GiB of all tensors while training, of the benchmark's rows on one H200 (docs/performance.md). Clips have 832x480
pixels and 81 frames, images 1024x1024."""
OTHERS: tuple[tuple[str, str, int, Mapping[str, Any], float], ...] = (
    ("sdxl", "lora", 1024, {"gradient_checkpointing": True, "train_batch_size": 4}, 8.41),
    (
        *("sdxl", "lora", 768),
        {"compile": True, "train_batch_size": 2, "network_dim": 64, "optimizer_type": "Prodigy"},
        14.47,
    ),
    (
        *("sdxl", "lora", 1024),
        {
            **{"gradient_checkpointing": True, "cache_latents": False, "cache_text_encoder_outputs": False},
            **{"network_train_unet_only": False, "no_half_vae": True},
        },
        10.68,
    ),
    ("sdxl", "full", 1024, {"compile": True, "gradient_checkpointing": True, "train_batch_size": 2}, 19.74),
    (
        *("flux", "lora", 768),
        {"compile": True, "gradient_checkpointing": True, "train_batch_size": 2, "network_dim": 32},
        27.05,
    ),
    (
        *("flux", "lora", 1024),
        {"compile": True, "gradient_checkpointing": True, "train_batch_size": 4, "fp8_base": True},
        22.06,
    ),
)
"""(family, method, side of the images, options, GiB): other runs on one H200."""
WITHIN = 0.1


def settings_of(family: str, method: str, **options: Any) -> Settings:
    of_rows = full_size(family).OPTIONS[method]
    return from_values(script_for(family, method), {**COMMON, **of_rows, **options})


def memory_of(settings: Settings, side: int = 1024, **more: Any) -> MemoryPlan:
    extent = Extent(832, 480, 81) if card_of(settings.script.family).clips else Extent(side, side)
    shape = BatchShape(extent=extent, images=settings.value("train_batch_size"))
    found = plan_memory(settings, [shape], **more)
    assert found
    return found


def size_of(family: str, size: str) -> int:
    """Return how many values the denoiser has; 0 for a family with one size."""
    if not card_of(family).plan.memory_of_others:
        return 0
    return sum(each.numel() for each in full_size(family, size).modules()[DENOISER].parameters())


def test_embeddings_use_the_memory_of_a_lora_without_the_adapter_but_with_the_text_encoders() -> None:
    lora, embedding = (
        {part.name: part.bytes for part in memory_of(settings_of("sdxl", method)).parts}
        for method in ("lora", "textual_inversion")
    )
    encoders = embedding.pop("text encoders and VAE") - lora.pop("text encoders and VAE", 0)
    assert 1.4 * GIB < encoders < 1.7 * GIB
    assert {name: lora[name] for name in embedding} == embedding
    assert lora.keys() - embedding.keys() == {"adapter", "optimizer"}


def test_the_planned_memory_of_training_matches_measurements() -> None:
    wrong = {}
    for (model, method), rows in MEASURED.items():
        family, _, size = model.partition(" ")
        values = size_of(family, size)
        for row, gib in rows.items():
            settings = settings_of(family, method, **full_size(family, size).ROWS[method][row])
            planned = memory_of(settings, model_values=values).phases[TRAINING] / GIB
            if abs(planned / gib - 1) > WITHIN:
                wrong[model, method, row] = planned, gib
    for family, method, side, options, gib in OTHERS:
        planned = memory_of(settings_of(family, method, **options), side).phases[TRAINING] / GIB
        if abs(planned / gib - 1) > WITHIN:
            wrong[family, method, str(options)] = planned, gib
    assert wrong == {}


def test_the_memory_of_presets_matches_other_programs_reports() -> None:
    """GiB in use of presets that ran within the memory of the GPU that they name (presets/measured.toml)."""
    plans = {preset.name: preset.plan() for family in ("sdxl", "flux") for preset in presets_of(family)}
    seen = {name: known["gib"] for name, known in measured().items() if plans.get(name)}
    planned = {name: plan.in_use / GIB for name, plan in plans.items() if plan and name in seen}
    assert planned == pytest.approx(seen, rel=0.06)
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({"train_batch_size": 3}, 3 * 16_384),
        ({"compile": True}, 0),
        ({"gradient_checkpointing": True}, 0),
        ({"mixed_precision": "no"}, 0),
    ],
)
def test_norms_in_float32_use_more_memory_where_they_have_an_effect(options: dict[str, Any], added: int) -> None:
    plain, wide = (
        memory_of(settings_of("sdxl", "lora", float32_norms=on, **options)).phases[TRAINING] for on in (False, True)
    )
    assert wide - plain == pytest.approx(added * memory_facts.MEMORY.activations.float32_norms, abs=2)


def test_memory_of_norms_in_float32_is_counted_in_the_full_size_model() -> None:
    unet, side = module_of("sdxl", "full_size").modules()["denoiser"].bfloat16().requires_grad_(False), 32
    rounded, exact = (kept_bytes(prepare(unet), side) for prepare in (prepare_unet, prepare_exact_unet))
    assert exact - rounded == pytest.approx(memory_facts.MEMORY.activations.float32_norms * side**2, rel=0.01)


def kept_bytes(unet: nn.Module, side: int) -> int:
    """Return the bytes that a U-Net on the meta device keeps for the backward pass at this side of its latents."""
    kept: dict[int, torch.UntypedStorage] = {}
    half: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        predict(
            unet,
            torch.empty(1, 4, side, side, requires_grad=True, **half),
            *(torch.empty(1, device="meta"), torch.empty(1, 77, 2048, **half), torch.empty(1, 1280, **half)),
            torch.empty(1, 6, device="meta"),
        )
    own = {parameter.untyped_storage()._cdata for parameter in unet.parameters()}
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


@pytest.mark.parametrize("family", ["flux", "qwen_image", "qwen_image_edit", "sdxl"])
def test_facts_are_counted_in_the_full_size_model(family: str) -> None:
    modules, own, facts = module_of(family, "full_size").modules(), family_of(family), card_of(family).plan.memory
    assert facts
    assert facts.values == {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    blocks = [block for part in own.blocks.denoiser(modules["denoiser"]) for block in part]
    largest = max(blocks, key=values_in)
    assert facts.largest_block == values_in(largest)
    assert facts.largest_weight == max(parameter.numel() for parameter in largest.parameters())
    assert facts.quantized == {
        name: (sum(weight.numel() for weight in found), sum(len(weight) for weight in found))
        for name, module in modules.items()
        if (found := quantized_weights(module, own.layouts[name].quantizable))
    }
    encoders = [name for name in modules if name.startswith("text")]
    targets = {"denoiser": own.lora, **dict(zip(encoders, own.lora_text_encoders, strict=True))}
    for name in facts.lora:
        layers = [layer for path, layer in adaptable(modules[name], targets[name], conv=False) if in_blocks(path)]
        assert facts.lora[name] == sum(sum(layer.weight.shape[:2]) for layer in layers), name
    convolutions = [each for _, each in adaptable(modules["denoiser"], own.lora, conv=True) if is_conv(each)]
    assert facts.lora_conv == sum(layer.weight[0].numel() + len(layer.weight) for layer in convolutions)


def quantized_weights(module: nn.Module, pattern: re.Pattern[str] | None) -> list[torch.Tensor]:
    named = module.named_parameters() if pattern else ()
    return [weight for name, weight in named if pattern and can_be_quantized(pattern, name, weight)]


FLOAT32, BF16 = 4, 2
"""Bytes of a value in the masters and in their copies."""
ADAPTERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("loha", {"network_dim": 8}),
    ("lokr", {"network_dim": 100_000}),
    ("lokr", {"network_dim": 100_000, "factor": 8}),
    ("lokr", {"network_dim": 32, "factor": 8}),
    ("oft", {"network_dim": 8}),
    ("oft", {"network_dim": 32}),
)


@pytest.mark.parametrize("family", ["flux", "sdxl"])
def test_the_activations_of_adapters_are_about_as_large_as_their_layers(family: str) -> None:
    model, target, wrong = module_of(family, "full_size").modules()["denoiser"], family_of(family).lora, {}
    layers = [(path, each) for path, each in adaptable(model, target, conv=False) if in_blocks(path)]
    for kind, options in ADAPTERS:
        found = memory_of(settings_of(family, "lora", network_type=kind, **options))
        planned = next(part.bytes for part in found.parts if part.name == "adapter") / (FLOAT32 + BF16)
        rank, adapter = options["network_dim"], adapter_kinds()[kind]
        if issubclass(adapter, UpdateAdapter):
            shapes = [shape for _, each in layers for shape in adapter.shapes(each.weight, rank, options).values()]
        else:
            assert issubclass(adapter, Oft)
            shapes = [adapter.shape(path, len(each.weight), rank, None) for path, each in layers]
        values = sum(map(math.prod, shapes))
        if not 0.7 < planned / values < 1.4:
            wrong[kind, str(options)] = planned, values
    assert wrong == {}


def in_blocks(path: str) -> bool:
    """Whether a layer is adapted by default: FLUX.1's inputs only with ranks of their own."""
    return not path.startswith(("img_in", "time_in", "vector_in", "guidance_in", "txt_in"))


def values_in(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_swapped_values_belong_to_the_swapped_blocks() -> None:
    flux = module_of("flux", "full_size").modules()["denoiser"]
    facts = card_of("flux").plan.memory
    assert facts
    for count in (1, 18, 35):
        double, single = swap_counts(count)
        swapped = double * values_in(flux.double_blocks[0]) + single * values_in(flux.single_blocks[0])
        assert facts.swapped(count) == swapped
    assert facts.most_swapped == BLOCK_LISTS.most(len(flux.double_blocks), len(flux.single_blocks))


def test_sdxl_swaps_sixty_transformer_blocks_but_the_two_that_are_on_the_gpu() -> None:
    blocks, facts = swappable_blocks(module_of("sdxl", "full_size").modules()["denoiser"]), card_of("sdxl").plan.memory
    assert facts
    assert facts.swapped(1) == values_in(blocks[0])
    assert facts.most_swapped == len(blocks) - SLOTS == 58


def test_optimizers_use_the_bytes_listed_in_the_table() -> None:
    wrong, weight = {}, torch.randn(256, 512)
    for name, known in OPTIMIZERS.items():
        if not known.installed or not known.state_bytes:  # paged ones can leave the GPU
            continue
        parameter = nn.Parameter(weight.clone())
        optimizer = make_optimizer(OptimizerOptions(optimizer_type=name), [{"params": [parameter], "lr": 1e-4}])
        train_mode(optimizer)
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        kept = {t.data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(optimizer.state[parameter])}
        if abs(sum(kept.values()) / weight.numel() - known.state_bytes) > 0.05:
            wrong[name] = sum(kept.values()) / weight.numel(), known.state_bytes
    assert wrong == {}


def tensors_in(state: Mapping[str, Any]) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


def test_a_model_of_a_different_size_has_no_known_memory() -> None:
    shape = [BatchShape(extent=Extent(64, 64), images=1)]
    for card in cards():
        assert plan_memory(settings_of(card.name, "lora"), shape, model_values=1_000_000) is None


def test_advice_names_options_that_make_the_run_fit() -> None:
    settings, gpu = settings_of("flux", "lora"), 24 * GIB
    needed = memory_of(settings, gpu_bytes=gpu)
    (told,) = memory_advice(settings, needed, lambda changed: memory_of(changed, gpu_bytes=gpu))
    assert "the GPU has 24.0" in told
    assert told.endswith("with gradient_checkpointing, fp8_base")
    changed = settings_of("flux", "lora", gradient_checkpointing=True, fp8_base=True)
    assert memory_of(changed, gpu_bytes=gpu).fits
    assert not needed.fits
    assert memory_advice(changed, memory_of(changed, gpu_bytes=gpu), memory_of) == ()


def test_a_limit_counts_as_the_available_memory() -> None:
    """The U-Net's weights in bf16 leave no room in 6 GiB."""
    settings = settings_of("sdxl", "full", gpu_memory_limit=6.0, optimizer_type="Adafactor")
    needed = memory_of(settings, gpu_bytes=24 * GIB)
    (told,) = memory_advice(settings, needed, lambda changed: memory_of(changed, gpu_bytes=24 * GIB))
    assert "GiB and gpu_memory_limit is 6.0. It would fit" in told
    assert told.endswith("with gradient_checkpointing, fused_backward_pass, blocks_to_swap = 29")
    assert memory_of(settings_of("sdxl", "full", gpu_memory_limit=60.0), gpu_bytes=24 * GIB).card == 24 * GIB


def test_spilled_memory_is_noticed_where_steps_become_slow_on_a_full_gpu() -> None:
    watch = SpillWatch(24 * GIB)
    told = [watch.step("1024x1024x1", 0.5, 20 * GIB) for _ in range(RECENT)]
    assert told == [""] * RECENT
    slow = [watch.step("1024x1024x1", 2.0, 23 * GIB) for _ in range(RECENT)]
    assert "4.0 times as long" in slow[-1]
    assert "Sysmem" in slow[-1]
    assert watch.step("1024x1024x1", 2.0, 20 * GIB) == ""  # slow for a different reason
    assert "more than it has" in SpillWatch(24 * GIB).step("1024x1024x1", 0.5, 30 * GIB)
