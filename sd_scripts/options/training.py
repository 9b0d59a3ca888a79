"""Options: training, state and resume, several processes."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class TrainingOptions(OptionGroup, title="Training"):
    """How long, in which precision, and from which seed."""

    max_train_steps: int = option(1600, "Optimiser steps.")
    max_train_epochs: int | None = option(None, "Epoch count; replaces max_train_steps.")
    seed: int | None = option(
        None, "RNG seed; if unset the network scripts draw one, the full-model scripts stay unseeded."
    )
    gradient_accumulation_steps: int = option(1, "Micro-batches per update.")
    gradient_checkpointing: bool = option(False, "Recompute activations in backward.")
    cpu_offload_checkpointing: bool = option(False, "Keep checkpoint boundaries in CPU RAM.")
    mixed_precision: Literal["no", "fp16", "bf16"] = option("no", "Autocast dtype.")
    full_fp16: bool = option(False, "Weights and gradients in fp16; needs mixed_precision=fp16.")
    full_bf16: bool = option(False, "Weights and gradients in bf16; needs mixed_precision=bf16.")
    fp8_base: bool = option(False, "Hold the frozen base weights as float8_e4m3fn.")
    fp8_base_unet: bool = option(False, "As fp8_base but text encoders stay in half precision.")
    sdpa: bool = option(False, "torch scaled_dot_product_attention.")
    xformers: bool = option(False, "xformers attention.", families=("sdxl",))
    mem_eff_attn: bool = option(False, "Chunked attention implementation.", families=("sdxl",))
    fused_backward_pass: bool = option(False, "Step each parameter inside backward.")


class ResumeOptions(OptionGroup, title="State and resume"):
    """A state holds all that a run needs to go on."""

    save_state: bool = option(False, "Also save optimiser/scheduler/RNG state at each save.")
    save_state_on_train_end: bool = option(False, "Save state at the end.")
    save_last_n_epochs_state: int | None = option(None, "Retention window for epoch states.")
    save_last_n_steps_state: int | None = option(None, "Retention window for step states.")
    resume: str | None = option(None, "State folder to continue from.")
    initial_epoch: int | None = option(None, "1-based epoch to start counting from.")
    initial_step: int | None = option(None, "Global step to start from; wins over initial_epoch.")
    skip_until_initial_step: bool = option(False, "Consume batches without training until the start step.")


class DistributedOptions(OptionGroup, title="Several processes"):
    """Options of DDP and DeepSpeed."""

    ddp_timeout: int | None = option(None, "Process-group timeout in minutes.")
    ddp_gradient_as_bucket_view: bool = option(False, "DDP gradient_as_bucket_view.")
    ddp_static_graph: bool = option(False, "DDP static_graph.")
    deepspeed: bool = option(False, "Use DeepSpeed through accelerate.")
    zero_stage: int = option(2, "ZeRO stage.", choices=(0, 1, 2, 3))
    offload_optimizer_device: Literal["cpu", "nvme"] | None = option(None, "ZeRO optimiser offload target.")
    offload_optimizer_nvme_path: str | None = option(None, "NVMe folder for optimiser offload.")
    offload_param_device: Literal["cpu", "nvme"] | None = option(None, "ZeRO parameter offload target.")
    offload_param_nvme_path: str | None = option(None, "NVMe folder for parameter offload.")
    zero3_init_flag: bool = option(False, "ZeRO-3 init context.")
    zero3_save_16bit_model: bool = option(False, "Gather 16-bit weights when saving under ZeRO-3.")
    fp16_master_weights_and_gradients: bool = option(False, "fp16 master weights with ZeRO.")
