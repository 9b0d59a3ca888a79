"""What the steps are fed with: the data plan, the caches, and a batch made ready on the device."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches import LatentStore, TextStore
from sd_scripts.data.dataset import DataPlan, plan_data
from sd_scripts.data.epochs import BatchShape, ShortBatches, batch_shapes
from sd_scripts.data.latent_caching import cache_latents
from sd_scripts.data.loader import BatchLoader
from sd_scripts.data.text_caching import cache_text
from sd_scripts.families.family import Family, Parts
from sd_scripts.options.dataset import CacheOptions, CaptionOptions, DatasetOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.training.context import Context


@dataclass(kw_only=True)
class Material:
    """Data of a run, with what was encoded of it."""

    context: Context
    family: Family
    parts: Parts
    plan: DataPlan
    latents: LatentStore | None = None
    text: TextStore | None = None

    @property
    def short_batches(self) -> ShortBatches:
        return self.context.settings[DatasetOptions].short_batches

    def shapes(self) -> dict[BatchShape, int]:
        return batch_shapes(self.plan, short_batches=self.short_batches)

    def loader(self, plan: DataPlan, *, accumulation: int = 1, max_train_steps: int = 0) -> BatchLoader:
        data = self.context.settings[DatasetOptions]
        return BatchLoader(
            plan,
            warn=self.context.warn,
            workers=data.max_data_loader_n_workers,
            persistent=data.persistent_data_loader_workers,
            rank=self.context.rank,
            world=self.context.world,
            latents=self.latents,
            text=self.text,
            short_batches=self.short_batches if plan is self.plan else "keep",
            accumulation=accumulation,
            max_train_steps=max_train_steps,
            pin_memory=self.context.device.type == "cuda",
        )

    def inputs(
        self, batch: Batch, *key: object, timestep: float | None = None, encode: bool = True
    ) -> dict[str, Tensor]:
        """Everything a step reads, on the device; draws are keyed by the seed and `key`.

        Names of text tensors start with `text.`; where encoders learn (`encode` False) they are the tokens.
        """
        device, settings = self.context.device, self.context.settings
        latents = batch.latents
        if latents is None:
            assert batch.pixels is not None, "a batch holds pixels or latents"
            latents = self.family.encode_images(self.parts, batch.pixels.to(device, non_blocking=True))
        latents = latents.to(device, torch.float32, non_blocking=True)
        t = None if timestep is None else torch.full((len(batch),), timestep, device=device, dtype=torch.float32)
        inputs = self.family.step_inputs(batch, latents, settings, self.context.generator(*key), t)
        text = batch.text
        if not text:
            text = self.family.tokenize(self.parts, batch.captions, settings)
            if encode:
                with torch.no_grad():
                    text = self.family.encode_text(self.parts, text)
        return inputs | {f"text.{name}": tensor.to(device, non_blocking=True) for name, tensor in text.items()}


def read_data(context: Context, family: Family) -> DataPlan:
    """Look at the folders; ValueError names the option at fault."""
    return plan_data(
        context.settings,
        seed=context.seed,
        warn=context.warn,
        bucket_multiple=family.bucket_multiple,
        title=family.title.split()[0],
    )


def batches_per_epoch(context: Context, plan: DataPlan) -> int:
    """Of one process, known before the model is. ValueError where the pictures fill no batch."""
    short_batches = context.settings[DatasetOptions].short_batches
    # what fills no batch is told by the loader that trains
    return len(BatchLoader(plan, warn=lambda _: None, world=context.world, short_batches=short_batches))


def encode_ahead(material: Material) -> None:
    """Fill the caches that the options ask for."""
    context, cache, parts = material.context, material.context.settings[CacheOptions], material.parts
    if cache.cache_latents or cache.cache_latents_to_disk:
        with _on_device(context, [parts.vae]):
            material.latents = cache_latents(
                material.plan,
                lambda pixels: material.family.encode_images(parts, pixels),
                fingerprint=_digest([parts.vae]),
                warn=context.warn,
                to_disk=cache.cache_latents_to_disk,
                suffix=material.family.latent_suffix,
                batch_size=cache.vae_batch_size,
                skip_check=cache.skip_cache_check,
                progress=context.phase("caching latents"),
                rank=context.rank,
                world=context.world,
            )
    if cache.cache_text_encoder_outputs or cache.cache_text_encoder_outputs_to_disk:
        model = context.settings[ModelOptions]
        weighted = context.settings[CaptionOptions].weighted_captions
        with _on_device(context, parts.text_encoders):
            material.text = cache_text(
                material.plan,
                lambda captions: _encode_captions(material, captions),
                fingerprint=_digest(parts.text_encoders, model.max_token_length, model.clip_skip, weighted),
                warn=context.warn,
                to_disk=cache.cache_text_encoder_outputs_to_disk,
                suffix=material.family.text_cache_suffix,
                skip_check=cache.skip_cache_check,
                progress=context.phase("caching text"),
                rank=context.rank,
                world=context.world,
            )
    context.accelerator.wait_for_everyone()


def move_in(material: Material) -> None:
    """Bring what the steps need onto the device; what was encoded ahead stays in main memory."""
    parts, device = material.parts, material.context.device
    material.family.place(parts, material.context.settings, device)
    if material.latents is None:
        parts.vae.to(device)
    if material.text is None:
        for encoder in parts.text_encoders:
            encoder.to(device)


def _encode_captions(material: Material, captions: list[str]) -> dict[str, Tensor]:
    tokens = material.family.tokenize(material.parts, captions, material.context.settings)
    with torch.no_grad():
        return material.family.encode_text(material.parts, tokens)


@contextmanager
def _on_device(context: Context, modules: Sequence[nn.Module]) -> Iterator[None]:
    homes = [next(module.parameters()).device for module in modules]
    for module in modules:
        module.to(context.device)
    yield
    for module, home in zip(modules, homes, strict=True):
        module.to(home)
    if context.device.type == "cuda":
        torch.cuda.empty_cache()


def _digest(modules: Iterable[nn.Module], *more: object) -> str:
    """Names these weights: a few numbers of every tensor, so that it does not matter where the file lies."""
    digest = hashlib.sha256(repr(more).encode())
    for module in modules:
        for name, tensor in module.state_dict().items():
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(tensor.flatten()[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()
