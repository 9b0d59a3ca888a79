"""Options of full training: the trained parts, how its optimizer saves memory, how the model is saved."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, count, optional, switch
from sd_scripts.options.training import ALWAYS_SDPA

FUSED = ("fused_backward_pass", "fused_optimizer_groups", "blockwise_fused_optimizers")


class FullOptions(OptionGroup, title="Full training", methods=("full",)):
    """Which weights of the model are trained, and at which learning rates."""

    train_text_encoder: bool = switch(
        "Train both text encoders too. They overfit quickly on little data; 1e-6 to 5e-6 is usual.",
        label="Train the text encoders",
        needs="trains_text",
    )
    learning_rate_te1: float | None = optional(
        "Learning rate of the first text encoder (CLIP-L). Default: learning_rate; 0 freezes it.",
        label="CLIP-L learning rate",
        within=(0.0, 1000.0),
        needs="trains_text",
    )
    learning_rate_te2: float | None = optional(
        "Learning rate of the second text encoder (CLIP-G). Default: learning_rate; 0 freezes it.",
        label="CLIP-G learning rate",
        within=(0.0, 1000.0),
        needs="trains_text",
    )
    block_lr: str | None = optional(
        "Learning rate of each block of the denoiser, separated by commas. 0 freezes a block.",
        label="Block learning rates",
        placeholder="1e-6,1e-6,...",
        needs="block_rates",
    )

    def rate_of_encoder(self, number: int, learning_rate: float) -> float:
        """Return the learning rate of the text encoder `number`, from 0; by default `learning_rate`."""
        rate = getattr(self, f"learning_rate_te{number + 1}", None)
        return learning_rate if rate is None else rate

    @property
    def block_rates(self) -> list[float]:
        """Return block_lr as numbers; empty if it is unset or not a list of numbers."""
        try:
            return [float(word) for word in (self.block_lr or "").strip(" '\"[]()").split(",")]
        except ValueError:
            return []

    def check(self) -> Iterable[tuple[str, str]]:
        rates = self.block_rates
        if self.block_lr and not rates:
            yield "block_lr", f"{self.block_lr!r} is not a comma-separated list of numbers"
        if not all(0 <= rate < float("inf") for rate in rates):
            yield "block_lr", "has a negative or infinite value; each must be 0 or more"


class FusedOptions(OptionGroup, title="Updates within the backward pass", methods=("full",)):
    """Update weights during the backward pass, so that the gradients are never all in memory."""

    fused_backward_pass: bool = switch(
        "Update each weight during the backward pass and free its gradient immediately. Saves the memory of all "
        "gradients; max_grad_norm then clips each gradient on its own.",
        label="Fused backward pass",
    )
    fused_optimizer_groups: int | None = count(
        "Like fused_backward_pass, with the weights in this many groups: fewer groups are faster and use more "
        "memory for gradients. 4 to 10 is usual.",
        most=10_000,
        needs="grouped_updates",
    )
    blockwise_fused_optimizers: bool = switch(
        "Like fused_backward_pass, one block at a time.",
        label="Fused backward pass by block",
        needs="blockwise_updates",
    )
    diffusers_xformers: bool = switch("Use xformers through diffusers.", not_yet=ALWAYS_SDPA)

    @property
    def chosen(self) -> str:
        """Return the name of the first option that is on; empty if none is."""
        return next((name for name in FUSED if getattr(self, name)), "")

    def check(self) -> Iterable[tuple[str, str]]:
        chosen = [name for name in FUSED if getattr(self, name)]
        if len(chosen) > 1:
            yield chosen[0], f"cannot be combined with {chosen[1]}, a variant of it; choose one of them"


class ModelFileOptions(OptionGroup, title="Model file", methods=("full",)):
    """The format in which a trained model is saved."""

    save_model_as: Literal["ckpt", "safetensors", "diffusers", "diffusers_safetensors"] | None = optional(
        "safetensors is one file that every program loads; diffusers is a folder (diffusers_safetensors is the same). "
        "Default: the format of the base model. A family that lacks a format is saved as safetensors.",
        label="File format",
    )
    use_safetensors: bool = switch(
        "Old form of save_model_as = safetensors; ignored if that is set.", label="safetensors"
    )
    mem_eff_save: bool = switch(
        "Write the model tensor by tensor, without a second copy in RAM.",
        not_yet="every model is written tensor by tensor; leave it off",
    )
