"""Which layer a tensor of a LoRA file belongs to, and which of its tensors it is, whatever program wrote the file.

No torch: training, generating and the tools read files by these names, and the page describes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sd_scripts.formats.words import counted, printable, some

DOWN, UP, MID, ALPHA, NORMS = "lora_down.weight", "lora_up.weight", "lora_mid.weight", "alpha", "dora_scale"
ENDINGS = (
    *(DOWN, UP, MID, ALPHA, NORMS),
    *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
    *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    *("oft_blocks", "rescale"),
)
"""A layer's tensors as sd-scripts and LyCORIS name them, after the name of the layer and a dot."""

DENOISER_LAYER = "lora_unet_"
"""Prefix of the denoiser's layers in sd-scripts' files, before the path in the model's own file with _ for dots."""
WRAPPER = "base_model.model."
"""Prefix of PEFT's own files."""
PEFT = re.compile(r"(?P<layer>.+)\.lora_(?P<part>[AB])(?:\.[^.]+)?\.weight")
"""`transformer.x.lora_A.weight`, or with the name of an adapter: `x.lora_A.default.weight`."""
PEFT_NORMS = re.compile(r"(?P<layer>.+)\.lora_magnitude_vector(?:\.[^.]+)?(?:\.weight)?")
BEFORE_PEFT = re.compile(
    r"(?P<layer>.+?)(?:\.processor\.(?P<projection>to_q|to_k|to_v|to_out)_lora|\.lora_linear_layer|\.lora)"
    r"\.(?P<part>down|up)\.weight"
)
"""diffusers before version 0.22: `unet.mid_block.attentions.0.….attn1.processor.to_q_lora.down.weight`."""
XLABS = re.compile(
    r"(?:diffusion_model\.)?(?P<block>double_blocks\.\d+)\.processor\.(?P<layer>qkv|proj)_lora(?P<stream>[12])"
    r"\.(?P<part>down|up)\.weight"
)
"""XLabs' files; stream 1 is the image, 2 the text."""
XLABS_SINGLE = re.compile(r"single_blocks\.\d+\.processor\.")
"""XLabs adds these to the output of a block, not to one of its layers."""
FACTORS = {"A": DOWN, "B": UP, "down": DOWN, "up": UP}

EMBEDDING = re.compile(r"bundle_emb\.(?P<token>.+?)\.[^.]+(?:\.\*)?")
"""An embedding that OneTrainer and WebUI bundle with a LoRA: `bundle_emb.token.string_to_param.*`."""
OTHER_METHODS = (
    (re.compile(r"\.(?:diff|diff_b|set_weight)$"), "full fine-tuning"),
    (re.compile(r"\.[wb]_norm$"), "training of norms"),
    (re.compile(r"\.(?:lora_B(?:\.[^.]+)?|lora_up|lora_down)\.bias$"), "training of biases"),
    (re.compile(r"\.lora_embedding_[AB]"), "training of token embeddings"),
    (re.compile(r"\.modules_to_save\."), "full fine-tuning"),
    (re.compile(r"\.reshape_weight$"), "training of a layer with a different shape"),
    (re.compile(r"\.a1\."), "GLoRA"),
    (re.compile(r"\.on_input$"), "IA3"),
    (re.compile(r"\.oft_"), "another OFT"),
)
"""Keys of tensors that no adapter kind here has, and the method that trains them."""


MOST_PARTS = 5
"""Parts of a key, between dots, that may follow the name of its layer."""


@dataclass(frozen=True)
class LoraKeys:
    """The keys of a LoRA file by layer."""

    layers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Layer, under the file's name of it -> tensor as ENDINGS have it -> key."""
    others: list[str] = field(default_factory=list)
    """Keys that belong to no known layer."""

    def layer_of(self, key: str) -> str:
        """Return the layer among `layers` to which one of `others` belongs; "" if there is none."""
        name = key.removeprefix(WRAPPER)
        for _ in range(MOST_PARTS):
            name = name.rpartition(".")[0]
            if name in self.layers:
                return name
        return ""


def group_keys(keys: Iterable[str], endings: Collection[str] = ENDINGS) -> LoraKeys:
    """Group the keys of a LoRA file by layer. A layer that has nothing but an alpha is none."""
    found = LoraKeys()
    for key in keys:
        layer, ending = split_key(key, endings)
        own = found.layers.setdefault(layer, {}) if ending else {}
        if not ending or ending in own:
            found.others.append(key)
        else:
            own[ending] = key
    for layer in [layer for layer, own in found.layers.items() if own.keys() == {ALPHA}]:
        found.others.extend(found.layers.pop(layer).values())
    return found


def split_key(key: str, endings: Collection[str] = ENDINGS) -> tuple[str, str]:
    """Return the layer of a tensor and the tensor's name in ENDINGS; ("", "") if it has none.

    `x.lora_A.weight` -> (`x`, `lora_down.weight`), `y.lora_magnitude_vector` -> (`y`, `dora_scale`).
    """
    key = key.removeprefix(WRAPPER)
    if found := XLABS.fullmatch(key):
        attention = "img_attn" if found["stream"] == "1" else "txt_attn"
        return f"{found['block']}.{attention}.{found['layer']}", FACTORS[found["part"]]
    if found := BEFORE_PEFT.fullmatch(key):
        projection = {"to_out": ".to_out.0", None: ""}.get(found["projection"], f".{found['projection']}")
        return f"{found['layer']}{projection}", FACTORS[found["part"]]
    if found := PEFT.fullmatch(key):
        return found["layer"], FACTORS[found["part"]]
    if found := PEFT_NORMS.fullmatch(key):
        return found["layer"], NORMS
    ending = next((ending for ending in endings if key.endswith(f".{ending}")), "")
    return (key.removesuffix(f".{ending}"), ending) if ending else ("", "")


def other_method(key: str) -> str:
    """Return the method that trains a tensor of this key, if it is one that is not read here; else ""."""
    if XLABS_SINGLE.search(key):
        return "a LoRA of XLabs with single blocks"
    return next((method for pattern, method in OTHER_METHODS if pattern.search(key)), "")


def misunderstood(keys: LoraKeys) -> str:
    """Return why a file with these keys would be used in part, to follow its name; "" if it would not."""
    for key in keys.others:
        if method := other_method(key):
            return (
                f"contains {method} ({printable(key)}), which is not supported; merge the file into a model in the "
                "program that made it"
            )
        if layer := keys.layer_of(key):
            return (
                f"has an unsupported tensor, so the layer {printable(layer)} would be used only in part: "
                f"{printable(key)}; convert the file in the program that made it"
            )
    return ""


def without_layers(keys: LoraKeys) -> str:
    """Return why a file with these keys is not a LoRA, to follow the file's name; "" if it has LoRA layers."""
    if keys.layers:
        return ""
    return f"contains no layers of a LoRA, but {f'keys such as {some(keys.others)}' if keys.others else 'no tensors'}"


def embedding_tokens(keys: Iterable[str]) -> list[str]:
    """Return the tokens whose embeddings a LoRA file contains."""
    return sorted({found["token"] for key in keys if (found := EMBEDDING.fullmatch(key))})


def not_in_model(option: str, path: Path | str, layers: Sequence[str]) -> str:
    """Return a sentence for layers of a LoRA file that the model lacks."""
    are = "is" if len(layers) == 1 else "are"
    return f"{option}: {counted(len(layers), 'layer')} of '{path}' {are} not in the model: {some(layers)}"


def left_out(option: str, path: Path | str, keys: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for tensors of a LoRA file that belong to no layer."""
    tokens = embedding_tokens(keys)
    others = [key for key in keys if not embedding_tokens([key])]
    if tokens:
        yield (
            f"{option}: the embeddings in '{path}' are left out, so prompts with these words lack them: {some(tokens)}"
        )
    if others:
        are = "is" if len(others) == 1 else "are"
        yield f"{option}: {counted(len(others), 'tensor')} of '{path}' {are} unknown and left out: {some(others)}"
