"""A third party's network module: a bias for each attention layer, trained by patching forwards. For tests.

As such networks do it counts the text encoders that it is given, and adapts all that it knows in them.
"""

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class Shift(nn.Module):
    def __init__(self, name: str, layer: nn.Linear):
        super().__init__()
        self.name, self.layer = name, [layer]
        self.shift = nn.Parameter(torch.zeros(layer.out_features))

    def apply_to(self) -> None:
        self.before = self.layer[0].forward
        self.layer[0].forward = self.forward  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.before(x) + self.shift


class Network(nn.Module):
    def __init__(self, text_encoders: list[nn.Module], unet: nn.Module, kwargs: dict[str, str]):
        super().__init__()
        self.kwargs = kwargs
        kinds = (("CLIPAttention", "q_proj"), ("T5Attention", "q"))
        self.of_text = [
            s for i, te in enumerate(text_encoders, 1) for kind in kinds for s in shifts(f"lora_te{i}", te, *kind)
        ]
        self.of_unet = shifts("lora_unet", unet, "CrossAttention", "to_q")

    def apply_to(self, text_encoders: object, unet: object, apply_text_encoder: bool, apply_unet: bool) -> None:
        self.of_text, self.of_unet = self.of_text * apply_text_encoder, self.of_unet * apply_unet
        for shift in (*self.of_text, *self.of_unet):
            shift.apply_to()
            self.add_module(shift.name, shift)

    def prepare_optimizer_params(self, text_encoder_lr: float, unet_lr: float | None, default_lr: float):  # type: ignore[no-untyped-def]
        parts = ((self.of_text, text_encoder_lr, "textencoder"), (self.of_unet, unet_lr or default_lr, "unet"))
        groups = [({"params": [s.shift for s in some], "lr": lr}, name) for some, lr, name in parts if some and lr]
        return [group for group, _ in groups], [name for _, name in groups]

    def prepare_grad_etc(self, text_encoders: object, unet: object) -> None:
        self.requires_grad_(True)

    def load_weights(self, file: str) -> None:
        self.load_state_dict(load_file(file), strict=False)

    def save_weights(self, file: str, dtype: torch.dtype | None, metadata: dict[str, str] | None) -> None:
        save_file({key: value.to("cpu", dtype) for key, value in self.state_dict().items()}, file, metadata)


def shifts(prefix: str, module: nn.Module, kind: str, leaf: str) -> list[Shift]:
    """Layers are chosen by the class of the module that they lie in, as such networks do."""
    inside = [(path, part) for path, part in module.named_modules() if type(part).__name__ == kind]
    return [Shift(f"{prefix}_{path}_{leaf}".replace(".", "_"), getattr(part, leaf)) for path, part in inside]


def create_network(multiplier, dim, alpha, vae, text_encoder, unet, neuron_dropout=None, **kwargs):  # type: ignore[no-untyped-def]
    return Network(text_encoder, unet, {"dim": dim, "neuron_dropout": neuron_dropout, **kwargs})


def create_network_from_weights(multiplier, file, vae, text_encoder, unet, **kwargs):  # type: ignore[no-untyped-def]
    network = Network(text_encoder, unet, kwargs)
    keys = {key.partition(".")[0] for key in load_file(file)}
    network.of_unet = [shift for shift in network.of_unet if shift.name in keys]
    network.of_text = [shift for shift in network.of_text if shift.name in keys]
    return network, load_file(file)
