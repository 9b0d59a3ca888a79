"""Options of full training: what of the model learns, what its optimizer holds, in which form the model is saved."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, option

FULL = ("full",)
FUSED = ("fused_backward_pass", "fused_optimizer_groups", "blockwise_fused_optimizers")
SDXL_BLOCKS = 23
"""Values of block_lr: one before the blocks, 9 down, 3 in the middle, 9 up, one after them."""


class FullOptions(OptionGroup, title="Full training"):
    """What of the model learns, and how fast."""

    train_text_encoder: bool = option(
        False,
        "Train both text encoders too. They learn much with little data, and forget as easily; 1e-6 to 5e-6 is usual.",
        label="Train the text encoders",
        families=("sdxl",),
        methods=FULL,
    )
    learning_rate_te1: float | None = option(
        None,
        "Learning rate of the first text encoder (CLIP-L); unset is learning_rate, with 0 it stays as it is.",
        label="Learning rate of CLIP-L",
        within=(0.0, 1000.0),
        families=("sdxl",),
        methods=FULL,
    )
    learning_rate_te2: float | None = option(
        None,
        "Learning rate of the second text encoder (CLIP-G); unset is learning_rate, with 0 it stays as it is.",
        label="Learning rate of CLIP-G",
        within=(0.0, 1000.0),
        families=("sdxl",),
        methods=FULL,
    )
    block_lr: str | None = option(
        None,
        "Learning rate of each block of the U-Net, 23 numbers: time and size embedding, 9 down, 3 middle, 9 up, "
        "output. A block with 0 stays as it is.",
        label="Learning rates of the blocks",
        placeholder="1e-6,1e-6,...",
        families=("sdxl",),
        methods=FULL,
    )

    @property
    def block_rates(self) -> list[float]:
        """block_lr as numbers; empty where it is not set, or is none."""
        try:
            return [float(word) for word in (self.block_lr or "").strip(" '\"[]()").split(",")]
        except ValueError:
            return []

    def check(self) -> Iterable[tuple[str, str]]:
        rates = self.block_rates
        if self.block_lr and not rates:
            yield "block_lr", f"{self.block_lr!r} is not numbers with commas between them"
        if rates and len(rates) != SDXL_BLOCKS:
            yield "block_lr", f"has {len(rates)} values; give {SDXL_BLOCKS}"
        if not all(0 <= rate < float("inf") for rate in rates):
            yield "block_lr", "holds a number that is no learning rate; each is 0 or more"


class FusedOptions(OptionGroup, title="Updates within the backward pass"):
    """Gradients that are used as soon as they are there need not be held together."""

    fused_backward_pass: bool = option(
        False,
        "Update each weight within the backward pass and drop its gradient at once: saves the memory of all gradients. "
        "Gradients are then shortened (max_grad_norm) each by itself.",
        label="Fused backward pass",
        methods=FULL,
    )
    fused_optimizer_groups: int | None = option(
        None,
        "As fused_backward_pass, in so many groups of weights: fewer groups are faster and hold more gradients. "
        "4 to 10 is usual.",
        within=(0, 10_000),
        zero_is_off=True,
        families=("sdxl",),
        methods=FULL,
    )
    blockwise_fused_optimizers: bool = option(
        False,
        "As fused_backward_pass, a block at a time.",
        label="Fused backward pass by block",
        families=("flux",),
        methods=FULL,
    )
    diffusers_xformers: bool = option(
        False,
        "Use xformers through diffusers.",
        families=("sdxl",),
        methods=FULL,
        not_yet="attention always runs on PyTorch's scaled_dot_product_attention, which is as fast; nothing to choose",
    )

    @property
    def chosen(self) -> str:
        """Which of them is on; empty where none is."""
        return next((name for name in FUSED if getattr(self, name)), "")

    def check(self) -> Iterable[tuple[str, str]]:
        chosen = [name for name in FUSED if getattr(self, name)]
        if len(chosen) > 1:
            yield chosen[0], f"is the same as {chosen[1]} in other portions; choose one of them"


class ModelFileOptions(OptionGroup, title="Model file"):
    """In which form a trained model is saved."""

    save_model_as: Literal["ckpt", "safetensors", "diffusers", "diffusers_safetensors"] | None = option(
        None,
        "safetensors is one file that every program loads, diffusers a folder (diffusers_safetensors is the same). "
        "Unset is what the base model is. FLUX.1 is always saved as safetensors.",
        label="File format",
        methods=FULL,
    )
    use_safetensors: bool = option(
        False, "Old form of save_model_as = safetensors, for where that is not set.", label="safetensors", methods=FULL
    )
    mem_eff_save: bool = option(
        False,
        "Write the model tensor by tensor, without a second copy in main memory.",
        label="Save with little memory",
        families=("flux",),
        methods=FULL,
    )
