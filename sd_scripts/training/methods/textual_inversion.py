"""Textual inversion: train the embeddings of a new token, and nothing else of the model."""

from __future__ import annotations

from pathlib import Path

import torch

from sd_scripts.families.common.family import Components, Family
from sd_scripts.networks.layers import Dropouts
from sd_scripts.networks.network import attach
from sd_scripts.networks.plan import parameter_groups
from sd_scripts.options.networks.embedding import EmbeddingFileOptions
from sd_scripts.training.context import Context
from sd_scripts.training.methods.embeddings import (
    TEXTUAL_INVERSION,
    add_token,
    find_end_by_id,
    plan_embeddings,
    save_embeddings,
)
from sd_scripts.training.methods.lora import LoraTrainable
from sd_scripts.training.methods.method import Method, Trainable


class TextualInversion(Method):
    """Trains the embeddings of a new token in every text encoder."""

    name = "textual_inversion"

    def open(self, family: Family, context: Context, device: torch.device) -> Components:
        if context.sharded:
            raise ValueError(
                "use_fsdp: not supported for textual inversion, whose model is frozen; launch with --multi_gpu instead"
            )
        components = family.open(context.settings, context.dtype, device)
        add_token(family, components, context)
        return components

    def trains_text_encoders(self, family: Family, context: Context) -> tuple[bool, ...]:
        return (True,) * len(family.text.embeddings)

    def prepare(self, family: Family, components: Components, context: Context) -> Trainable:
        plans = plan_embeddings(family, components, context)
        generator = torch.Generator().manual_seed(context.number("network"))
        network = attach(plans, Dropouts(), generator, device=context.device)
        find_end_by_id(components)
        return EmbeddingTrainable(
            network,
            parameter_groups(network),
            [components.denoiser, *components.text_encoders],
            ending=f".{context.settings[EmbeddingFileOptions].save_model_as}",
        )


class EmbeddingTrainable(LoraTrainable):
    """The embeddings alone, with their float32 master weights in one flat buffer."""

    architecture_suffix = TEXTUAL_INVERSION
    companions = ()  # type: ignore[assignment]

    def save(self, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
        save_embeddings(self.network, path, dtype, metadata)
