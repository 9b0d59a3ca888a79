"""Options: the base model, and a text encoder that families share."""

from collections.abc import Iterable

from sd_scripts.options.spec import OptionGroup, count, optional, path_option, switch

MODEL = "pretrained_model_name_or_path"
"""The option that names the base model."""


class ModelOptions(OptionGroup, title="Model"):
    """The base model and how it is loaded."""

    pretrained_model_name_or_path: str | None = path_option(
        "Model to start from: a .safetensors or .ckpt file, a diffusers folder, or a Hugging Face ID.",
        label="Base model",
        placeholder="/models/model.safetensors",
    )
    vae: str | None = path_option(
        "Use a different VAE (file or folder) instead of the model's own.",
        label="VAE",
        needs="own_vae",
    )
    no_half_vae: bool = switch(
        "Run the VAE in float32. Turn it on for a VAE that overflows in fp16.",
        label="Keep the VAE in float32",
        needs="own_vae",
    )
    tokenizer_cache_dir: str | None = path_option(
        "Folder to load tokenizers from, for models with their own vocabulary. The standard one is included, so "
        "nothing is downloaded."
    )
    v2: bool = switch(
        "The base model is Stable Diffusion 2.x.", not_yet="Stable Diffusion 2.x is not supported; choose a newer model"
    )
    v_parameterization: bool = switch(
        "Train the model to predict velocity instead of noise. Required for v-prediction models, harmful for others.",
        label="v-prediction",
        needs="noise_schedule",
    )
    clip_skip: int | None = count(
        "Text encoder layer to use, counted from the end. Default, 1 and 2: the second to last, with which "
        "models are trained; 3 and more use earlier ones.",
        label="CLIP skip",
        most=12,
        needs="clip_captions",
    )
    max_token_length: int | None = optional(
        "Number of caption tokens to use. Default: 75; 150 and 225 read longer captions in chunks of 75.",
        choices=(150, 225),
        needs="clip_captions",
    )
    disable_mmap_load_safetensors: bool = switch(
        "Read model files in one go instead of memory-mapping them. Faster on WSL and network drives.",
        label="Read model files without mmap",
    )
    lowram: bool = switch(
        "Load one component at a time directly onto the GPU, for machines with little RAM.", label="Low RAM"
    )
    highvram: bool = switch(
        "Do not empty the GPU memory cache while latents are cached.",
        not_yet="the GPU memory cache is never emptied between batches",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.pretrained_model_name_or_path:
            yield (
                "pretrained_model_name_or_path",
                "not set; choose a .safetensors file, a diffusers folder or a Hugging Face ID",
            )


class Qwen3Options(OptionGroup, title="Qwen3 text encoder"):
    """The text encoder of families that read Qwen3."""

    qwen3: str | None = path_option(
        "The Qwen3 text encoder, such as qwen_3_4b.safetensors. Not needed for a diffusers folder.",
        label="Text encoder (Qwen3)",
        placeholder="/models/qwen_3_4b.safetensors",
    )
