"""The pooled output of CLIP's text encoder, which sums up a caption."""

from torch import Tensor, arange, nn


def clip_pooled(encoder: nn.Module, ids: Tensor, end: int) -> Tensor:
    """Return the last hidden state (B, W), normalised, at the first end token of ids (B, 77); differentiable. `end` is
    the token's id, which only the tokenizer has."""
    ids = ids.to(next(encoder.parameters()).device)
    hidden: Tensor = encoder(ids).last_hidden_state  # (B, 77, W)
    ends = (ids == end).int().argmax(dim=1)
    return hidden[arange(len(ids), device=ids.device), ends]
