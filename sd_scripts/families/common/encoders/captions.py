"""Captions for language models, with the text around them, and the states of encoders, with a mask, per caption."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.data.sources.seen_files import stamps_of
from sd_scripts.families.common.components import Components
from sd_scripts.families.common.family import TextOptions
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.tokenizers import are_shipped
from sd_scripts.options.compile import CompileOptions

STEP = 128
"""In compiled runs the number of text tokens is rounded up to a multiple of it, so that captions share graphs."""


def padded_length(tokens: int, options: CompileOptions) -> int:
    """Return the number of tokens, text and padding."""
    step = STEP if options.compile else 1
    return -(-tokens // step) * step


@dataclass(frozen=True, kw_only=True)
class CaptionTemplate:
    """The text around a caption with which a transformer was trained: the language model's states of the suffix are
    kept, the prefix's are dropped unless it `keeps_prefix`."""

    prefix: str
    suffix: str
    longest: int
    """Tokens of caption and suffix, and of a prefix that is kept; longer captions are truncated."""
    encoder: int = 0
    """Index of the language model among the text encoders."""
    keeps_prefix: bool = False
    example_ids: tuple[int, ...] = ()
    """Tokens of "a cat" with the text around it by this package's tokenizer, which takes half a second to make."""

    def around(self, text: str) -> str:
        return f"{self.prefix}{text}{self.suffix}"

    def prefix_length(self, components: Components) -> int:
        """Return the number of tokens that are dropped: those before the caption, the tokenizer's own begin token
        included."""
        if self.keeps_prefix:
            return 0
        return len(components.tokenizers[self.encoder](self.prefix).input_ids)

    def tokenize(
        self, components: Components, texts: Sequence[str], padded: Callable[[int], int] = lambda tokens: tokens
    ) -> dict[str, Tensor]:
        """Return ids and mask (B, prefix + T), int64; T is what `padded` makes of the longest text's length."""
        prefix = self.prefix_length(components)
        tokenizer = components.tokenizers[self.encoder]
        rows = tokenizer(list(map(self.around, texts)), max_length=prefix + self.longest, truncation=True).input_ids
        length = prefix + padded(max(map(len, rows)) - prefix)
        ids = torch.zeros(len(rows), length, dtype=torch.int64)  # any token may pad: it comes after all others
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return {"ids": ids, "mask": mask}

    def encode(self, components: Components, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the language model's last states (B, T, C), 0 after the caption, and where there is text, (B, T) bool;
        differentiable. Attention is causal, so padding, which follows, changes nothing before it."""
        encoder: Any = components.text_encoders[self.encoder]
        device = encoder.embed_tokens.weight.device
        prefix = self.prefix_length(components)
        hidden = encoder(tokens["ids"].to(device), use_cache=False).last_hidden_state[:, prefix:]
        mask = tokens["mask"][:, prefix:].to(device).bool()
        return hidden * mask[..., None], mask

    def limit(self, components: Components, options: TextOptions) -> TextLimit:
        """Return the length of a caption with its suffix."""

        def count(captions: Sequence[str]) -> list[int]:
            prefix = self.prefix_length(components)
            rows = components.tokenizers[self.encoder](list(map(self.around, captions)), verbose=False).input_ids
            return [len(ids) - prefix for ids in rows]

        around = self.around("") if self.keeps_prefix else self.suffix
        return TextLimit(tokens=self.longest, count=count, short=self.longest - len(around))

    def cache_key(self, components: Components, options: TextOptions) -> tuple[object, ...]:
        """Return everything besides the encoders that changes their outputs: the tokens around a caption."""
        if self.example_ids and are_shipped(components.tokenizers):
            return self.example_ids
        return tuple(components.tokenizers[self.encoder](self.around("a cat")).input_ids)


QWEN_VL_TEMPLATE = partial(
    CaptionTemplate,
    prefix=(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
    ),
    suffix="<|im_end|>\n<|im_start|>assistant\n",
    example_ids=(
        *(151644, 8948, 198, 74785, 279, 2168, 553, 44193, 279, 1894, 11, 6083, 11, 1379, 11, 10434, 11, 12194, 11),
        *(1467, 11, 27979, 11871, 315, 279, 6171, 323, 4004, 25, 151645, 198, 151644, 872, 198),
        *(64, 8251, 151645, 198, 151644, 77091, 198),
    ),
)
"""Around a caption for Qwen-VL, to which `longest` is to be added. The prefix has 34 tokens."""


@dataclass(frozen=True, kw_only=True)
class CaptionOutputs:
    """The outputs of text encoders by name: states (B, T, C), their mask (B, T) bool, and others without tokens."""

    states: str
    mask: str
    whole: tuple[str, ...] = ()
    """Outputs that have no axis of tokens, or none that a caption's length shortens."""

    def trim(self, text: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs of one caption, (T, ...), without padding, as caches keep them."""
        length = int(text[self.mask].sum()) if self.mask in text else None
        return {name: tensor if name in self.whole else tensor[:length] for name, tensor in text.items()}

    def each(self, text: Mapping[str, Tensor], device: torch.device) -> list[dict[str, Tensor]]:
        """Split the outputs of several captions into batches of one without padding, on the device."""
        return [
            {
                name: (tensor if name in self.whole else tensor[:, :length])[number : number + 1].to(device)
                for name, tensor in text.items()
            }
            for number, length in enumerate(text[self.mask].sum(1).tolist())
        ]

    def pad(self, text: Mapping[str, Tensor], options: CompileOptions) -> dict[str, Tensor]:
        """Return the outputs of a batch with its number of tokens rounded up for compiled blocks. Without these a
        single caption needs no mask, for which attention is faster."""
        states, mask = text[self.states], text[self.mask]
        if len(mask) == 1 and not options.compile:
            return {self.states: states}
        missing = padded_length(mask.shape[1], options) - mask.shape[1]
        after = (*(0, 0) * (states.ndim - 2), 0, missing)
        return {self.states: F.pad(states, after), self.mask: F.pad(mask, (0, missing))}

    def cache_fits(self, components: Components, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether a cache file of unknown origin is complete and as wide as the transformer's input."""
        transformer: Any = components.denoiser
        fits = all(name in tensors for name in (self.states, self.mask, *self.whole))
        return fits and tensors[self.states].shape[-1] == transformer.params.text_width


def with_images(captions: Sequence[Caption], names: Sequence[str]) -> list[Caption]:
    """Return a prompt's captions, each with these images as they are now."""
    if not names:
        return list(captions)
    images = tuple(Path(name).expanduser() for name in names)
    now = tuple(sorted(stamps_of(images).items()))
    return [replace(caption, images=images, version=now) for caption in captions]
