"""Shared parts of the families' miniatures: models of the real layout with tiny widths, and training images."""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTokenizer, PreTrainedTokenizerBase, T5Tokenizer

from sd_scripts.families.cards.family_card import DENOISER, FamilyCard
from sd_scripts.formats.images.image_folders import find_images
from sd_scripts.library.diffusion.dit_layers import pack
from sd_scripts.library.diffusion.flow_timesteps import shifted
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.library.text.tokenizers import make_clip_tokenizer
from sd_scripts.testing import demo_images

AUTOENCODER: dict[str, Any] = {
    "block_out_channels": (32, 32, 64, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 1,
}
T5_WIDTH = 48
DISTURBANCE = 2.5
"""How strong attention is compared with what bypasses it."""
CONDITIONING = 0.2
"""Strength of the vector of timestep and guidance in a transformer."""


@dataclass(frozen=True, kw_only=True)
class Miniature:
    """Paths of a tiny model and its images."""

    family: str
    files: dict[str, Path]
    """Option -> the file it names."""
    data_dir: Path

    @property
    def checkpoint(self) -> Path:
        return self.files["pretrained_model_name_or_path"]


def write_miniature(
    card: FamilyCard,
    folder: Path,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    states: Mapping[str, Mapping[str, Tensor]],
) -> Miniature:
    """Write a model of these state dicts by component, its tokenizers next to the transformer, and captioned images."""
    data_dir = demo_images.write_images(folder / "images")
    denoiser = folder / f"miniature_{card.name}.safetensors"
    for number, tokenizer in enumerate(tokenizers, 1):
        name = "tokenizer" if number == 1 else f"tokenizer_{number}"
        tokenizer.save_pretrained(folder / f"{denoiser.stem}_tokenizers" / name)
    return Miniature(family=card.name, files=write_components(card, denoiser, states), data_dir=data_dir)


def write_components(card: FamilyCard, denoiser: Path, states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Path]:
    """Write the files of these state dicts by component, the denoiser's and others next to it; return them by the
    option that names each."""
    files = {}
    for component in card.files.components:
        if component.name not in states:
            continue
        tensors = {component.prefixes[0] + key: each for key, each in states[component.name].items()}
        tensors.pop("encoder.embed_tokens.weight", None)  # of T5: the same tensor as shared.weight
        beside = denoiser.with_name(f"{component.option}.safetensors")
        files[component.option] = denoiser if component.name == DENOISER else beside
        save_model(files[component.option], tensors, {})
    return files


def states_of(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Tensor]]:
    return {name: module.state_dict() for name, module in modules.items()}


def in_files(modules: Mapping[str, nn.Module], layouts: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a family's modules by component, under the keys that files in its layouts have."""
    return {name: layouts[name].write(state) for name, state in states_of(modules).items()}


def with_controls(miniature: Miniature, family: str, folder: Path) -> Miniature:
    """Return a miniature of a family with control images, and draw a grey one for each of its images."""
    controls = folder / "controls"
    for path in find_images(miniature.data_dir, recursive=True):
        before = controls / path.relative_to(miniature.data_dir)
        before.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.convert("L").save(before)
    return replace(miniature, family=family, files={**miniature.files, "control_directory": controls})


def caption_words() -> list[str]:
    """Return the words of the drawn images' captions. Vocabularies are made of them and not trained, because training
    breaks ties between equally frequent pieces differently in each process."""
    return sorted({word for caption in demo_images.captions() for word in caption.split()})


def letter_merges(words: Iterable[str]) -> list[tuple[str, str]]:
    """Return the merges of a byte-level tokenizer that merges the letters of each word one by one."""
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for written in (word, f"Ġ{word}"):  # at the beginning of a text, and after a space
            merges |= dict.fromkeys((written[:n], written[n]) for n in range(1, len(written)))
    return list(merges)


def clip_tokenizer(words: Sequence[str] | None = None) -> CLIPTokenizer:
    """Make a CLIP tokenizer that merges the letters of each word one by one. `words`: those of the captions."""
    merges: dict[tuple[str, str], None] = {}
    for word in caption_words() if words is None else words:
        letters = [*word[:-1], word[-1] + "</w>"]
        merges |= dict.fromkeys(("".join(letters[:n]), letters[n]) for n in range(1, len(letters)))
    return make_clip_tokenizer(list(merges))


def t5_tokenizer(words: Sequence[str] | None = None) -> T5Tokenizer:
    """Create a T5 tokenizer with these words, by default those of the captions, and letters for all others."""
    known = caption_words() if words is None else words
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(letter, -9.0) for letter in "▁" + string.ascii_letters + string.digits + string.punctuation]
    return T5Tokenizer(vocab=[*special, *((f"▁{word}", -3.0) for word in known), *letters], extra_ids=0)


def t5_sizes(rows: int, width: int = T5_WIDTH) -> dict[str, Any]:
    """Return the arguments of T5Config or UMT5Config for an embedding with this many rows."""
    return {
        **{"vocab_size": rows, "d_model": width, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 3},
        **{"feed_forward_proj": "gated-gelu", "is_encoder_decoder": False, "use_cache": False},
    }


def clip_config(vocabulary: int, width: int, activation: str, layers: int = 3) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        num_attention_heads=max(width // 64, 1),
        num_hidden_layers=layers,
        hidden_act=activation,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )


@torch.no_grad()
def randomize(part: Any, generator: torch.Generator) -> None:
    """Draw weights that preserve the variance of activations, zero biases, and keep norms as initialized."""
    for name, parameter in part.eval().named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()


def draw_weights(modules: Mapping[str, nn.Module]) -> torch.Generator:
    """Draw the weights of all modules, the same at every call; return the generator."""
    generator = torch.Generator().manual_seed(0)
    for module in modules.values():
        randomize(module, generator)
    return generator


@torch.no_grad()
def calibrate(vae: Any) -> Tensor:
    """Give the latents of the drawn images mean 0, deviation 1 and a narrow distribution; return them, shifted and
    scaled."""
    pixels = images()
    shift = vae.config.shift_factor or 0.0
    scale = vae.config.scaling_factor
    moments = vae.encode(pixels).latent_dist.parameters  # (12, 2C, h, w)
    gain = 1 / (scale * moments.std((0, 2, 3)))
    latents = set_moments(vae.quant_conv or vae.encoder.conv_out, moments, gain, shift)
    return (latents - shift) * scale


def set_moments(conv: Any, moments: Tensor, gain: Tensor, mean: Tensor | float) -> Tensor:
    """Give latents this mean, (C,) or one for all, and a narrow distribution; return the images' latents, (B, C, ...).
    `conv` is the last layer of an encoder, `moments` (B, 2C, ...) its output for images, and `gain` (2C,) multiplies
    the first half of them."""
    channels = len(gain) // 2
    middle = moments.mean((0, *range(2, moments.ndim)))
    offset = torch.empty_like(gain)
    offset[:channels] = mean
    offset[channels:] = -12.0  # logarithm of the variance
    gain[channels:] = 1e-3
    conv.weight.mul_(gain.view(-1, *[1] * (conv.weight.ndim - 1)))
    conv.bias.copy_((conv.bias - middle) * gain + offset)
    of_channels = (-1, *[1] * (moments.ndim - 2))
    latents = (moments - middle.view(of_channels)) * gain.view(of_channels) + offset.view(of_channels)
    return latents[:, :channels]


def images() -> Tensor:
    """Return the drawn images, (12, 3, 128, 128) in -1..1."""
    drawings = [np.asarray(demo_images.draw(caption, (128, 128)), np.float32) for caption in demo_images.captions()]
    return torch.from_numpy(np.stack(drawings)).permute(0, 3, 1, 2) / 127.5 - 1


def least_squares(features: Tensor, wanted: Tensor) -> Tensor:
    """Fit the weight (O, F) of a linear layer that maps features (N, F) to `wanted` (N, O)."""
    features, wanted = features.double(), wanted.double()
    square = features.T @ features
    damping = 1e-4 * square.trace() / len(square) * torch.eye(len(square))  # no large weights that cancel each other
    return torch.linalg.solve(square + damping, features.T @ wanted).T


def weaken_conditioning(modulations: Iterable[nn.Linear], last: nn.Linear) -> None:
    """Make tokens matter more than the vector that all share. `modulations` compute shifts, scales and gates of the
    blocks, which each add half of their output, `last` shift and scale after them."""
    for linear in modulations:
        linear.weight.mul_(CONDITIONING)
        linear.bias.view(-1, 3, linear.in_features)[:, 2] = 0.5  # shift, scale, gate
    last.weight.mul_(CONDITIONING)


@contextmanager
def without_attention(
    outputs: Sequence[Tensor], generator: torch.Generator, strength: float = DISTURBANCE
) -> Iterator[None]:
    """Leave attention out inside the block, and let it disturb afterwards what was fitted there. `outputs`: the weights
    (O, F) that add it to what bypasses it; `strength`: relative to that."""
    for weight in outputs:
        weight.zero_()
    yield
    for weight in outputs:
        weight.normal_(std=strength * len(weight) ** -0.5, generator=generator)


def input_of(layer: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return the input of a layer while `run` runs its model."""
    features: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, inputs, __: features.append(inputs[0]))
    run()
    hook.remove()
    return features[0]


def fit_denoiser(
    last: nn.Linear,
    attention_outputs: Sequence[Tensor],
    latents: Tensor,
    generator: torch.Generator,
    run: Callable[[Tensor, Tensor], object],
    *,
    shift: float = 1.0,
    tokens_of: Callable[[Tensor], Tensor] = pack,
    strength: float = DISTURBANCE,
) -> None:
    """Fit the last layer of a transformer to random features, computed without attention. Attention, which LoRA adapts,
    then disturbs a fair denoiser, so that the loss falls within a few dozen steps.

    `run` calls the transformer with noisy latents and timesteps (B,), which are shifted by `shift`; `attention_outputs`
    and `strength` as in without_attention, `tokens_of` as in fit_velocity.
    """
    with without_attention(attention_outputs, generator, strength):
        noise = torch.randn(latents.shape, generator=generator)
        times = shifted(torch.sigmoid(torch.randn(len(latents), generator=generator)), shift)
        fit_velocity(last, latents, noise, times, lambda noisy: run(noisy, times), tokens_of)


def fit_velocity(
    last: nn.Linear,
    latents: Tensor,
    noise: Tensor,
    times: Tensor,
    run: Callable[[Tensor], object],
    tokens_of: Callable[[Tensor], Tensor] = pack,
) -> None:
    """Fit the last layer of a transformer by least squares to predict the velocity from its input features. `run`
    calls the transformer with noisy latents at these times (B,); `tokens_of`: latents -> the layer's output."""
    t = times.view(-1, *[1] * (latents.ndim - 1))
    features = input_of(last, lambda: run((1 - t) * latents + t * noise))
    last.weight.copy_(least_squares(features.flatten(0, 1), tokens_of(noise - latents).flatten(0, 1)))
