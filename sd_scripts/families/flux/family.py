"""FLUX.1, dev and schnell, as a record for the trainer."""

from sd_scripts.families.family import Family
from sd_scripts.families.flux.card import CARD
from sd_scripts.families.flux.load import check, load_vae, open_components, remarks
from sd_scripts.families.flux.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.flux.memory import checkpoint_gradients, place
from sd_scripts.families.flux.objective import architecture, loss, metadata, step_inputs, validation_timesteps
from sd_scripts.families.flux.sampling import prompt_captions, sample
from sd_scripts.families.flux.saving import save, saved_form
from sd_scripts.families.flux.text import adapted_encoders, encode_text, text_cache_fits, text_cache_key, tokenize
from sd_scripts.families.flux.vae import LATENTS, encode_images

FAMILY = FLUX = Family(
    name="flux",
    title="FLUX",
    base_model_version="flux1",
    architecture=architecture,
    implementation="https://github.com/black-forest-labs/flux",
    bucket_multiple=32,
    latents=LATENTS,
    text_cache_suffix="flux_te",
    text_cache_key=text_cache_key,
    text_cache_fits=text_cache_fits,
    adapted_encoders=adapted_encoders,
    check=check,
    open=open_components,
    load_vae=load_vae,
    remarks=remarks,
    encode_images=encode_images,
    tokenize=tokenize,
    encode_text=encode_text,
    place=place,
    checkpoint_gradients=checkpoint_gradients,
    step_inputs=step_inputs,
    validation_timesteps=validation_timesteps,
    loss=loss,
    compile_targets=lambda flux: [list(flux.double_blocks), list(flux.single_blocks)],  # type: ignore[arg-type]
    graph_kinds=lambda flux: {"DoubleBlock": 1, "SingleBlock": 1},
    lora=TRANSFORMER,
    lora_text_encoders=TEXT_ENCODERS,
    lora_modules=CARD.network_modules,
    sample_defaults=CARD.sample_defaults,
    prompt_captions=prompt_captions,
    sample=sample,
    prediction_type=lambda settings: None,
    metadata=metadata,
    saves_all=False,
    saved_form=saved_form,
    save=save,
)
