"""The denoiser of SDXL: diffusers' UNet2DConditionModel, with our attention and the blocks that compile shares."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from sd_scripts.families.sdxl.card.layer_rules import block_of as block_of_layer
from sd_scripts.families.sdxl.keys import lora_unet_name
from sd_scripts.library.diffusion.attention import attention
from sd_scripts.library.diffusion.checkpointing import checkpoint_function
from sd_scripts.library.files.lean_diffusers import (
    GEGLU,
    Attention,
    BasicTransformerBlock,
    ResnetBlock2D,
    UNet2DConditionModel,
)
from sd_scripts.networks.layers import project_geglu, project_together
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.options.training import TrainingOptions


class SharedProjections:
    """Attention processor: q, k and v that read the same input share their low-rank down projection."""

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """(B, S, C), context (B, T, C') or None for self-attention -> (B, S, C)."""
        if encoder_hidden_states is None:
            q, k, v = project_together((attn.to_q, attn.to_k, attn.to_v), hidden_states)
        else:
            q = attn.to_q(hidden_states)
            k, v = project_together((attn.to_k, attn.to_v), encoder_hidden_states)
        q, k, v = (x.unflatten(-1, (attn.heads, -1)) for x in (q, k, v))
        return attn.to_out[0](attention(q, k, v, attention_mask))


class AdaptedGeglu(GEGLU):
    """GEGLU whose adapter may compute with it."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # type: ignore[override]
        """(B, S, C) -> (B, S, F)"""
        return project_geglu(self.proj, hidden_states)


class PlainUnet(UNet2DConditionModel):
    """The U-Net without the scaling of peft's LoRA around its forward, which imports peft and half of the compiler."""

    forward = getattr(UNet2DConditionModel.forward, "__wrapped__", UNet2DConditionModel.forward)


class Float32GroupNorm(nn.GroupNorm):
    """A group norm whose result is float32, for RoundedSiLU."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, h, w) -> the same in float32."""
        weight, bias = self.weight.float(), self.bias.float()
        return functional.group_norm(input.float(), self.num_groups, weight, bias, self.eps)


class RoundedSiLU(nn.SiLU):
    """A SiLU that returns the dtype of the model, from the float32 of a norm too."""

    def __init__(self, norm: nn.GroupNorm):
        super().__init__()
        self._norm = (norm,)  # in a tuple, so that it is not part of this module

    def forward(self, input: Tensor) -> Tensor:
        return functional.silu(input).to(self._norm[0].weight.dtype)


PlainUnet.__name__ = UNet2DConditionModel.__name__  # which is in config.json


def prepare_unet(unet: Any) -> Any:
    """Give a U-Net our attention and GEGLU, and equal blocks equal attributes, so that they share graphs."""
    unet.set_attn_processor(SharedProjections())
    if type(unet) is UNet2DConditionModel:
        unet.__class__ = PlainUnet
    for module in unet.modules():
        if type(module) is GEGLU:
            module.__class__ = AdaptedGeglu
        if isinstance(module, ResnetBlock2D):
            module.output_scale_factor = float(module.output_scale_factor)  # the middle block's is the integer 1
    return unet


def prepare_exact_unet(unet: Any) -> Any:
    """Prepare a U-Net that computes the group norms a SiLU follows in float32, and rounds after the SiLU, as autocast
    does."""
    for block in prepare_unet(unet).modules():
        if isinstance(block, ResnetBlock2D):
            block.norm1.__class__ = block.norm2.__class__ = Float32GroupNorm
            block.nonlinearity = RoundedSiLU(block.norm1)
    unet.conv_norm_out.__class__ = Float32GroupNorm
    unet.conv_act = RoundedSiLU(unet.conv_norm_out)
    return unet


def predict(
    unet: nn.Module, noisy: Tensor, timesteps: Tensor, context: Tensor, pooled: Tensor, sizes: Tensor
) -> Tensor:
    """Predict the noise or the velocity, as the model was trained.

    noisy (B, 4, h, w), timesteps (B,), context (B, T, 2048), pooled (B, 1280), sizes (B, 6) -> (B, 4, h, w) float32.
    """
    added = {"text_embeds": pooled, "time_ids": sizes}
    return unet(noisy, timesteps, context, added_cond_kwargs=added, return_dict=False)[0].float()


def checkpoint_gradients(unet: nn.Module, training: TrainingOptions, network: NetworkOptions | None) -> None:
    unet.enable_gradient_checkpointing(checkpoint_function(network))  # type: ignore[operator]


def block_of(name: str) -> int:
    """Return the block of a parameter of the U-Net, 0 to 22, as block_lr counts them."""
    block = block_of_layer(lora_unet_name(name.rpartition(".")[0]))
    assert block is not None, name
    return block


def compile_targets(unet: nn.Module) -> list[list[nn.Module]]:
    """Return the repeated blocks inside down_blocks, mid_block and up_blocks, one list for each of the three."""
    outer = (unet.get_submodule(name) for name in ("down_blocks", "mid_block", "up_blocks"))
    return [[m for m in part.modules() if isinstance(m, BasicTransformerBlock | ResnetBlock2D)] for part in outer]


def graph_kinds(unet: nn.Module) -> dict[str, int]:
    """Return how many graphs each class of block needs at one image size: one for each shape of its weights."""
    shapes: dict[str, set[Any]] = {}
    for block in (b for part in compile_targets(unet) for b in part):
        weights = tuple(tuple(p.shape) for p in block.parameters())
        shapes.setdefault(type(block).__name__, set()).add(weights)
    return {name: len(kinds) for name, kinds in shapes.items()}
