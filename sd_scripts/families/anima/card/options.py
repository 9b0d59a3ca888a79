"""Options that only Anima has: the file of an adapter, and flags of sd-scripts."""

from collections.abc import Iterable

from sd_scripts.options.spec import OptionGroup, option, optional, path_option, switch

RECOMMENDED = {"timestep_sampling": "sigmoid"}
"""Values that train Anima well: sd-scripts' defaults for it."""
LONGEST = 512
"""Tokens of a caption, in Qwen3's and in T5's; longer ones are truncated."""
PARTS = ("self_attn", "cross_attn", "mlp", "mod", "llm_adapter")
"""Parts of the model in block_lr, before everything else, as sd-scripts' flags name them."""
BLOCK_LR = (
    "set block_lr to learning rates of self-attention, cross-attention, MLPs, modulations, LLM adapter and everything "
    "else, separated by commas"
)
AS_TRAINED = f"captions are read up to {LONGEST} tokens, as the model was trained"


class AnimaModelOptions(OptionGroup, title="Anima model"):
    """The adapter from the text encoder to the transformer."""

    llm_adapter_path: str | None = path_option(
        "An LLM adapter to use instead of the one in the model's file.",
        label="LLM adapter",
        placeholder="/models/llm_adapter.safetensors",
    )
    t5_tokenizer_path: str | None = path_option(
        "Folder of T5's tokenizer.", not_yet="T5's vocabulary is part of this program"
    )
    qwen3_max_token_length: int = option(LONGEST, "Tokens of Qwen3.", within=(1, 4096), not_yet=AS_TRAINED)
    t5_max_token_length: int = option(LONGEST, "Tokens of T5.", within=(1, 4096), not_yet=AS_TRAINED)
    vae_disable_cache: bool = switch("Encode without a cache of frames.", not_yet="images have no other frames")
    qwen_image_vae_2d: bool = switch("Encode by two-dimensional convolutions.", not_yet="the latents are the same")


class AnimaRates(OptionGroup, title="Learning rates of Anima's parts", methods=("full",)):
    """Flags of sd-scripts, for which block_lr stands here."""

    self_attn_lr: float | None = optional("Learning rate of self-attention.", within=(0.0, 1000.0), not_yet=BLOCK_LR)
    cross_attn_lr: float | None = optional("Learning rate of cross-attention.", within=(0.0, 1000.0), not_yet=BLOCK_LR)
    mlp_lr: float | None = optional("Learning rate of the MLPs.", within=(0.0, 1000.0), not_yet=BLOCK_LR)
    mod_lr: float | None = optional("Learning rate of the modulations.", within=(0.0, 1000.0), not_yet=BLOCK_LR)
    llm_adapter_lr: float | None = optional("Learning rate of the adapter.", within=(0.0, 1000.0), not_yet=BLOCK_LR)

    def check(self) -> Iterable[tuple[str, str]]:
        for part in PARTS:
            if getattr(self, f"{part}_lr") is not None:
                yield f"{part}_lr", BLOCK_LR


def part_of(name: str) -> int:
    """Return the place in block_lr of a parameter of the transformer."""
    inside = (
        *((0, ".self_attn."), (1, ".cross_attn."), (2, ".mlp."), (3, "adaln_modulation")),
        (len(PARTS), ""),
    )
    if name.startswith("llm_adapter."):
        return PARTS.index("llm_adapter")
    return next(place for place, part in inside if part in name)
