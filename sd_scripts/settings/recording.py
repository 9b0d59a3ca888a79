"""Can the steps of a run be recorded as CUDA graphs, and if not, why? Checks, the plan and the run itself ask here."""

from __future__ import annotations

from collections.abc import Mapping

from sd_scripts.families.cards.registry import is_built_in_network
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.full import FusedOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.run import CudaOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.options.training import TrainingOptions


def uses_cuda_graphs(options: CompileOptions) -> bool:
    """Return whether the compile options ask for CUDA graphs."""
    return options.compile and (bool(options.cuda_graphs_from) or options.compile_backend == "cudagraphs")


def wants_recording(options: CompileOptions, cuda: CudaOptions) -> bool:
    """Return whether the options ask to record steps: as CUDA graphs, or by default."""
    return uses_cuda_graphs(options) or (options.leaves_recording_open and cuda.record_steps)


def keeps_from_recording(filled: Mapping[type[OptionGroup], OptionGroup]) -> str:
    """Return the option with which a step cannot be recorded as one CUDA graph; empty if there is none."""
    training = filled[TrainingOptions]
    network = filled.get(NetworkOptions)
    memory = filled.get(MemoryOptions)
    fused = filled.get(FusedOptions)
    assert isinstance(training, TrainingOptions)
    if isinstance(memory, MemoryOptions) and memory.blocks_to_swap:
        return "blocks_to_swap"
    if isinstance(fused, FusedOptions) and fused.chosen:
        return fused.chosen
    if training.gradient_checkpointing and training.cpu_offload_checkpointing:
        return "cpu_offload_checkpointing"
    if isinstance(network, NetworkOptions) and not is_built_in_network(network):
        return "network_module"
    # drawn again in backward from the state of the generator, which cannot be read while recording
    draws = network.draws if isinstance(network, NetworkOptions) else ""
    return draws if training.gradient_checkpointing else ""
