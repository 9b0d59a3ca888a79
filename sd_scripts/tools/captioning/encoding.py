"""Encode images to cached latents next to them, exactly as a run with the same settings would."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.data.plan.buckets import BucketRules, Size
from sd_scripts.data.plan.dataset import plan_images
from sd_scripts.data.sources.images import Augmentation
from sd_scripts.families.common.components import VAE
from sd_scripts.families.common.family import family_of
from sd_scripts.library.files.safetensors_io import PRECISIONS
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import start_phase
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.encoding import ENCODING_OPTIONS
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.settings import Settings
from sd_scripts.training.training_data import encoder_key


def encode(args: Namespace, family: str, images: Sequence[Path], reporter: Reporter) -> dict[Path, Size]:
    """Encode the images; return the bucket of each readable one. ValueError names the option at fault.

    `args`: the flags of prepare_buckets_latents.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.mixed_precision == "fp16" and device.type == "cpu":
        raise ValueError("mixed_precision: fp16 needs a GPU; set bf16 or no")
    record = family_of(family)
    plan = plan_images(
        images,
        _rules(args),
        Augmentation(
            flip_aug=args.flip_aug, alpha_mask=args.alpha_mask, resize_interpolation=args.resize_interpolation
        ),
        record.card,
        warn=reporter.warn,
    )
    components = record.open(_settings(args, family), PRECISIONS[args.mixed_precision], only=(VAE,)).load(VAE)
    key = encoder_key([components.first_values(VAE)])
    components.vae.to(device)
    try:
        cache_latents(
            plan,
            lambda pixels: record.encode_images(components, pixels),
            encoder_key=key,
            layout=record.latents,
            job=CacheJob(
                warn=reporter.warn,
                to_disk=True,
                batch_size=args.batch_size,
                skip_check=args.skip_existing,
                progress=start_phase(reporter, "caching latents"),
            ),
        )
    except torch.OutOfMemoryError:
        raise ValueError("batch_size: out of GPU memory; lower batch_size or max_resolution") from None
    return {item.path: item.fit.bucket.size for item in plan.items}


def _settings(args: Namespace, family: str) -> Settings:
    """Return the settings of a training run that encodes with this VAE."""
    script = script_for(family, "full")
    own = {o.name for group in script.groups for o in each_option(group) if family in o.families}
    values = {name: getattr(args, name) for name in ENCODING_OPTIONS if name in own}
    return Settings(script, {**values, "pretrained_model_name_or_path": args.model_name_or_path})


def _rules(args: Namespace) -> BucketRules:
    try:
        resolution = parse_resolution(args.max_resolution)
    except ValueError as error:
        raise ValueError(f"max_{error}") from None
    return BucketRules(
        resolution=resolution,
        enable_bucket=args.enable_bucket,
        min_bucket_reso=args.min_bucket_reso,
        max_bucket_reso=args.max_bucket_reso,
        bucket_reso_steps=args.bucket_reso_steps,
        bucket_no_upscale=args.bucket_no_upscale,
        equal_token_buckets=args.equal_token_buckets,
    )
