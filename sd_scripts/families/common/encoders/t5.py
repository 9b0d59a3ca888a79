"""T5 1.1 and UMT5 as text encoders: sizes from shapes, and loading in half precision and quantized."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from sd_scripts.library.files.state_dicts import Shapes, State, count

BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def t5_config(shapes: Shapes) -> dict[str, Any]:
    """Return the arguments of transformers' T5Config or UMT5Config, from the shapes of an encoder."""
    vocabulary, width = shapes["shared.weight"]
    buckets, heads = shapes[BIAS]
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": shapes["encoder.block.0.layer.0.SelfAttention.q.weight"][0] // heads,
        "d_ff": shapes["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"][0],
        "num_layers": count(shapes, r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wo\.weight"),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
        "use_cache": False,
    }


def t5_encoder(file: State) -> State:
    """Leave out a decoder. Files have the token embeddings under either name or both."""
    words = file.get("shared.weight", file.get("encoder.embed_tokens.weight"))
    encoder = {key: tensor for key, tensor in file.items() if key.startswith("encoder.")}
    return encoder if words is None else encoder | {"shared.weight": words, "encoder.embed_tokens.weight": words}


def finish_t5(t5: Any) -> None:
    """Tie the embeddings, which files may contain once, and give the MLPs our forward."""
    t5.encoder.embed_tokens.weight = t5.shared.weight
    for block in t5.encoder.block:
        dense = block.layer[1].DenseReluDense
        kind: Any = type(dense)
        dense.__class__ = _gated_dense(kind)
        if t5.shared.weight.dtype == torch.float16:
            dense.wo.float()  # its output overflows in fp16


@cache
def _gated_dense(base: type) -> type:
    """Return an MLP of transformers that casts activations by their own dtype, not by the weights' dtype, which may be
    quantized."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        gated = self.act(self.wi_0(hidden_states)) * self.wi_1(hidden_states)
        wide = gated.float() if gated.dtype == torch.float16 else gated
        return self.wo(self.dropout(wide))  # type: ignore[no-any-return]

    return type("GatedDense", (base,), {"forward": forward})
