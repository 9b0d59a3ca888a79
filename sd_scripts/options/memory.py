"""Options that train a large model on a smaller GPU."""

from sd_scripts.options.spec import OptionGroup, count, switch


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
