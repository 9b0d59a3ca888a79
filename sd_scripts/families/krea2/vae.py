"""Encode images to latents, and decode them, with Qwen-Image's VAE: a video VAE, for which an image is one frame."""

from sd_scripts.families.common.encoders.causal_vae import decode_images as decode_latents
from sd_scripts.families.common.encoders.causal_vae import encode_images as encode_images
from sd_scripts.families.common.encoders.causal_vae import image_latents

__all__ = ["LATENTS", "decode_latents", "encode_images"]

LATENTS = image_latents("krea2")
