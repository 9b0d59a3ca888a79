"""Options: training, state and resume, several processes."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option

ALWAYS_SDPA = "attention always runs on PyTorch's scaled_dot_product_attention, which is as fast; nothing to choose"
NO_DEEPSPEED = "DeepSpeed is not used here; set gradient_checkpointing and cache_latents to save memory"
LATEST = "latest"
"""resume: the newest state of this output_name in output_dir."""
NO_DDP = "gradients are averaged in few messages, without DDP's buffers; leave it off"


class TrainingOptions(OptionGroup, title="Training"):
    """How long, in which precision, and from which seed."""

    max_train_steps: int = option(
        1600, "How many steps to train; max_train_epochs, where set, decides instead.", within=(1, 10_000_000)
    )
    max_train_epochs: int | None = option(
        None,
        "How many times to go through the dataset, repeats included. Set, it takes the place of max_train_steps.",
        within=(0, 1_000_000),
        zero_is_off=True,
    )
    seed: int | None = option(
        None, "Same seed, same run. Unset draws one and notes it in the file.", within=(0, 2**32 - 1)
    )
    gradient_accumulation_steps: int = option(
        1,
        "Accumulate the gradients of this many batches before each update: like a larger batch, without its memory.",
        label="Gradient accumulation",
        within=(1, 1024),
    )
    gradient_checkpointing: bool = option(
        False,
        "Compute parts of the forward pass a second time instead of keeping them. Saves a lot of memory, "
        "costs about a quarter of the speed.",
    )
    cpu_offload_checkpointing: bool = option(
        False,
        "Keep the checkpoints of gradient_checkpointing in main memory.",
        families=("flux",),
    )
    mixed_precision: Literal["no", "fp16", "bf16"] = option(
        "no",
        "Number format of the computation. bf16 is right for cards from RTX 30 on, fp16 for older ones; "
        "no computes in float32 and is slow.",
    )
    full_fp16: bool = option(
        False,
        "Hold weights and gradients of what is trained in fp16 too. Updates are rounded by chance, as with full_bf16.",
        label="Full fp16",
        methods=("full",),
    )
    full_bf16: bool = option(
        False,
        "Hold weights and gradients of what is trained in bf16 too: half the memory, for full training. Updates are "
        "rounded by chance, so that small ones count.",
        notes={"lora": "It saves little for a LoRA, which learns worse by it."},
        label="Full bf16",
    )
    fp8_base: bool = option(
        False,
        "Hold the frozen weights of transformer and T5 in fp8, half the memory of bf16; they still compute in "
        "mixed_precision.",
        label="Base in fp8",
        families=("flux",),
        methods=("lora",),
    )
    fp8_base_unet: bool = option(
        False,
        "As fp8_base, but only for the transformer.",
        label="Transformer in fp8",
        families=("flux",),
        methods=("lora",),
    )
    max_nonfinite_steps: int = option(
        3,
        "End the run after this many steps in a row with a NaN or infinite loss or gradient. Until then such steps are "
        "skipped. Where a skipped step would still corrupt the weights, the first one ends the run.",
        label="Non-finite steps in a row",
        within=(1, 10_000),
    )
    sdpa: bool = option(False, "Use PyTorch's scaled_dot_product_attention. It is always used.", not_yet=ALWAYS_SDPA)
    xformers: bool = option(False, "Use xformers' attention.", families=("sdxl",), not_yet=ALWAYS_SDPA)
    mem_eff_attn: bool = option(False, "Use attention in chunks.", families=("sdxl",), not_yet=ALWAYS_SDPA)

    def check(self) -> Iterable[tuple[str, str]]:
        if self.full_fp16 and self.mixed_precision != "fp16":
            yield "full_fp16", f"needs mixed_precision = fp16, which is {self.mixed_precision}"
        if self.full_bf16 and self.mixed_precision != "bf16":
            yield "full_bf16", f"needs mixed_precision = bf16, which is {self.mixed_precision}"


class ResumeOptions(OptionGroup, title="State and resume"):
    """A state holds all that a run needs to go on."""

    save_state: bool = option(
        False, "With every saved file, save a state too: optimizer, schedule, counters, so that training can go on."
    )
    save_state_on_train_end: bool = option(False, "Save a state at the end.", label="Save a state at the end")
    save_last_n_epochs_state: int | None = option(
        None,
        "Keep only the states of the last n epochs; unset follows save_last_n_epochs.",
        within=(0, 1_000_000),
        zero_is_off=True,
    )
    save_last_n_steps_state: int | None = option(
        None,
        "Keep only the states of the last n steps; unset follows save_last_n_steps.",
        within=(0, 10_000_000),
        zero_is_off=True,
    )
    resume: str | None = option(
        None,
        "Folder of a state to go on from. Step, epoch and order of images continue where it ended; a learning rate, "
        "schedule or weight decay that was changed since applies from there on. latest finds the newest state of "
        "output_name in output_dir, and begins anew where there is none yet: so the same command can be given again "
        "after whatever ended it.",
        label="Resume from state",
        path=True,
    )
    resume_changed_model: bool = option(
        False,
        "Resume although the base model or the alpha of the network is not that of the state, which changes what was "
        "learned so far.",
        label="Resume with a changed model",
    )
    initial_epoch: int | None = option(
        None,
        "Begin counting at this epoch; the first is 1. Not needed with resume.",
        within=(0, 1_000_000),
        zero_is_off=True,
    )
    initial_step: int | None = option(
        None,
        "Begin counting at this step; wins over initial_epoch. Not needed with resume.",
        within=(0, 10_000_000),
        zero_is_off=True,
    )
    skip_until_initial_step: bool = option(
        False, "Leave out the batches before initial_step instead of training on them again."
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.skip_until_initial_step and not (self.initial_step or self.initial_epoch):
            yield "skip_until_initial_step", "needs initial_step or initial_epoch; a resumed run skips by itself"


class DistributedOptions(OptionGroup, title="Several processes"):
    """For training on several GPUs."""

    ddp_timeout: int | None = option(
        None,
        "Minutes that processes wait for each other; raise it where one caches much longer than another.",
        within=(0, 100_000),
        zero_is_off=True,
    )
    ddp_gradient_as_bucket_view: bool = option(False, "Let gradients live in DDP's buffers.", not_yet=NO_DDP)
    ddp_static_graph: bool = option(False, "Promise DDP that every step uses the same weights.", not_yet=NO_DDP)
    deepspeed: bool = option(False, "Use DeepSpeed.", not_yet=NO_DEEPSPEED)
    zero_stage: int = option(2, "ZeRO stage of DeepSpeed.", choices=(0, 1, 2, 3), not_yet=NO_DEEPSPEED)
    offload_optimizer_device: Literal["cpu", "nvme"] | None = option(
        None, "Where DeepSpeed puts the optimizer's state.", not_yet=NO_DEEPSPEED
    )
    offload_optimizer_nvme_path: str | None = option(
        None, "Folder for the optimizer's state on NVMe.", not_yet=NO_DEEPSPEED
    )
    offload_param_device: Literal["cpu", "nvme"] | None = option(
        None, "Where DeepSpeed puts weights.", not_yet=NO_DEEPSPEED
    )
    offload_param_nvme_path: str | None = option(None, "Folder for weights on NVMe.", not_yet=NO_DEEPSPEED)
    zero3_init_flag: bool = option(False, "Make models under ZeRO-3.", not_yet=NO_DEEPSPEED)
    zero3_save_16bit_model: bool = option(False, "Gather 16-bit weights when saving.", not_yet=NO_DEEPSPEED)
    fp16_master_weights_and_gradients: bool = option(False, "fp16 master weights.", not_yet=NO_DEEPSPEED)
