"""Checks of torch.compile and of recorded steps."""

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.compile import MORE, CompileMoreOptions, CompileOptions
from sd_scripts.options.dataset import CacheOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.spec import Findings
from sd_scripts.options.training import TrainingOptions
from sd_scripts.settings.checks.run_values import RunValues
from sd_scripts.settings.recording import keeps_from_recording


def fullgraph_with_external_network(values: RunValues) -> Findings:
    compiled = values[CompileOptions]
    network = values[NetworkOptions]
    if compiled.compile and compiled.compile_fullgraph and not is_built_in_network(network):
        yield (
            "compile_fullgraph",
            f"{network.network_module} adds code to the model that may not compile as one graph; turn it off",
        )


def compile_check_with_fused_backward(values: RunValues) -> Findings:
    if not values.get(FullOptions):
        return
    more = values[CompileMoreOptions]
    compiled = values[CompileOptions]
    fused = values[FusedOptions]
    if more.checks(compiled) and fused.chosen:
        yield (
            "compile_check_every",
            f"{fused.chosen} updates weights within backward, so a step cannot also run eagerly; turn {fused.chosen} "
            "off, or set compile_check_every = 0",
        )


def compile_check_with_random_layers(values: RunValues) -> Findings:
    """Compiled code draws other random numbers than eager code from the same seed."""
    more = values[CompileMoreOptions]
    compiled = values[CompileOptions]
    network = values[NetworkOptions]
    if more.checks(compiled) and network.draws:
        yield (
            "compile_check_every",
            f"{network.draws} uses different random numbers when compiled, so results cannot be compared; remove it, "
            "or set compile_check_every = 0",
        )


def steps_that_are_not_recorded(values: RunValues) -> Findings:
    training = values[TrainingOptions]
    compiled = values[CompileOptions]
    chosen = compiled.cuda_graphs_from or ("compile_backend" if compiled.compile_backend == "cudagraphs" else "")
    why = keeps_from_recording(values.filled)
    if not (compiled.compile and chosen and why):
        return
    instead = "blocks replay graphs of their own, which takes longer"
    if training.gradient_checkpointing and compiled.cuda_graphs_from:
        instead = "it runs compiled without CUDA graphs"
    yield chosen, f"a step cannot be recorded as a CUDA graph with {why}, so {instead}"


def mode_with_auto(values: RunValues) -> Findings:
    compiled = values[CompileOptions]
    if compiled.compile and compiled.compile_auto and compiled.compile_mode != "default":
        yield "compile_mode", "has no effect with compile_auto, which chooses it; turn compile_auto off to keep it"


def compile_without_effect(values: RunValues) -> Findings:
    more = values[CompileMoreOptions]
    compiled = values[CompileOptions]
    cache = values[CacheOptions]
    network = values.get(NetworkOptions)
    if compiled.compile_backend == "cudagraphs":
        for name in MORE:
            if getattr(more, name):
                yield name, "has no effect with compile_backend = cudagraphs; set compile_backend = inductor"
        return
    learns = network is not None and not network.network_train_unet_only
    if more.compile_text_encoder and cache.caches_text and not learns:
        yield "compile_text_encoder", "has no effect: captions are cached and no text encoder is trained"
    if more.compile_vae and cache.caches_latents:
        yield (
            "compile_vae",
            "latents are cached, so the VAE only runs before the first step; worth it for many images only",
        )
