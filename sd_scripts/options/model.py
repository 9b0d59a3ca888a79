"""Options: the base model."""

from collections.abc import Iterable

from sd_scripts.options.spec import OptionGroup, option


class ModelOptions(OptionGroup, title="Model"):
    """The base model and how it is read."""

    pretrained_model_name_or_path: str | None = option(
        None,
        "The model that training starts from: a .safetensors or .ckpt file, a diffusers folder, or a Hugging Face id "
        "such as stabilityai/stable-diffusion-xl-base-1.0.",
        label="Base model",
        placeholder="/models/sd_xl_base_1.0.safetensors or /models/flux1-dev.safetensors",
        path=True,
    )
    vae: str | None = option(
        None,
        "Another VAE (file or folder) in place of the model's own. With SDXL, the fp16-fix VAE avoids black images "
        "in half precision.",
        label="VAE",
        families=("sdxl",),
        path=True,
    )
    no_half_vae: bool = option(
        False,
        "Keep the VAE in float32. Turn it on for SDXL's original VAE with fp16, which overflows in half precision.",
        label="Keep the VAE in float32",
        families=("sdxl",),
    )
    tokenizer_cache_dir: str | None = option(
        None,
        "Folder in which tokenizers are looked up, for models that bring their own vocabulary. "
        "The usual one is shipped, so that nothing is downloaded.",
        path=True,
    )
    v2: bool = option(
        False,
        "The base model is Stable Diffusion 2.x.",
        families=(),
        not_yet="Stable Diffusion 2.x is not trained here; choose an SDXL model",
    )
    v_parameterization: bool = option(
        False,
        "The model predicts velocity instead of noise. Needed for v-prediction models, harmful for all others.",
        label="v-prediction",
        families=("sdxl",),
    )
    clip_skip: int | None = option(
        None,
        "Which layer of the text encoders to read, counted from the end. Unset, 1 and 2 are the layer before the last, "
        "which SDXL was trained with; 3 and more read earlier ones.",
        label="CLIP skip",
        within=(0, 12),
        zero_is_off=True,
        families=("sdxl",),
    )
    max_token_length: int | None = option(
        None,
        "How many tokens of a caption are read: unset means 75; 150 and 225 read longer captions in pieces of 75.",
        choices=(150, 225),
        families=("sdxl",),
    )
    disable_mmap_load_safetensors: bool = option(
        False,
        "Read model files in one go instead of mapping them into memory. Quicker on WSL and network drives.",
        label="Read model files without mmap",
    )
    lowram: bool = option(False, "Load models straight to the GPU, for machines with little RAM.", label="Low RAM")
    highvram: bool = option(
        False,
        "Do not empty the GPU's memory cache while latents are cached.",
        not_yet="the memory cache is not emptied between batches anyway",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.pretrained_model_name_or_path:
            yield (
                "pretrained_model_name_or_path",
                "no base model is named; give a .safetensors file, a diffusers folder or a Hugging Face id",
            )
