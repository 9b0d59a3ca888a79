"""The modules: a transformer over clips, a VAE of factor 4, a text encoder over bytes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, CHANNELS, FACTOR, FRAME_STEP, TOKENS = 32, 6, 4, 2, 16


class ReelBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        read = torch.cat([self.norm(x), text], dim=1)
        x = x + self.out(F.scaled_dot_product_attention(self.q(self.norm(x)), self.k(read), self.v(read)))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ReelTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.time, self.outof = nn.Linear(CHANNELS, WIDTH), nn.Linear(1, WIDTH), nn.Linear(WIDTH, CHANNELS)
        self.blocks = nn.ModuleList(ReelBlock() for _ in range(2))
        self.checkpointing = False

    def forward(self, latents: Tensor, t: Tensor, text: Tensor) -> Tensor:
        """(B, C, F, h, w), (B,), (B, T, WIDTH) -> velocity (B, C, F, h, w)."""
        dtype = self.into.weight.dtype
        x = self.into(latents.to(dtype).flatten(2).transpose(1, 2)) + self.time(t[:, None, None].to(dtype))
        for block in self.blocks:
            x = checkpoint(block, x, text, use_reentrant=False) if self.checkpointing else block(x, text)
        return self.outof(x).transpose(1, 2).unflatten(2, latents.shape[2:])


class ReelVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, CHANNELS, FACTOR, FACTOR)
        self.decoder = nn.ConvTranspose2d(CHANNELS, 3, FACTOR, FACTOR)


class ReelTextLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(x))


class ReelText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(ReelTextLayer() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return x
