"""The new token of textual inversion: added to the tokenizers, its embeddings planned and saved.

The method `textual_inversion` trains it alone, `lora` together with a LoRA (pivotal tuning).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from sd_scripts.data.plan.trained_token import trained_token
from sd_scripts.families.common.family import Components, Family
from sd_scripts.library.files.model_reader import read_empty, read_weights
from sd_scripts.library.files.safetensors_io import save_model
from sd_scripts.networks.adapter import LayerPlan
from sd_scripts.networks.embeddings import embedding_tensors, initial_rows, plan_rows, token_embedding
from sd_scripts.networks.network import AdapterNetwork
from sd_scripts.options.networks.embedding import EmbeddingOptions
from sd_scripts.options.optimization.optimizer import OptimizerOptions
from sd_scripts.training.context import Context

TEXTUAL_INVERSION = "/textual-inversion"
"""What modelspec.architecture of an embedding file ends with."""


def add_token(family: Family, components: Components, context: Context) -> None:
    """Add the new token to the tokenizers. Components need not be loaded.

    Raises ValueError if they have it already, or if the file to start from does not fit.
    """
    options = trained_token(context.settings.get(EmbeddingOptions), family.card)
    if not options:
        return
    token = str(options.token_string)
    count = options.num_vectors_per_token
    for place, key in enumerate(family.text.embeddings):
        tokenizer = components.tokenizers[place]
        embedding = token_embedding(components.text_encoders[place])
        if len(_word_ids(components, place, token)) == 1:
            raise ValueError(
                f"token_string: '{token}' is a word that the model knows; choose one that it does not, such as "
                f"{token}01"
            )
        start = _word_ids(components, place, options.init_word or "")
        if options.weights:
            _require_rows(options, key, embedding.embedding_dim)
        elif len(start) not in (0, 1, count):
            context.warn_once(
                "init_word",
                f"init_word: '{options.init_word}' has {len(start)} tokens for {count} vectors, so its embeddings are "
                f"{'repeated' if len(start) < count else 'cut'}; set num_vectors_per_token = {len(start)} to use all",
            )
        tokenizer.add_tokens([token])
        first = embedding.num_embeddings
        assert tokenizer.convert_tokens_to_ids(token) == first, "the tokenizer and the embedding have different sizes"
        components.learned[place] = range(first, first + count)


def plan_embeddings(family: Family, components: Components, context: Context) -> list[LayerPlan]:
    """Return the plans of the embeddings of the new token; none if the run trains none."""
    settings = context.settings
    options = trained_token(settings.get(EmbeddingOptions), family.card)
    if not options:
        return []
    base = settings[OptimizerOptions].learning_rate
    lr = base if options.embedding_lr is None else options.embedding_lr
    return [
        plan_rows(components.text_encoders[place], key, _initial(components, context, options, place, key), lr)
        for place, key in enumerate(family.text.embeddings)
    ]


def find_end_by_id(components: Components) -> None:
    """Let the text encoders find the end of a caption by the end token's id.

    Configurations from before transformers 4.31 let them take the highest id instead, which is a new token's.
    """
    for place in components.learned:
        for module in components.text_encoders[place].modules():
            if hasattr(module, "eos_token_id"):
                module.eos_token_id = components.tokenizers[place].eos_token_id


def save_embeddings(network: AdapterNetwork, path: Path, dtype: torch.dtype | None, metadata: dict[str, str]) -> None:
    """Write a file that ComfyUI, WebUI and diffusers load."""
    save_model(path, embedding_tensors(network, dtype), metadata)


def _initial(components: Components, context: Context, options: EmbeddingOptions, place: int, key: str) -> Tensor:
    """Return the initial embeddings (n, D) float32 for a text encoder."""
    count = options.num_vectors_per_token
    weight = token_embedding(components.text_encoders[place]).weight
    if options.weights:
        return read_weights(Path(options.weights), "weights")[key].reshape(count, weight.shape[1]).float()
    ids = _word_ids(components, place, options.init_word or "")
    generator = torch.Generator().manual_seed(context.number("embedding", key))
    return initial_rows(weight.detach(), ids, count, generator)


def _word_ids(components: Components, place: int, text: str) -> list[int]:
    return components.tokenizers[place](text, add_special_tokens=False, verbose=False).input_ids  # type: ignore[no-any-return]


def _require_rows(options: EmbeddingOptions, key: str, width: int) -> None:
    file = options.weights or ""
    count = options.num_vectors_per_token
    tensor = read_empty(Path(file), "weights").get(key)
    if tensor is None:
        raise ValueError(f"weights: '{file}' has no tensor {key}; choose an embedding for this model")
    rows = tensor.numel() // tensor.shape[-1] if tensor.ndim and tensor.shape[-1] else 0
    if tensor.ndim == 0 or tensor.shape[-1] != width:
        raise ValueError(f"weights: '{file}' is an embedding for a different model; choose one for this model")
    if rows != count:
        raise ValueError(f"weights: '{file}' has {rows} vectors; set num_vectors_per_token = {rows}")
