"""Anima's components: how each is created from its files and stored in memory, and which do not fit together."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sd_scripts.families.anima.adapter import PREFIX, AdapterParams, LLMAdapter
from sd_scripts.families.anima.card import ADAPTER
from sd_scripts.families.anima.keys import original_layout
from sd_scripts.families.anima.model import AnimaParams, AnimaTransformer, Modulation
from sd_scripts.families.anima.text import T5_TOKENIZER
from sd_scripts.families.common.components import DENOISER, VAE, Components, Keep, WeightSource
from sd_scripts.families.common.encoders.causal_vae import vae_config, vae_from_single_file
from sd_scripts.families.common.encoders.qwen3 import LANGUAGE_LINEAR, QWEN3, config_of, language_layers, qwen3
from sd_scripts.families.common.layouts import Layout
from sd_scripts.families.common.loading import empty_weights
from sd_scripts.families.common.placing import BlockLists
from sd_scripts.families.common.problems import Expected, params_of
from sd_scripts.library.files.lean_diffusers import AutoencoderKLQwenImage
from sd_scripts.library.files.state_dicts import State
from sd_scripts.library.text.tokenizers import T5, Tokenizers, find_tokenizer
from sd_scripts.options.model import MODEL, ModelOptions

TEXT_ENCODER = "text_encoder1"
BLOCK_LISTS = BlockLists(names={"blocks": ""}, few_tokens=Modulation)
LINEAR = re.compile(r"(transformer_)?blocks\.\d+\..*\.weight")
"""Names, and keys in files, of weights that can be quantized."""

LAYOUTS = {
    DENOISER: Layout(
        make=lambda shapes: AnimaTransformer(AnimaParams.of(shapes)), unify=original_layout, quantizable=LINEAR
    ),
    ADAPTER: Layout(make=lambda shapes: LLMAdapter(AdapterParams.of(shapes))),
    TEXT_ENCODER: Layout(
        make=lambda shapes: qwen3(normed=True, **config_of(shapes)),
        unify=language_layers,
        tokenizer=QWEN3,
        quantizable=LANGUAGE_LINEAR,
    ),
    VAE: Layout(make=lambda shapes: AutoencoderKLQwenImage(**vae_config(shapes)), unify=vae_from_single_file),
}


def prepare(components: Components, model: ModelOptions) -> None:
    if ADAPTER in components.sources:
        _join_adapter(components)
    transformer: Any = components.sources[DENOISER].empty
    words = transformer.llm_adapter.params.words
    folder = model.tokenizer_cache_dir
    source = Path(components.source)
    components.extras = {T5_TOKENIZER: Tokenizers(lambda: [find_tokenizer(T5, T5_TOKENIZER, source, folder, words)])}


def _join_adapter(components: Components) -> None:
    """Let the transformer be loaded with the adapter that has a file of its own."""
    adapter, transformer = components.sources.pop(ADAPTER), components.sources[DENOISER]
    del components.others[ADAPTER]
    params: Any = replace(transformer.empty.params, adapter=adapter.empty.params)  # type: ignore[type-var]

    def read(dtype: torch.dtype, keep: Keep | None) -> State:
        state = transformer.read(dtype, keep)
        own = {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX)}
        return own | {f"{PREFIX}{name}": tensor for name, tensor in adapter.read(dtype, None).items()}

    def make() -> AnimaTransformer:
        with empty_weights():
            return AnimaTransformer(params)

    components.sources[DENOISER] = replace(transformer, empty=make(), make=make, read=read)
    components.denoiser = components.sources[DENOISER].empty


def expected(sources: Mapping[str, WeightSource]) -> Expected:
    params: AnimaParams = params_of(sources)
    adapter: AdapterParams | None = sources[ADAPTER].empty.params if ADAPTER in sources else params.adapter  # type: ignore[assignment]
    if adapter is None:
        raise ValueError(
            f"{MODEL}: '{sources[DENOISER].path}' contains no LLM adapter, as Cosmos-Predict2 does not; choose Anima's "
            "file, or set llm_adapter_path"
        )
    return {TEXT_ENCODER: ("hidden_size", adapter.states_width), VAE: ("z_dim", params.channels)}
