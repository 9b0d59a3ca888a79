"""Options: training, state and resume, multi-process training."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, count, option, optional, path_option, switch

ALWAYS_SDPA = "attention always uses PyTorch's scaled_dot_product_attention, which is as fast; leave it off"
NO_DEEPSPEED = "DeepSpeed is not supported; set gradient_checkpointing and cache_latents to save memory"
LATEST = "latest"
"""Value of resume that means the newest state of this output_name in output_dir."""
NO_DDP = "gradients are averaged in a few large messages, without DDP's buffers; leave it off"


class TrainingOptions(OptionGroup, title="Training"):
    """How long to train, in which precision, from which seed."""

    max_train_steps: int = option(
        1600, "Number of training steps. Ignored if max_train_epochs is set.", within=(1, 10_000_000)
    )
    max_train_epochs: int | None = count(
        "Number of passes over the dataset, repeats included. Replaces max_train_steps.", most=1_000_000
    )
    seed: int | None = optional(
        "The same seed repeats a run. Default: random, recorded in the saved file.", within=(0, 2**32 - 1)
    )
    gradient_accumulation_steps: int = option(
        1,
        "Accumulate the gradients of this many batches before each update, like a larger batch without its memory.",
        label="Gradient accumulation",
        within=(1, 1024),
    )
    gradient_checkpointing: bool = switch(
        "Recompute activations in the backward pass instead of storing them. Saves a lot of memory and costs about a "
        "quarter of the speed."
    )
    cpu_offload_checkpointing: bool = switch(
        "Offload the activations that gradient_checkpointing keeps to RAM.", needs="offload_activations"
    )
    mixed_precision: Literal["no", "fp16", "bf16"] = option(
        "no",
        "Precision of the computation: bf16 for RTX 30 and newer GPUs, fp16 for older ones; no computes in float32 and "
        "is slow.",
    )
    full_fp16: bool = switch(
        "Store trained weights and gradients in fp16 too. Updates use stochastic rounding, as with full_bf16.",
        label="Full fp16",
        methods=("full",),
    )
    full_bf16: bool = switch(
        "Store trained weights and gradients in bf16 too: half the memory, for full training. Updates use stochastic "
        "rounding, so that small ones are not lost.",
        notes={"lora": "Saves little memory for a LoRA and lowers its quality."},
        label="Full bf16",
        methods=("lora", "full"),
    )
    fp8_base: bool = switch(
        "Store the frozen weights of the U-Net or transformer and of the text encoders in fp8, half the memory of "
        "bf16. Computation stays in mixed_precision.",
        label="Base in fp8",
        needs="fp8",
        methods=("lora",),
    )
    fp8_base_unet: bool = switch(
        "Like fp8_base, but only for the U-Net or transformer.",
        label="U-Net or transformer in fp8",
        needs="fp8",
        methods=("lora",),
    )
    max_nonfinite_steps: int = option(
        3,
        "End the run after this many steps in a row with a NaN or infinite loss or gradient. Until then such steps are "
        "skipped. Where a skipped step would still corrupt the weights, the first one ends the run.",
        label="Non-finite steps in a row",
        within=(1, 10_000),
    )
    sdpa: bool = switch("Use PyTorch's scaled_dot_product_attention. It is always used.", not_yet=ALWAYS_SDPA)
    xformers: bool = switch("Use xformers' attention.", not_yet=ALWAYS_SDPA)
    mem_eff_attn: bool = switch("Use attention in chunks.", not_yet=ALWAYS_SDPA)

    def check(self) -> Iterable[tuple[str, str]]:
        if self.full_fp16 and self.mixed_precision != "fp16":
            yield "full_fp16", f"needs mixed_precision = fp16, not {self.mixed_precision}"
        if self.full_bf16 and self.mixed_precision != "bf16":
            yield "full_bf16", f"needs mixed_precision = bf16, not {self.mixed_precision}"


class ResumeOptions(OptionGroup, title="State and resume"):
    """A state contains everything that a run needs to resume."""

    save_state: bool = switch(
        "Save a state with every saved file (optimizer, scheduler, counters), so that training can resume."
    )
    save_state_on_train_end: bool = switch(
        "Save a state when training ends, to train longer later.", label="Save state at the end"
    )
    save_last_n_epochs_state: int | None = count(
        "Keep only the states of the last n epochs. Default: save_last_n_epochs.", most=1_000_000
    )
    save_last_n_steps_state: int | None = count("Keep only the states of the last n steps. Default: save_last_n_steps.")
    resume: str | None = path_option(
        "Resume from the state in this folder. Step, epoch and image order continue where it ended; a changed learning "
        "rate, schedule or weight decay applies from there on. latest picks the newest state of output_name in "
        "output_dir and starts from scratch if there is none, so the same command can be repeated after any "
        "interruption.",
        label="Resume from state",
    )
    resume_changed_model: bool = switch(
        "Resume even if the base model or network_alpha differs from the state's, which alters the trained weights.",
        label="Resume with a changed model",
    )
    initial_epoch: int | None = count(
        "Start counting at this epoch; the first is 1. Not needed with resume.", most=1_000_000
    )
    initial_step: int | None = count("Start counting at this step; overrides initial_epoch. Not needed with resume.")
    skip_until_initial_step: bool = switch("Skip the batches before initial_step instead of training on them again.")

    def check(self) -> Iterable[tuple[str, str]]:
        if self.skip_until_initial_step and not (self.initial_step or self.initial_epoch):
            yield "skip_until_initial_step", "needs initial_step or initial_epoch; a resumed run skips automatically"


class DistributedOptions(OptionGroup, title="Multi-GPU training"):
    """How the processes of a multi-GPU run work together."""

    ddp_timeout: int | None = count(
        "Minutes that processes wait for each other. Raise it if caching takes much longer on one of them.",
        most=100_000,
    )
    ddp_gradient_as_bucket_view: bool = switch("Keep gradients in DDP's buffers.", not_yet=NO_DDP)
    ddp_static_graph: bool = switch("Tell DDP that every step uses the same weights.", not_yet=NO_DDP)
    deepspeed: bool = switch("Use DeepSpeed.", not_yet=NO_DEEPSPEED)
    zero_stage: int = option(2, "ZeRO stage of DeepSpeed.", choices=(0, 1, 2, 3), not_yet=NO_DEEPSPEED)
    offload_optimizer_device: Literal["cpu", "nvme"] | None = optional(
        "Where DeepSpeed keeps the optimizer state.", not_yet=NO_DEEPSPEED
    )
    offload_optimizer_nvme_path: str | None = optional("Folder for the optimizer state on NVMe.", not_yet=NO_DEEPSPEED)
    offload_param_device: Literal["cpu", "nvme"] | None = optional(
        "Where DeepSpeed keeps the weights.", not_yet=NO_DEEPSPEED
    )
    offload_param_nvme_path: str | None = optional("Folder for weights on NVMe.", not_yet=NO_DEEPSPEED)
    zero3_init_flag: bool = switch("Create models under ZeRO-3.", not_yet=NO_DEEPSPEED)
    zero3_save_16bit_model: bool = switch("Gather 16-bit weights when saving.", not_yet=NO_DEEPSPEED)
    fp16_master_weights_and_gradients: bool = switch("fp16 master weights.", not_yet=NO_DEEPSPEED)
