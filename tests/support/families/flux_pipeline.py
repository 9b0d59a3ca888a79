"""FLUX.1 in diffusers: its pipeline around the parts of ours."""

from typing import Any

from diffusers import FluxPipeline

from benchmarks.pipelines.flux import make_scheduler, make_transformer, to_diffusers
from sd_scripts.families.common.family import Components


def transformer_of(components: Components) -> Any:
    """diffusers' transformer with a copy of the weights of ours."""
    flux: Any = components.denoiser
    transformer = make_transformer(flux.shape)
    transformer.load_state_dict(to_diffusers(flux.state_dict()))
    return transformer.eval()


def pipeline_of(components: Components, kind: Any = FluxPipeline) -> Any:
    """A FluxPipeline that shares autoencoder and encoders with `components` and copies the transformer's weights."""
    transformer = transformer_of(components)
    made = kind(
        scheduler=make_scheduler(transformer),
        vae=components.vae,
        text_encoder=components.text_encoders[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer=components.tokenizers[0],
        tokenizer_2=components.tokenizers[1],
        transformer=transformer,
    )
    made.set_progress_bar_config(disable=True)
    return made
