"""Tokenize captions, and encode them to the hidden states of both text encoders, which SDXL's U-Net reads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from operator import add
from typing import Any

import torch
from torch import Tensor

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions, Tokens
from sd_scripts.families.sdxl import card
from sd_scripts.families.sdxl.card import CHUNK
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.library.text.weighted_prompt import parse_weights

TRAINED_LAYER = 2
"""Counted from the end: the hidden state that SDXL was trained on. clip_skip selects earlier ones, never the last."""
SECOND = 1
"""Index of the encoder whose pooled output is used."""


def tokenize(components: Components, captions: Sequence[Caption], options: TextOptions) -> Tokens:
    """Return ids (B, n, 77) int64 for each encoder, in chunks of 75 tokens; with weighted_captions also weights.

    max_token_length 150 and 225 make n = 2 and 3; longer captions are truncated. Shapes do not depend on the captions.
    """
    chunks = (options.model.max_token_length or CHUNK) // CHUNK
    weighted = options.weighted_captions
    tokens: Tokens = {}
    for place, tokenizer in enumerate(components.tokenizers):
        learned = components.learned.get(place)
        rows = [_weighted_ids(tokenizer, caption.text, weighted, learned) for caption in captions]
        tokens[place] = {"ids": torch.tensor([_chunked_ids(tokenizer, ids, chunks) for ids, _ in rows])}
        if weighted:
            tokens[place]["weights"] = torch.tensor([_chunked_weights(weights, chunks) for _, weights in rows])
    return tokens


def text_limit(components: Components, options: TextOptions) -> TextLimit:
    """Return the length that both encoders read, as `tokenize` counts it."""
    limit = card.limit_of(options.model.max_token_length)
    learned = components.learned.get(0)
    weighted = options.weighted_captions

    def count(captions: Sequence[str]) -> list[int]:
        pieces = [[text for text, _ in parse_weights(each)] if weighted else [each] for each in captions]
        texts = [text for each in pieces for text in each]
        rows = components.tokenizers[0](texts, add_special_tokens=False, verbose=False).input_ids
        more = [ids.count(learned[0]) * (len(learned) - 1) if learned else 0 for ids in rows]
        lengths = map(add, map(len, rows), more)
        return [sum(islice(lengths, len(each))) for each in pieces]

    return replace(limit, count=count, short=0 if learned else limit.tokens)


def encode_text(components: Components, tokens: Tokens) -> dict[str, Tensor]:
    """Return hidden_state1 (B, 75n + 2, 768), hidden_state2 (B, 75n + 2, 1280), pool2 (B, 1280), in their own dtype.

    `tokens` as returned by `tokenize`, or slices of them, of both encoders or one; differentiable.
    """
    states: dict[str, Tensor] = {}
    layer = -max(TRAINED_LAYER, components.extras.get("clip_skip") or 0)
    for place, read in tokens.items():
        encoder: Any = components.text_encoders[place]
        ids = read["ids"].to(_device(encoder))  # (B, n, 77)
        with _read_before(encoder, layer) as before:
            out = encoder(ids.flatten(0, 1))
        hidden = _join(before[0].unflatten(0, ids.shape[:2]))
        if "weights" in read:
            hidden = _weigh(hidden, read["weights"])
        states[f"hidden_state{place + 1}"] = hidden
        if place == SECOND:
            states["pool2"] = out.text_embeds.unflatten(0, ids.shape[:2])[:, 0]  # of the first chunk
    return states


@contextmanager
def _read_before(encoder: Any, state: int) -> Iterator[list[Tensor]]:
    """Yield a list that gets the hidden state at this index from the end, the input of a layer, when the encoder runs.

    output_hidden_states would hook all layers, which causes graph breaks in compiled ones.
    """
    layers = getattr(encoder, "text_model", encoder).encoder.layers
    read = []
    hook = layers[max(len(layers) + 1 + state, 0)].register_forward_pre_hook(lambda _, args: read.append(args[0]))
    try:
        yield read
    finally:
        hook.remove()


def text_cache_key(components: Components, options: TextOptions) -> tuple[object, ...]:
    """Return the settings that change the hidden states."""
    model = options.model
    return model.max_token_length, model.clip_skip, options.weighted_captions


def _weighted_ids(tokenizer: Any, caption: str, weighted: bool, learned: range | None) -> tuple[list[int], list[float]]:
    """Return ids without start and end tokens, and the weight of each. A new token becomes its ids, `learned`."""
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in parse_weights(caption) if weighted else [(caption, 1.0)]:
        piece = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        if learned:
            piece = [each for number in piece for each in (learned if number == learned[0] else [number])]
        ids += piece
        weights += [weight] * len(piece)
    return ids, weights


def _chunked_ids(tokenizer: Any, ids: list[int], chunks: int) -> list[list[int]]:
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    return [[start, *piece, end, *[pad] * (CHUNK - len(piece))] for piece in _pieces(ids, chunks)]


def _chunked_weights(weights: list[float], chunks: int) -> list[list[float]]:
    return [[1.0, *piece, *[1.0] * (CHUNK + 1 - len(piece))] for piece in _pieces(weights, chunks)]


def _pieces(values: list[Any], chunks: int) -> list[list[Any]]:
    return [values[CHUNK * n : CHUNK * (n + 1)] for n in range(chunks)]


def _join(hidden: Tensor) -> Tensor:
    """Join chunks (B, n, 77, D) -> (B, 75n + 2, D): the first start token, all between start and end, the last end."""
    return torch.cat([hidden[:, 0, :1], hidden[:, :, 1:-1].flatten(1, 2), hidden[:, -1, -1:]], dim=1)


def _weigh(hidden: Tensor, weights: Tensor) -> Tensor:
    """Multiply each token's hidden state by its weight, but not start, end and the pooled output."""
    return hidden * _join(weights.to(hidden.device, hidden.dtype).unsqueeze(-1))


def _device(encoder: Any) -> torch.device:
    return next(encoder.parameters()).device
