"""Options that only Anima has: the file of an adapter, and flags of sd-scripts."""

from sd_scripts.options.spec import OptionGroup, option, path_option, switch

DEFAULTS = {"timestep_sampling": "sigmoid", "discrete_flow_shift": 1.0}
"""sd-scripts' defaults for Anima."""
LONGEST = 512
"""Tokens of a caption, in Qwen3's and in T5's; longer ones are truncated."""
PARTS = {"llm_adapter.": 4, "adaln_modulation": 3, ".self_attn.": 0, ".cross_attn.": 1, ".mlp.": 2}
"""Text in a parameter's name -> its place in block_lr. The first match counts; all other parameters come last."""
AS_TRAINED = f"captions are read up to {LONGEST} tokens, as the model was trained"


class AnimaModelOptions(OptionGroup, title="Anima model"):
    """The adapter from the text encoder to the transformer."""

    llm_adapter_path: str | None = path_option(
        "An LLM adapter to use instead of the one in the model's file.",
        label="LLM adapter",
        placeholder="/models/llm_adapter.safetensors",
    )
    t5_tokenizer_path: str | None = path_option("Folder of T5's tokenizer.", not_yet="its vocabulary is built in")
    qwen3_max_token_length: int = option(LONGEST, "Tokens of Qwen3.", within=(1, 4096), not_yet=AS_TRAINED)
    t5_max_token_length: int = option(LONGEST, "Tokens of T5.", within=(1, 4096), not_yet=AS_TRAINED)
    vae_disable_cache: bool = switch("Encode without a cache of frames.", not_yet="images have no other frames")
    qwen_image_vae_2d: bool = switch("Encode by two-dimensional convolutions.", not_yet="the latents are the same")


def part_of(name: str) -> int:
    """Return the place in block_lr of a parameter of the transformer."""
    return next((place for text, place in PARTS.items() if text in name), len(PARTS))
