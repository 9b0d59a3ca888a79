"""The components of a base model: each is in memory from when it is loaded until nothing needs it any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

DENOISER, VAE = "denoiser", "vae"


@dataclass(frozen=True, kw_only=True)
class WeightSource:
    """Where the weights of a component come from."""

    empty: nn.Module
    """The component on the meta device: names, shapes and configuration without weights."""
    read: Callable[[], nn.Module]
    """Return the component with its weights."""
    device: torch.device | str = "cpu"
    """Where it is loaded to."""

    def load(self) -> nn.Module:
        """Return the component with its weights, frozen and in eval mode."""
        return self.read().eval().requires_grad_(False).to(self.device)


@dataclass(kw_only=True)
class Components:
    """The modules of a base model. One that is not loaded is an empty module on the meta device."""

    denoiser: nn.Module
    """The U-Net or the transformer."""
    vae: nn.Module
    text_encoders: list[nn.Module]
    tokenizers: list[Any]
    source: Path | str
    """File, folder or Hugging Face id that the weights come from."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Family-specific values, such as what saving must write unchanged: logit_scale of SDXL's second encoder."""
    sources: Mapping[str, WeightSource] = field(default_factory=dict)
    """By name: denoiser, vae, text_encoder1, ... Empty if the modules were not read from files."""
    on_load: Callable[[str], None] | None = None
    """Called with the name of each component that was loaded, to change it."""

    @classmethod
    def opened(cls, sources: Mapping[str, WeightSource], **others: Any) -> Components:
        """Return components of which nothing is loaded yet."""
        encoders = [each.empty for name, each in sources.items() if name not in (DENOISER, VAE)]
        denoiser, vae = sources[DENOISER].empty, sources[VAE].empty
        return cls(denoiser=denoiser, vae=vae, text_encoders=encoders, sources=sources, **others)

    @property
    def encoder_names(self) -> list[str]:
        return [f"text_encoder{number}" for number in range(1, len(self.text_encoders) + 1)]

    def load(self, *names: str) -> Components:
        """Read the weights of these components, or of all; return self.

        Raises ValueError, one sentence that names the option, if a file cannot be read.
        """
        for name in names or self.sources:
            self._put(name, self.sources[name].load())
            if self.on_load:
                self.on_load(name)
        return self

    def free(self, *names: str) -> None:
        """Give back the memory of these components."""
        for name in names:
            if name in self.sources:
                self._put(name, self.sources[name].empty)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def module(self, name: str) -> nn.Module:
        return getattr(self, name) if name in (DENOISER, VAE) else self.text_encoders[self.encoder_names.index(name)]

    def _put(self, name: str, module: nn.Module) -> None:
        if name in (DENOISER, VAE):
            setattr(self, name, module)
        else:
            self.text_encoders[self.encoder_names.index(name)] = module
