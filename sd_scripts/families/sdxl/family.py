"""Stable Diffusion XL, as a record for the trainer."""

from sd_scripts.families.family import Family
from sd_scripts.families.sdxl.card import CARD
from sd_scripts.families.sdxl.load import check, load_vae, open_components
from sd_scripts.families.sdxl.lora import TEXT_ENCODERS, UNET
from sd_scripts.families.sdxl.objective import conditioning, loss, step_inputs, validation_timesteps
from sd_scripts.families.sdxl.sampling import prompt_captions, sample
from sd_scripts.families.sdxl.saving import save, saved_form
from sd_scripts.families.sdxl.text import encode_text, text_cache_key, tokenize
from sd_scripts.families.sdxl.unet import block_of, checkpoint_gradients, compile_targets, graph_kinds, place
from sd_scripts.families.sdxl.vae import LATENTS, encode_images
from sd_scripts.options.model import ModelOptions

FAMILY = SDXL = Family(
    name="sdxl",
    title="SDXL UNet",
    base_model_version="sdxl_base_v1-0",
    architecture=lambda components: "stable-diffusion-xl-v1-base",
    implementation="https://github.com/Stability-AI/generative-models",
    bucket_multiple=32,
    latents=LATENTS,
    text_cache_suffix="te_outputs",
    text_cache_key=text_cache_key,
    trains_text_encoders=True,
    adapted_encoders=lambda settings: (True, True),
    check=check,
    open=open_components,
    load_vae=load_vae,
    remarks=lambda components, settings: [],
    encode_images=encode_images,
    tokenize=tokenize,
    encode_text=encode_text,
    place=place,
    checkpoint_gradients=checkpoint_gradients,
    conditioning=conditioning,
    step_inputs=step_inputs,
    validation_timesteps=validation_timesteps,
    loss=loss,
    compile_targets=compile_targets,
    graph_kinds=graph_kinds,
    block_of=block_of,
    lora=UNET,
    lora_text_encoders=TEXT_ENCODERS,
    lora_modules=CARD.network_modules,
    sample_defaults=CARD.sample_defaults,
    prompt_captions=prompt_captions,
    sample=sample,
    prediction_type=lambda settings: "v" if settings[ModelOptions].v_parameterization else "epsilon",
    metadata=lambda settings, components: {},
    saves_all=True,
    saved_form=saved_form,
    save=save,
)
