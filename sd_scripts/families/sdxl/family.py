"""Stable Diffusion XL, as a record for the trainer."""

from sd_scripts.families.common.family import (
    Blocks,
    Family,
    FileIdentity,
    Saving,
    TextEncoding,
    blocks_named,
    blocks_of,
)
from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.load import LAYOUTS, prepare, width_problems
from sd_scripts.families.sdxl.lora import BLOCKS, TEXT_ENCODERS, UNET
from sd_scripts.families.sdxl.memory import place, problems
from sd_scripts.families.sdxl.objective import conditioning, loss, step_inputs, validation_timesteps
from sd_scripts.families.sdxl.sampling import prompt_captions, sample, sample_batch
from sd_scripts.families.sdxl.saving import checkpoint, saved_form, write_folder
from sd_scripts.families.sdxl.text import encode_text, text_cache_key, text_limit, tokenize
from sd_scripts.families.sdxl.unet import block_of, checkpoint_gradients, compile_targets, graph_kinds
from sd_scripts.families.sdxl.vae import LATENTS, encode_images
from sd_scripts.library.files.lean_diffusers import ResnetBlock2D
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.optimization.loss import NoiseOptions
from sd_scripts.options.run import CudaOptions

FAMILY = SDXL = Family(
    card=CARD,
    identity=FileIdentity(
        base_model_version="sdxl_base_v1-0",
        architecture=lambda components: "stable-diffusion-xl-v1-base",
        implementation="https://github.com/Stability-AI/generative-models",
        prediction_type=lambda settings: "v" if settings[ModelOptions].v_parameterization else "epsilon",
    ),
    text=TextEncoding(
        tokenize=tokenize,
        encode=encode_text,
        prompt_captions=prompt_captions,
        adapted=lambda settings: (True, True),
        cache_suffix="te_outputs",
        cache_key=text_cache_key,
        limit=text_limit,
        reads=lambda limit: (limit, limit),
        embeddings=("clip_l", "clip_g"),
    ),
    blocks=Blocks(
        title="SDXL UNet",
        denoiser=compile_targets,
        graph_kinds=graph_kinds,
        index=block_of,
        text_encoder=blocks_named("CLIPEncoderLayer"),
        vae=lambda vae: blocks_of(ResnetBlock2D)(vae.get_submodule("encoder")),
    ),
    saving=Saving(tensors=checkpoint, folder=write_folder, form=saved_form),
    latents=LATENTS,
    layouts=LAYOUTS,
    prepare=lambda components, settings: prepare(
        components,
        settings[ModelOptions],
        settings[NoiseOptions],
        exact_norms=settings[CudaOptions].float32_norms and not settings[CompileOptions].compile,
    ),
    problems=lambda sources, settings: [*width_problems(sources), *problems(sources, settings.get(MemoryOptions))],
    encode_images=encode_images,
    place_denoiser=place,
    checkpoint_gradients=checkpoint_gradients,
    conditioning=conditioning,
    objective_group=ModelOptions,
    step_inputs=step_inputs,
    validation_timesteps=validation_timesteps,
    loss=loss,
    lora=UNET,
    lora_text_encoders=TEXT_ENCODERS,
    lora_blocks=BLOCKS,
    sample=sample,
    sample_batch=sample_batch,
)
