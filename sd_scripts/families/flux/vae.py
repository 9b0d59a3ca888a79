"""FLUX.1's autoencoder under the option that names its file here."""

from functools import partial

from sd_scripts.families.common.encoders import flux_vae
from sd_scripts.families.common.encoders.flux_vae import decode_latents as decode_latents

LATENTS = flux_vae.latent_layout("flux")
encode_images = partial(flux_vae.encode_images, option="ae")
