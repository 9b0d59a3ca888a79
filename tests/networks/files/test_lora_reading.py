"""The reader of LoRA files: a file's contents are used, refused or named, whatever program wrote it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sd_scripts.families.common.family import family_of
from sd_scripts.families.flux.lora import TRANSFORMER
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.formats.models.lora_keys import ENDINGS, split_key
from sd_scripts.generating.generator import Generator
from sd_scripts.networks.adapter import known_endings
from sd_scripts.networks.files.lora_files import LoraFile, read_lora
from sd_scripts.networks.plan import AdaptedModule
from sd_scripts.networks.targets import LoraTarget
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.settings.checks import model_files as model_checks
from sd_scripts.settings.generate_settings import AdapterFile, settings_of
from sd_scripts.settings.settings import Script, reading
from sd_scripts.tools import check_lora_weights, convert_lora, merge_lora, resize_lora, svd_merge_lora
from tests.support.families.flux import SHAPE, flux_settings
from tests.support.networks.lora_tools import write_lora
from tests.support.training import train

Tensors = dict[str, Tensor]
LAYER = "lora_unet_single_blocks_0_linear2"
OUT, IN, RANK = 12, 8, 4


def modules_of(model: nn.Module, target: LoraTarget) -> list[AdaptedModule]:
    return [AdaptedModule(module=model, target=target, lr=0.0)]


def pair(name: str = LAYER, out: int = OUT, into: int = IN, a: str = "lora_down", b: str = "lora_up") -> Tensors:
    return {f"{name}.{a}.weight": torch.randn(RANK, into), f"{name}.{b}.weight": torch.randn(out, RANK)}


def of_lokr() -> Tensors:
    return {f"{LAYER}.lokr_w1": torch.randn(2, 2), f"{LAYER}.lokr_w2": torch.randn(OUT // 2, IN // 2)}


def of_loha() -> Tensors:
    shapes = {"hada_w1_a": (OUT, 2), "hada_w1_b": (2, IN), "hada_w2_a": (OUT, 2), "hada_w2_b": (2, IN)}
    return {f"{LAYER}.{ending}": torch.randn(shape) for ending, shape in shapes.items()}


def read(folder: Path, tensors: Tensors, header: dict[str, str] | None = None, **how: Any) -> LoraFile:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "x.safetensors", header)
    return read_lora("models", folder / "x.safetensors", **how)


def told(folder: RunFolder, kind: str) -> list[str]:
    return [event["text"] for event in folder.events() if event["kind"] == kind]


def with_value(tensors: Tensors, ending: str, value: float, dtype: torch.dtype = torch.float32) -> Tensors:
    key = f"{LAYER}.{ending}"
    tensors[key] = tensors[key].to(dtype)
    tensors[key].view(-1)[-1] = value
    return tensors


def with_tensor(tensors: Tensors, ending: str, tensor: Tensor) -> Tensors:
    return {**tensors, f"{LAYER}.{ending}": tensor}


DOWN, UP = "lora_down.weight", "lora_up.weight"
DAMAGED: dict[str, tuple[Callable[[], Tensors], str]] = {
    "minus infinity in fp16": (lambda: with_value(pair(), DOWN, -torch.inf, torch.float16), "NaN or infinity"),
    "NaN in bf16": (lambda: with_value(pair(), UP, torch.nan, torch.bfloat16), "NaN or infinity"),
    "NaN in LoKr": (lambda: with_value(of_lokr(), "lokr_w2", torch.nan), "NaN or infinity"),
    "infinity in DoRA": (
        lambda: with_tensor(pair(), "dora_scale", torch.full((OUT, 1), torch.inf)),
        "NaN or infinity",
    ),
    "NaN in alpha": (lambda: with_tensor(pair(), "alpha", torch.tensor(torch.nan)), "NaN or infinity"),
    "an infinite product": (
        lambda: {f"{LAYER}.{DOWN}": torch.full((2, IN), 1e30), f"{LAYER}.{UP}": torch.full((OUT, 2), -1e20)},
        "product is infinite",
    ),
    "no down": (lambda: {f"{LAYER}.{UP}": torch.ones(OUT, 2)}, "is incomplete"),
    "half a LoHa": (lambda: dict(list(of_loha().items())[:3]), "not its hada_w2_b"),
    "PEFT without B": (lambda: {"transformer.a.b.lora_A.weight": torch.ones(2, IN)}, "transformer.a.b"),
    "DoRA alone": (lambda: {f"{LAYER}.dora_scale": torch.ones(OUT, 1)}, "is incomplete"),
    "ranks that differ": (lambda: with_tensor(pair(), UP, torch.ones(OUT, RANK + 1)), "do not fit together"),
    "LoHa that does not fit": (lambda: with_tensor(of_loha(), "hada_w2_b", torch.ones(3, IN)), "do not fit together"),
    "LoKr of one dimension": (lambda: with_tensor(of_lokr(), "lokr_w1", torch.ones(4)), "do not fit together"),
    "a LoKr that is whole and in parts": (
        lambda: with_tensor(of_lokr(), "lokr_w2_a", torch.ones(6, 2)),
        "lokr_w2_a besides lokr_w1 and lokr_w2",
    ),
    "half a Tucker form": (lambda: with_tensor(of_loha(), "hada_t1", torch.ones(2, 2, 1, 1)), "do not fit together"),
    "rotations that are not square": (lambda: {f"{LAYER}.oft_blocks": torch.ones(3, 4, 5)}, "not square"),
    "norms of another layer": (lambda: with_tensor(pair(), "dora_scale", torch.ones(OUT + 1, 1)), "dora_scale of (13"),
    "a single number": (lambda: with_tensor(pair(), UP, torch.tensor(1.0)), "no matrix"),
    "rank 0": (lambda: {f"{LAYER}.{DOWN}": torch.ones(0, IN), f"{LAYER}.{UP}": torch.ones(OUT, 0)}, "no matrix"),
    "several alphas": (lambda: with_tensor(pair(), "alpha", torch.ones(2)), "no single number"),
    "no alpha in alpha": (lambda: with_tensor(pair(), "alpha", torch.ones(0)), "no single number"),
    "uint8": (lambda: with_tensor(pair(), DOWN, torch.ones(RANK, IN, dtype=torch.uint8)), "whole numbers"),
    "truth values": (lambda: with_tensor(pair(), UP, torch.ones(OUT, RANK, dtype=torch.bool)), "whole numbers"),
    "fp8 with scales": (lambda: with_tensor(pair(), "lora_up.scale_weight", torch.ones(1)), "used only in part"),
    "a multiplier that is not known": (lambda: with_tensor(pair(), "scalar", torch.ones(1)), "used only in part"),
    "two kinds in one layer": (lambda: pair() | of_lokr(), "both as lokr and with lora_down.weight"),
    "a bias": (lambda: with_tensor(pair(), "diff_b", torch.ones(OUT)), "full fine-tuning"),
    "a bias under ComfyUI's names": (
        lambda: pair("diffusion_model.a.b") | {"diffusion_model.c.d.diff_b": torch.ones(OUT)},
        "diffusion_model.c.d.diff_b",
    ),
    "a norm": (lambda: pair() | {"diffusion_model.txt_norm.w_norm": torch.ones(OUT)}, "training of norms"),
    "a bias of PEFT": (
        lambda: pair("unet.a", a="lora_A", b="lora_B") | {"unet.a.lora_B.bias": torch.ones(OUT)},
        "training of biases",
    ),
    "token embeddings of PEFT": (
        lambda: pair() | {"text_encoder.x.lora_embedding_A": torch.ones(2, 9)},
        "training of token embeddings",
    ),
    "rotations of PEFT": (lambda: {"transformer.a.oft_R.weight": torch.ones(3, 6)}, "another OFT"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_or_partly_understood_files_are_refused(damage: str, tmp_path: Path) -> None:
    make, problem = DAMAGED[damage]
    tensors = make()
    with pytest.raises(ValueError, match=r"^models: '.*x\.safetensors' ") as error:
        read(tmp_path, tensors)
    sentence = str(error.value)
    assert problem in sentence
    assert any((split_key(key)[0] or key) in sentence for key in tensors)
    assert "\n" not in sentence


def test_problems_in_the_header_are_reported_before_the_file_is_read(tmp_path: Path) -> None:
    """By --plan, the page and every start, without torch."""
    path, shown = tmp_path / "x.safetensors", []
    network_files = reading(model_checks.network_files, Script, NetworkOptions)
    for damage, (make, _) in DAMAGED.items():
        save_file(make(), path)
        options = {"base_weights": [str(path)], "network_weights": str(path)}
        sentences = list(network_files(flux_settings(**options)))
        names = ["network_weights", "base_weights"] if sentences else []
        assert [sentence.partition(f": '{path}' ")[0] for sentence in sentences] == names
        shown += [damage] * bool(sentences)
        external = {"network_module": "tests.support.networks.foreign_network", "network_weights": str(path)}
        assert list(network_files(flux_settings(**external))) == []
    assert {"uint8", "truth values", "fp8 with scales", "a multiplier that is not known"} < {*shown}
    assert {"a bias", "a bias under ComfyUI's names", "a norm", "a bias of PEFT", "rotations of PEFT"} < {*shown}


def test_odd_but_complete_files_are_read(tmp_path: Path) -> None:
    """An alpha as a whole number, weights in plain fp8, norms without a second dimension, an alpha without factors."""
    tensors = with_tensor(pair(), "alpha", torch.tensor(2)) | {"other.alpha": torch.tensor(1.0)}
    file = read(tmp_path, with_tensor(tensors, UP, torch.ones(OUT, RANK, dtype=torch.float8_e4m3fn)))
    weight = torch.zeros(OUT, IN)
    change = file.change(LAYER, weight, 2.0)
    torch.testing.assert_close(change, tensors[f"{LAYER}.{DOWN}"].sum(0).expand(OUT, IN))
    assert file.ignored == ("other.alpha",)
    norms, square = torch.rand(OUT), torch.randn(OUT, OUT)
    dora = read(tmp_path, with_tensor(pair(into=OUT), "dora_scale", norms))
    changed = square + dora.change(LAYER, square, 1.0)
    torch.testing.assert_close(changed.norm(dim=1), norms)


def test_names_in_messages_are_in_one_line_and_without_control_characters(tmp_path: Path) -> None:
    tensors = pair("lora_unet_\x1b[31mred\n" + "x" * 500)
    next(iter(tensors.values()))[0] = torch.nan
    with pytest.raises(ValueError, match="NaN") as error:
        read(tmp_path, tensors)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500
    file = read(tmp_path, pair() | {"un\x07known\u202e": torch.ones(1)})
    (sentence,) = file.not_used()
    assert sentence.isprintable()


def test_the_page_knows_the_tensors_of_every_adapter_kind() -> None:
    assert set(known_endings()) <= set(ENDINGS)


def test_layers_and_tensors_that_are_not_used_are_named(tmp_path: Path) -> None:
    """A half-converted name, a layer of a larger model, an embedding next to the layers, and a tensor of no layer."""
    model = FluxTransformer(FluxParams(**SHAPE))
    good = pair("transformer.single_transformer_blocks.0.proj_out", 64, 192)
    unused = pair("diffusion_model.single_blocks.0_linear1") | pair("lora_unet_double_blocks_7_img_mod_lin")
    embedding = {"bundle_emb.mytoken.string_to_param.*": torch.ones(2, 4), "bundle_emb.other.clip_l": torch.ones(2, 4)}
    file = read(tmp_path, good | unused | embedding | {"step": torch.ones(1)}, modules=modules_of(model, TRANSFORMER))
    assert file.known == {LAYER}
    embeddings, tensors, layers = file.not_used()
    assert "embeddings" in embeddings
    assert embeddings.endswith(": mytoken, other")
    assert tensors.endswith("1 tensor of '" + str(file.path) + "' is unknown and left out: step")
    assert layers.endswith(": diffusion_model.single_blocks.0_linear1, lora_unet_double_blocks_7_img_mod_lin")


@pytest.mark.run
@pytest.mark.parametrize("tool", ["merge", "average", "svd", "resize", "convert", "inspect"])
def test_every_tool_refuses_a_damaged_file_before_it_works(
    tool: str, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora, out = tmp_path / "bad.safetensors", tmp_path / "out.safetensors"
    write_lora(any_miniature, lora)
    tensors = load_file(lora)
    (last, *_) = [key for key in tensors if "single_blocks_1" in key and "lora_down" in key]
    tensors[last][0, 0] = torch.nan
    save_file(tensors, lora, {"ss_base_model_version": "flux1"})
    script, *flags = {
        "merge": (merge_lora, "--base_model", any_miniature.checkpoint, "--models", lora, "--save_to", out),
        "average": (merge_lora, "--models", lora, "--save_to", out),
        "svd": (svd_merge_lora, "--models", lora, "--save_to", out),
        "resize": (resize_lora, "--model", lora, "--save_to", out),
        "convert": (convert_lora, "--src_path", lora, "--dst_path", out),
        "inspect": (check_lora_weights, "--model", lora),
    }[tool]
    assert script.COMMAND.main("tool", [str(flag) for flag in flags]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert sentence.endswith(f"has NaN or infinity in {last}; choose another file, such as an earlier checkpoint")
    assert not out.exists()


@pytest.mark.run
def test_training_and_generating_read_files_as_the_tools_do(any_miniature: Any, tmp_path: Path) -> None:
    """Damaged tensors are refused, and unused ones are named."""
    write_lora(any_miniature, lora := tmp_path / "lora.safetensors")
    tensors = load_file(lora)
    other = {key.replace("single_blocks_1_", "single_blocks.1."): tensor for key, tensor in tensors.items()}
    save_file(other, half := tmp_path / "half.safetensors")
    save_file(with_tensor(tensors, DOWN, torch.full_like(tensors[f"{LAYER}.{DOWN}"], torch.inf)), lora)
    settings = {"max_train_steps": 1, "network_dim": 4, "network_alpha": 2}
    for number, option in enumerate(("base_weights", "network_weights")):
        values = {**settings, option: [str(lora)] if option == "base_weights" else str(lora)}
        bad = train(any_miniature, tmp_path / f"bad{number}", **values)
        assert bad.status == 2
        (sentence,) = [event["error"] for event in bad.events_of("failed")]
        assert sentence.startswith(f"{option}: '{lora}' has NaN or infinity in {LAYER}")
        assert "caching latents" not in {event["name"] for event in bad.events_of("phase")}
    good = train(any_miniature, tmp_path / "half", base_weights=[str(half)], **settings)
    (warning,) = [text for text in told(good.folder, "warning") if text.startswith("base_weights")]
    assert "3 layers of" in warning
    assert "single_blocks.1." in warning

    values = {**{name: str(path) for name, path in any_miniature.files.items()}, "prompt": ["x"], "dtype": "fp32"}
    folder = RunFolder(tmp_path / "generating")
    generator = Generator(family_of("flux"), settings_of("flux", {}, values), Reporter(folder))
    with pytest.raises(ValueError, match=r"^lora_weights: .*NaN or infinity"):
        generator.apply([AdapterFile(path=lora)])
    generator.apply([AdapterFile(path=half)])
    assert [text.replace("base_weights", "lora_weights") for text in [warning]] == told(folder, "warning")
