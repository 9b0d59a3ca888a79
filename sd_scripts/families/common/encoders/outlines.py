"""Text encoders of transformers as outlines: modules with the same names, shapes and classes, that cannot compute.

A model file is checked and a cache's key is found with them, without the model classes of transformers: a LoRA run of
one step from full caches takes 2.8 s with outlines and 5.2 s without (medians of 20 runs each, in turn). Loading a text
encoder makes transformers' own module.
"""

from types import SimpleNamespace
from typing import Any

from torch import nn


class TextEncoderOutline(nn.Module):
    """Names and shapes of a text encoder, made under accelerate's init_empty_weights."""

    def __init__(self, **config: Any):
        super().__init__()
        self.config = SimpleNamespace(**config)

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding, under the name that transformers gives this function."""
        return next(module for module in self.modules() if isinstance(module, nn.Embedding))


class CLIPAttention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            self.add_module(name, nn.Linear(width, width))


class CLIPMLP(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)


class CLIPEncoderLayer(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.self_attn = CLIPAttention(width)
        self.layer_norm1 = nn.LayerNorm(width)
        self.mlp = CLIPMLP(width, inner)
        self.layer_norm2 = nn.LayerNorm(width)


class CLIPTextOutline(TextEncoderOutline):
    """CLIPTextModel's names and shapes. Takes the arguments of CLIPTextConfig."""

    def __init__(self, **config: Any):
        super().__init__(**config)
        width, inner = config["hidden_size"], config["intermediate_size"]
        _require_whole_heads(width, config["num_attention_heads"])
        self.embeddings = nn.Module()
        self.embeddings.token_embedding = nn.Embedding(config["vocab_size"], width)
        self.embeddings.position_embedding = nn.Embedding(config["max_position_embeddings"], width)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(CLIPEncoderLayer(width, inner) for _ in range(config["num_hidden_layers"]))
        self.final_layer_norm = nn.LayerNorm(width)


class CLIPTextProjectionOutline(TextEncoderOutline):
    """CLIPTextModelWithProjection's names and shapes. Takes the arguments of CLIPTextConfig."""

    def __init__(self, **config: Any):
        super().__init__(**config)
        self.text_model = CLIPTextOutline(**config)
        self.text_projection = nn.Linear(config["hidden_size"], config["projection_dim"], bias=False)


def _require_whole_heads(width: int, heads: int) -> None:
    if width % heads:
        raise ValueError(f"a width of {width} cannot be divided by {heads} attention heads")


class T5LayerNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.LayerNorm(width, bias=False).weight


class T5Attention(nn.Module):
    def __init__(self, width: int, inner: int, bias: nn.Embedding | None):
        super().__init__()
        for name in ("q", "k", "v"):
            self.add_module(name, nn.Linear(width, inner, bias=False))
        self.o = nn.Linear(inner, width, bias=False)
        if bias is not None:
            self.relative_attention_bias = bias


class T5LayerSelfAttention(nn.Module):
    def __init__(self, width: int, inner: int, bias: nn.Embedding | None):
        super().__init__()
        self.SelfAttention = T5Attention(width, inner, bias)
        self.layer_norm = T5LayerNorm(width)


class T5DenseGatedActDense(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.wi_0, self.wi_1 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.wo = nn.Linear(inner, width, bias=False)


class T5LayerFF(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.DenseReluDense = T5DenseGatedActDense(width, inner)
        self.layer_norm = T5LayerNorm(width)


class T5Block(nn.Module):
    def __init__(self, attention: T5LayerSelfAttention, dense: T5LayerFF):
        super().__init__()
        self.layer = nn.ModuleList([attention, dense])


class T5EncoderOutline(TextEncoderOutline):
    """T5EncoderModel's names and shapes, as of T5 1.1. Takes the arguments of T5Config."""

    each_layer_has_bias = False
    """Whether every layer has a relative position bias, or the first one's is used by all."""

    def __init__(self, **config: Any):
        super().__init__(**config)
        width, heads = config["d_model"], config["num_heads"]
        inner, buckets = heads * config["d_kv"], config["relative_attention_num_buckets"]
        self.shared = nn.Embedding(config["vocab_size"], width)
        self.encoder = nn.Module()
        self.encoder.embed_tokens = nn.Embedding(config["vocab_size"], width)  # of the same weight, once it is loaded
        self.encoder.block = nn.ModuleList(
            T5Block(
                T5LayerSelfAttention(width, inner, nn.Embedding(buckets, heads) if self._has_bias(number) else None),
                T5LayerFF(width, config["d_ff"]),
            )
            for number in range(config["num_layers"])
        )
        self.encoder.final_layer_norm = T5LayerNorm(width)

    def _has_bias(self, layer: int) -> bool:
        return self.each_layer_has_bias or layer == 0


class UMT5EncoderOutline(T5EncoderOutline):
    """UMT5EncoderModel's names and shapes. Takes the arguments of UMT5Config."""

    each_layer_has_bias = True
