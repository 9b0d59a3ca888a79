"""Options that train a large model on a smaller GPU."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.spec import OptionGroup, count, option, switch

UNQUANTIZED = "none"


class MemoryOptions(OptionGroup, title="Large models"):
    """Train a large model on a small GPU."""

    blocks_to_swap: int | None = count(
        "Save GPU memory: keep this many blocks in RAM and load each onto the GPU when needed, while others compute. "
        "0 is off.",
        label="Blocks to swap",
        most=1000,
    )
    fp8_compute: bool = switch(
        "Run the matrix products with frozen weights in fp8, on RTX 40, RTX 50, H100 and newer: about a quarter faster "
        "than bf16, slightly less exact. Saves no memory on its own; combine it with fp8_base_unet for that.",
        label="Compute in fp8",
        needs="fp8",
        methods=("lora",),
    )
    quantize_base: Literal["none", "int8", "int8_weight_only", "fp8", "nf4"] = option(
        UNQUANTIZED,
        "Save GPU memory: store the frozen weights of the U-Net or transformer in 8 or 4 bits instead of 16. int8 and "
        "fp8 take half of bf16, nf4 (by bitsandbytes) little more than a quarter and is the least exact. int8 also "
        "multiplies in int8, on RTX 30 and newer; the others multiply in mixed_precision, which is slower than with "
        "bf16 weights and more exact. fp8 is what fp8_base_unet turns on.",
        label="Quantize base model",
        needs="fp8",
        methods=("lora",),
    )
    quantize_text_encoders: Literal["none", "int8", "fp8", "nf4"] = option(
        UNQUANTIZED,
        "Save GPU and main memory: store the frozen weights of the text encoders in 8 or 4 bits. They multiply in "
        "mixed_precision. Captions are read slightly less exactly.",
        label="Quantize text encoders",
        needs="fp8",
        methods=("lora",),
    )

    offload_inactive_dit: bool = switch(
        "Save GPU memory: with two models, for high and for low noise, keep the one that does not compute in RAM. They "
        "change places whenever a step needs the other one, in about a second.",
        label="Idle model in RAM",
        needs="experts",
        methods=("lora",),
    )

    @staticmethod
    def chosen(weight_format: str) -> str:
        """Return the format that an option names, empty for none."""
        return "" if weight_format == UNQUANTIZED else weight_format

    def check(self) -> Iterable[tuple[str, str]]:
        if self.fp8_compute and self.chosen(self.quantize_base) not in ("", "fp8"):
            yield (
                "fp8_compute",
                f"multiplies weights in fp8, but quantize_base is {self.quantize_base}; turn fp8_compute off, or set "
                "quantize_base = fp8",
            )
