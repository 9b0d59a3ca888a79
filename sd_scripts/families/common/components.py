"""The components of a base model: each is in memory from when it is loaded until nothing needs it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sd_scripts.families.cards.family_card import DENOISER as DENOISER
from sd_scripts.families.cards.family_card import VAE as VAE
from sd_scripts.library.files.state_dicts import State
from sd_scripts.library.quantization import fp8

if TYPE_CHECKING:
    from sd_scripts.families.common.experts import Experts

Keep = Callable[[str, Tensor], bool]
"""Name, tensor -> whether it keeps the dtype that it has in the file."""
SCALE = ".weight_scale"
TEXT_ENCODER = "text_encoder"
"""Names of text encoders are this and a number."""
FirstValues = tuple[str, torch.Size, Tensor]
"""Name and shape of a tensor, and its first 16 values."""


@dataclass(frozen=True, kw_only=True)
class WeightSource:
    """How a component gets its weights."""

    empty: nn.Module
    """The component on the meta device: names, shapes and configuration without weights. It may not be changed."""
    make: Callable[[], nn.Module]
    """Create another one like `empty`, to be filled."""
    path: Path | str
    """Where they are read, for messages."""
    read: Callable[[torch.dtype, Keep | None], State]
    """Return its tensors under the component's own names, each in memory of its own and best mapped from a file.
    Weights with scales are multiplied by them and get the dtype, but for e4m3 ones that are kept: their scales are
    named `<weight>_scale`. Raises ValueError, one sentence that names the option."""
    dtype: torch.dtype = torch.float32
    keep: Keep | None = None
    finish: Callable[[Any], object] | None = None
    """Called with the loaded module, to tie weights."""
    quantize: Callable[[Any], object] | None = None
    """Called with the module once `Components.on_load` has changed it; None: it is not quantized, or only where it is
    placed."""
    device: torch.device | str = "cpu"
    """Where it is loaded to."""

    @property
    def loads_plainly(self) -> bool:
        """Whether a loaded module has the file's values, only in a different dtype."""
        widened = self.finish is not None and self.dtype == torch.float16
        return isinstance(self.path, Path) and not (self.keep or self.quantize or widened)

    def first_values(self) -> Iterator[FirstValues]:
        """Yield the tensors of a loaded module without loading it, if it `loads_plainly`."""
        state = self.read(self.dtype, None)
        for name, tensor in self.empty.state_dict().items():
            yield name, tensor.shape, state[name].flatten()[:16].to(self.dtype)

    def load(self) -> nn.Module:
        """Return the component with weights, frozen and in eval mode. No second copy of them is in memory."""
        module = self.make().eval().requires_grad_(False)
        state = self.read(self.dtype, self.keep)
        scales = {name: state.pop(name) for name in list(state) if name.endswith(SCALE)}
        self._fill(module, state)
        for name, scale in scales.items():
            fp8.scale_(module.get_submodule(name.removesuffix(SCALE)), scale.to(self.device), self.dtype)  # type: ignore[arg-type]
        if self.finish:
            self.finish(module)
        return module.to(self.device)

    def _fill(self, module: nn.Module, state: State) -> None:
        """Assign the tensors, each converted and moved in place of the one in `state`: none is in memory twice."""
        expected = module.state_dict()
        for name in list(state):
            tensor = state.pop(name)
            tensor = tensor.to(self.device, None if self.keep and self.keep(name, tensor) else self.dtype)
            if name in expected and tensor.numel() == expected[name].numel():
                tensor = tensor.reshape(expected[name].shape)  # a 1x1 convolution may be stored as a matrix
            state[name] = tensor
        module.load_state_dict(state, assign=True)


@dataclass(kw_only=True)
class Components:
    """The modules of a base model. One that is not loaded is an empty module on the meta device."""

    denoiser: nn.Module
    """The U-Net or the transformer."""
    vae: nn.Module
    text_encoders: list[nn.Module]
    tokenizers: Sequence[Any]
    source: Path | str
    """File or folder of the base model."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Family-specific values, such as values that saving must write unchanged: logit_scale of an OpenCLIP encoder."""
    sources: dict[str, WeightSource] = field(default_factory=dict)
    """By name: denoiser, vae, text_encoder1, ... Empty if the modules were not read from files."""
    others: dict[str, nn.Module] = field(default_factory=dict)
    """Components besides denoiser, VAE and text encoders, by name: an image encoder."""
    experts: Experts | None = None
    """Two sets of weights that change places in the denoiser; None: it has one."""
    learned: dict[int, range] = field(default_factory=dict)
    """Place of a text encoder -> ids of the new token that is trained (textual inversion): its tokenizer maps to
    the first, the others follow it."""
    on_load: Callable[[str], None] | None = None
    """Called with the name of each component that was loaded, to change it."""

    @classmethod
    def opened(cls, sources: dict[str, WeightSource], **others: Any) -> Components:
        """Return components that are not loaded yet. One that has no source is an empty module."""
        denoiser, vae = (sources[name].empty if name in sources else nn.Module() for name in (DENOISER, VAE))
        encoders = [each.empty for name, each in sources.items() if name.startswith(TEXT_ENCODER)]
        rest = {n: each.empty for n, each in sources.items() if n not in (DENOISER, VAE) and TEXT_ENCODER not in n}
        return cls(denoiser=denoiser, vae=vae, text_encoders=encoders, others=rest, sources=sources, **others)

    @property
    def encoder_names(self) -> list[str]:
        return [f"{TEXT_ENCODER}{number}" for number in range(1, len(self.text_encoders) + 1)]

    def load(self, *names: str) -> Components:
        """Read the weights of these components, or of all; return self.

        Raises ValueError, one sentence that names the option, if a file cannot be read.
        """
        for name in names or self.sources:
            source = self.sources[name]
            self._put(name, source.load())
            if self.on_load:
                self.on_load(name)
            if source.quantize:
                source.quantize(self.module(name))
        return self

    def free(self, *names: str) -> None:
        """Give back the memory of these components."""
        for name in names:
            if name in self.sources:
                self._put(name, self.sources[name].empty)
            if name == DENOISER and self.experts:
                self.experts.idle = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def is_loaded(self, name: str) -> bool:
        """Return whether a component has its weights."""
        return name not in self.sources or self.module(name) is not self.sources[name].empty

    def first_values(self, name: str) -> Iterator[FirstValues]:
        """Yield the first values of each tensor of a component. One that is not loaded is not loaded for it."""
        if not self.is_loaded(name):
            yield from self.sources[name].first_values()
            return
        for key, tensor in self.module(name).state_dict().items():
            yield key, tensor.shape, tensor.flatten()[:16]

    def module(self, name: str) -> nn.Module:
        if name in self.others:
            return self.others[name]
        return getattr(self, name) if name in (DENOISER, VAE) else self.text_encoders[self.encoder_names.index(name)]

    def _put(self, name: str, module: nn.Module) -> None:
        if name in self.others:
            self.others[name] = module
        elif name in (DENOISER, VAE):
            setattr(self, name, module)
        else:
            self.text_encoders[self.encoder_names.index(name)] = module
