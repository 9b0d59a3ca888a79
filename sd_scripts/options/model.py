"""Options: model."""

from sd_scripts.options.spec import OptionGroup, option


class ModelOptions(OptionGroup, title="Model"):
    """The base model and how it is read."""

    pretrained_model_name_or_path: str | None = option(None, "Base model: single file, Diffusers folder, or hub id.")
    vae: str | None = option(None, "Replacement VAE (file or folder).")
    tokenizer_cache_dir: str | None = option(
        None, "Local folder in which tokenizers are stored/looked up for offline use."
    )
    v2: bool = option(False, "Base model is Stable Diffusion 2.x.")
    v_parameterization: bool = option(False, "Train with v-prediction target.", families=("sdxl",))
    clip_skip: int | None = option(None, "Use the n-th text-encoder layer counted from the end.")
    max_token_length: int | None = option(
        None, "Token budget per caption; unset means 75.", choices=(150, 225), families=("sdxl",)
    )
    no_half_vae: bool = option(False, "Keep the VAE in fp32 while training in half precision.")
    disable_mmap_load_safetensors: bool = option(False, "Read safetensors without mmap (quicker on WSL).")
    lowram: bool = option(False, "Load models straight to the GPU.")
    highvram: bool = option(False, "Skip cache clearing during latent caching.")
