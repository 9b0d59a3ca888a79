"""LoRA files and headers of PEFT and diffusers are read as written: alpha, rsLoRA, patterns, DoRA."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sd_scripts.formats.models.lora_header import summarize, why_unreadable
from sd_scripts.formats.models.peft_header import ENTRY, PeftHeader
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.networks.files.lora_files import LoraFile, read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.tools import convert_lora, resize_lora

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"to_q": nn.Linear(8, 12), "to_out": nn.Linear(12, 8, bias=False)}) for _ in range(2)
        )
        self.conv = nn.Conv2d(3, 6, 3)


PATHS = ("blocks.0.to_q", "blocks.0.to_out", "blocks.1.to_q", "blocks.1.to_out", "conv")
PLAIN = {"r": 4, "lora_alpha": 10, "target_modules": ["to_q", "to_out", "conv"], "init_lora_weights": False}
PATTERNS = {
    "alpha_pattern": {"blocks.1.to_q": 3, r"blocks\.\d\.to_out": 5, "conv": 7},
    "rank_pattern": {"to_q": 2},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "alpha": {},
    "rsLoRA": {"use_rslora": True},
    "patterns": PATTERNS,
    "patterns with rsLoRA": {**PATTERNS, "use_rslora": True},
    "DoRA": {"use_dora": True, "alpha_pattern": {"to_out": 2}},
}


def written(folder: Path, program: str, config: dict[str, Any]) -> tuple[Path, Tiny, dict[str, Tensor]]:
    """Return a LoRA that PEFT made and a program wrote, its base model, and the weights that PEFT merges."""
    torch.manual_seed(0)
    base, model = Tiny(), Tiny()
    model.load_state_dict(base.state_dict())
    adapted = get_peft_model(model, LoraConfig(**{**PLAIN, **config}))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.mul_(1 + torch.rand(parameter.shape))
    if program == "PEFT":
        adapted.save_pretrained(str(folder))
        path = folder / "adapter_model.safetensors"
    else:
        state = {key.removeprefix("base_model.model."): t for key, t in get_peft_model_state_dict(adapted).items()}
        known = adapted.peft_config["default"].to_dict()
        FluxPipeline.save_lora_weights(folder, transformer_lora_layers=state, transformer_lora_adapter_metadata=known)
        path = folder / "pytorch_lora_weights.safetensors"
    merged = dict(adapted.merge_and_unload().named_parameters())  # type: ignore[operator]
    return path, base, {path: merged[f"{path}.weight"].detach() for path in PATHS}


def read(path: Path, model: nn.Module) -> LoraFile:
    target = LoraTarget(classes=("Tiny",), name=lambda path: f"lora_unet_{path.replace('.', '_')}")
    return read_lora("models", path, [AdaptedModule(module=model, target=target, lr=0.0)])


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("program", ["diffusers", "PEFT"])
def test_the_weights_match_pefts_merge(program: str, config: str, tmp_path: Path) -> None:
    path, base, expected = written(tmp_path, program, CONFIGS[config])
    file = read(path, base)
    assert not file.unknown
    assert not file.ignored
    for name in PATHS:
        weight = base.get_parameter(f"{name}.weight").detach()
        change = file.change(f"lora_unet_{name.replace('.', '_')}", weight, 1.0)
        assert change is not None
        torch.testing.assert_close(weight + change, expected[name], rtol=1e-4, atol=1e-5)


def test_alpha_is_found_wherever_programs_state_it() -> None:
    """Of a layer of rank 4: in JSON, in entries of their own with or without a component, as texts."""
    layer = "transformer.single_transformer_blocks.3.proj_mlp"

    def alpha(metadata: dict[str, Any], name: str = layer) -> float | None:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
        return PeftHeader(texts, [name]).alpha(name, 4)

    assert alpha({}) is None
    assert alpha({"ss_network_alpha": "7", "modelspec.title": "alpha"}) is None
    assert alpha({ENTRY: {"transformer.r": 4, "transformer.lora_alpha": "64"}}) == 64
    assert alpha({ENTRY: {"transformer.r": 4}}) == 8, "PEFT's default"
    assert alpha({ENTRY: {"unet.lora_alpha": 2, "transformer.lora_alpha": 9}}) == 9
    assert alpha({ENTRY: {"text_encoder.lora_alpha": 2, "transformer.lora_alpha": 9}}, "text_encoder_2.x") is None
    assert alpha({ENTRY: {"transformer.lora_alpha": 9}}, "diffusion_model.x") == 9, "of another program's names"
    assert alpha({"transformer.lora_alpha": "12", "transformer.use_rslora": "True"}) == 24
    assert alpha({"lora_alpha": "3.5"}) == 3.5
    assert alpha({"network_alpha": "6", "alpha_pattern": {"proj_mlp": 2}}) == 2
    assert alpha({"lora_alpha": "3", ENTRY: {"transformer.lora_alpha": 5}}) == 5


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({ENTRY: "[1, 2]"}, "not a JSON object"),
        ({ENTRY: "{" * 100_000}, "not a JSON object"),
        ({ENTRY: '{"lora_alpha": Infinity}'}, "must be a number other than 0"),
        ({"lora_alpha": "Dynamic"}, "must be a number other than 0"),
        ({ENTRY: '{"lora_alpha": true}'}, "must be a number other than 0"),
        ({ENTRY: '{"lora_alpha": 1, "alpha_pattern": {"a(": 2}}'}, "not a usable pattern"),
        ({ENTRY: '{"lora_alpha": 1, "alpha_pattern": {"(a+)+$": 2}}'}, "not a usable pattern"),
        ({ENTRY: '{"lora_alpha": 1, "alpha_pattern": [3]}'}, "not a table"),
        ({ENTRY: '{"peft_type": "LOKR", "alpha": 4}'}, "is LOKR of PEFT"),
        ({ENTRY: '{"lora_alpha": 4, "init_lora_weights": "pissa_niter_4"}'}, "starts from the base weights"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(metadata: dict[str, str], problem: str, tmp_path: Path) -> None:
    pair = {f"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!.lora_{part}.weight": torch.ones(4, 4) for part in "AB"}
    save_file(pair, tmp_path / "x.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"^models: '.*x.safetensors' .*{problem}"):
        read_lora("models", tmp_path / "x.safetensors")
    alphas = {key.replace("lora_A.weight", "alpha"): torch.tensor(2.0) for key in pair if "lora_A" in key}
    if "alpha" in problem or "number" in problem or "pattern" in problem:
        save_file(pair | alphas, tmp_path / "x.safetensors", metadata)
        assert read_lora("models", tmp_path / "x.safetensors").tensors.keys() >= alphas.keys(), "the tensor counts"


def test_a_resized_file_contains_the_alpha_of_the_header(tmp_path: Path) -> None:
    path, base, expected = written(tmp_path, "diffusers", {**PATTERNS, "use_rslora": True})
    out = tmp_path / "out.safetensors"
    flags = ["--model", str(path), "--new_rank", str(4), "--save_to", str(out)]
    assert resize_lora.COMMAND.main("resize", flags) == 0
    assert load_file(out).keys() == load_file(path).keys()
    assert ENTRY not in read_header(out).metadata
    file = read(out, base)
    for name in PATHS:
        weight = base.get_parameter(f"{name}.weight").detach()
        change = file.change(f"lora_unet_{name.replace('.', '_')}", weight, 1.0)
        assert change is not None
        torch.testing.assert_close(weight + change, expected[name], rtol=1e-4, atol=1e-5)


def test_a_converted_file_contains_the_alpha_of_the_header_once(tmp_path: Path) -> None:
    name, start = "transformer.single_transformer_blocks.0.proj_out", tmp_path / "a.safetensors"
    pair = {f"{name}.lora_A.weight": torch.randn(2, 24), f"{name}.lora_B.weight": torch.randn(8, 2)}
    save_file(pair, start, {ENTRY: json.dumps({"transformer.r": 2, "transformer.lora_alpha": 6})})
    end = tmp_path / "b.safetensors"
    weight, expected = torch.zeros(8, 24), 3 * pair[f"{name}.lora_B.weight"] @ pair[f"{name}.lora_A.weight"]
    for program in ("diffusers", "sd-scripts", "comfyui"):
        flags = ["--src_path", str(start), "--dst", program, "--dst_path", str(end)]
        assert convert_lora.COMMAND.main("convert", flags) == 0
        assert ENTRY not in read_header(end).metadata
        file = read_lora("models", end)
        (layer,) = file.layers
        change = file.change(layer, weight, 1.0)
        assert change is not None
        torch.testing.assert_close(change, expected)


def test_the_page_shows_the_alpha_of_the_header(tmp_path: Path) -> None:
    path, _, _ = written(tmp_path, "diffusers", {})
    summary = summarize(read_header(path))
    assert summary is not None
    assert summary.text() == "rank 4, alpha 10, 5 layers, fp32"
    path, _, _ = written(tmp_path, "diffusers", CONFIGS["DoRA"])
    summary = summarize(read_header(path))
    assert summary is not None
    assert (summary.kind, summary.alpha) == ("DoRA", "2 to 10")


def test_the_page_counts_tensors_that_are_not_read(tmp_path: Path) -> None:
    pairs = {f"lora_unet_{name}.lora_{part}.weight": torch.ones(2, 2) for name in "ab" for part in ("down", "up")}
    del pairs["lora_unet_b.lora_up.weight"]
    others = {"lora_unet_a.diff_b": torch.ones(2), "bundle_emb.token.clip_l": torch.ones(2, 2)}
    save_file(pairs | others, tmp_path / "x.safetensors")
    summary = summarize(read_header(tmp_path / "x.safetensors"))
    assert summary is not None
    assert summary.text() == "rank 2, 2 layers, fp32, 3 tensors not read here"


PAIR = {"lora_unet_x.lora_down.weight": (2, 4), "lora_unet_x.lora_up.weight": (4, 2)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "problem"),
    [
        (PAIR, {}, ""),
        ({**PAIR, "lora_unet_x.alpha": ()}, {ENTRY: '{"alpha_pattern": 3}'}, ""),  # the tensor counts
        ({}, {}, "contains no layers of a LoRA, but no tensors"),
        ({"lora_unet_x.alpha": ()}, {}, "contains no layers of a LoRA, but keys such as lora_unet_x.alpha"),
        ({**PAIR, "lora_unet_x.alpha": (2,)}, {}, "has no single number in lora_unet_x.alpha"),
        ({"lora_unet_y.lora_up.weight": (4, 2), **PAIR}, {}, "is incomplete: of the layer lora_unet_y it has lora_un"),
        ({**PAIR, "lora_unet_x.lora_up.weight": (4, 0)}, {}, "has no matrix, but the shape"),
        (PAIR, {ENTRY: '{"r": 2, "lora_alpha": "many"}'}, "has an alpha of 'many' in its header"),
        (PAIR, {ENTRY: '{"r": 2, "lora_alpha": 2, "alpha_pattern": {"a(": 1}}'}, "has 'a(' in alpha_pattern, which"),
        ({"lora_unet_x.lora_down.weight": torch.complex64}, {}, "has numbers of the unsupported type C64"),
        ({"lora_unet_x.lora_down.weight": torch.uint8}, {}, "has whole numbers without the scales"),
    ],
)
def test_problems_visible_in_a_header_are_reported_from_the_header_alone(
    tensors: dict[str, Any], metadata: dict[str, str], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "lora.safetensors"
    made = {
        key: torch.ones(what) if isinstance(what, tuple) else torch.ones(2, 2, dtype=what)
        for key, what in tensors.items()
    }
    save_file(made, path, metadata or None)
    assert why_unreadable(read_header(path)).startswith(problem)
    assert bool(why_unreadable(read_header(path))) == bool(problem)
    if problem:
        with pytest.raises(ValueError, match=r"^base_weights: '.*lora.safetensors' "):
            read_lora("base_weights", path, [])
    else:
        read_lora("base_weights", path, [])
