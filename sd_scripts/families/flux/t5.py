"""The part of T5 that FLUX.1 computes in another way than transformers."""

import torch
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense


class GatedDense(T5DenseGatedActDense):
    """T5's MLP, which casts activations by their own dtype, not by that of the weights, which may be quantized."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        gated = self.act(self.wi_0(hidden_states)) * self.wi_1(hidden_states)
        wide = gated.float() if gated.dtype == torch.float16 else gated
        return self.wo(self.dropout(wide))
