"""Options that only Anima has: the files of its text encoder and of an adapter."""

from sd_scripts.options.spec import OptionGroup, path_option

RECOMMENDED = {"timestep_sampling": "sigmoid"}
"""Values that train Anima well: sd-scripts' defaults for it."""


class AnimaModelOptions(OptionGroup, title="Anima model"):
    """Anima's text encoder, and the adapter from it to the transformer."""

    qwen3: str | None = path_option(
        "The Qwen3-0.6B base text encoder, such as qwen_3_06b_base.safetensors. Not needed for a diffusers folder.",
        label="Text encoder (Qwen3-0.6B)",
        placeholder="/models/qwen_3_06b_base.safetensors",
    )
    llm_adapter_path: str | None = path_option(
        "An LLM adapter to use instead of the one in the model's file.",
        label="LLM adapter",
        placeholder="/models/llm_adapter.safetensors",
    )
