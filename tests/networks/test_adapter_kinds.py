"""Behaviour of every adapter kind: files, merging, limits, compiled code, whole runs; and that a kind is one class."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from sd_scripts.families.cards.model_file import describe
from sd_scripts.library.quantization.fp8 import Fp8
from sd_scripts.library.quantization.int8 import Int8
from sd_scripts.library.quantization.nf4 import Nf4
from sd_scripts.library.quantization.quantized import WeightFormat, dequantized, quantize_
from sd_scripts.networks import adapter
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, file_alpha
from sd_scripts.networks.layers import AdaptedLinear, Dropouts
from sd_scripts.networks.plan import NetworkArgs
from sd_scripts.options.networks.layer_rules import Rank
from sd_scripts.settings import network_choice
from tests.support.networks.adapters import Together, adapted, conv, gradients, inputs, linear
from tests.support.networks.every_form import adapted_model
from tests.support.networks.lora_sdxl import Prepared, base, context, losses, prepare
from tests.support.training import GRAPHS, equal, train

pytestmark = pytest.mark.run

KINDS: dict[str, dict[str, Any]] = {
    "locon": {"network_type": "locon"},
    "tucker": {"network_type": "locon", "conv_dim": 2, "use_tucker": True},
    "dora": {"network_type": "dora", "conv_dim": 2},
    "dora of inputs": {"network_type": "dora", "wd_on_output": False},
    "loha": {"network_type": "loha", "conv_dim": 2, "rs_lora": True},
    "lokr": {"network_type": "lokr", "conv_dim": 2, "factor": 4},
    "lokr with dora": {"network_type": "lokr", "dora_wd": True, "full_matrix": True, "factor": 4},
    "oft": {"network_type": "oft", "conv_dim": 2, "rescaled": True},
    "boft": {"network_type": "boft", "constraint": 0.01},
}
"""Settings of every kind."""
ENDINGS = {
    "locon": "lora_down.weight lora_up.weight",
    "tucker": "lora_down.weight lora_mid.weight lora_up.weight",
    "dora": "lora_down.weight lora_up.weight dora_scale",
    "dora of inputs": "lora_down.weight lora_up.weight dora_scale",
    "loha": "hada_w1_a hada_w1_b hada_w2_a hada_w2_b",
    "lokr": "lokr_w1 lokr_w2 lokr_w2_a lokr_w2_b",
    "lokr with dora": "lokr_w1 lokr_w2 dora_scale",
    "oft": "oft_blocks rescale",
    "boft": "oft_blocks",
}
"""The keys of LyCORIS that a file has of them, besides alpha."""
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def model(miniature: Any) -> Path:
    return miniature.checkpoint


@pytest.fixture(scope="module")
def plain(miniature: Any) -> Tensor:
    """The losses of the base model. Do not write to it."""
    with torch.no_grad():
        return losses(base(miniature.checkpoint))


def written(prepared: Prepared, folder: Path, kind: str) -> tuple[Path, Tensor]:
    """A file with random numbers, as if training had been; and the losses with it."""
    with torch.no_grad():
        prepared.network.masters.add_(torch.randn(prepared.network.masters.shape) * 0.1)
        prepared.network.refresh()
        expected = losses(prepared.components)
    tensors = prepared.network.file_tensors(None)
    assert {key.partition(".")[2] for key in tensors} == {*ENDINGS[kind].split(), "alpha"}
    safetensors.torch.save_file(tensors, folder / "x.safetensors")
    return folder / "x.safetensors", expected


@every_kind
def test_nothing_changes_before_training_and_files_are_read(
    plain: Tensor, model: Path, tmp_path: Path, kind: str
) -> None:
    """After which norms are limited, and gradients collected and clipped."""
    prepared = prepare(model, tmp_path, **KINDS[kind])
    with torch.no_grad():
        torch.testing.assert_close(losses(prepared.components), plain, rtol=1e-4, atol=1e-5)
        file, expected = written(prepared, tmp_path, kind)
        assert not torch.allclose(expected, plain, rtol=1e-3)
    again = prepare(model, tmp_path, **KINDS[kind], network_weights=str(file), scale_weight_norms=0.01)
    with torch.no_grad():
        torch.testing.assert_close(losses(again.components), expected, rtol=1e-4, atol=1e-4)
    assert_limits_and_clips(again)


def assert_limits_and_clips(prepared: Prepared) -> None:
    network = prepared.network
    with torch.no_grad():
        for layer in network.layers:
            for master in layer.masters:
                master.add_(0.3 * torch.randn(master.shape))
    prepared.trainable.limit_norms()
    norms = torch.stack([layer.norm() for layer in network.layers])
    torch.testing.assert_close(norms, torch.full_like(norms, 0.01), rtol=1e-3, atol=0)
    losses(prepared.components).mean().backward()
    prepared.trainable.gradients.collect()
    reached = [bool(master.grad.any()) for layer in network.layers for master in layer.masters]
    assert sum(reached) > 0.9 * len(reached)  # some only reach a text encoder's last layer
    norm = prepared.trainable.gradients.clip(1e-3)
    assert norm > 1e-3
    assert float(network.gradients.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_files_of_every_form_are_read_and_merged(plain: Tensor, miniature: Any, tmp_path: Path) -> None:
    """Merging uses the formulas of the weights, training uses the layers'."""
    file = str(adapted_model(miniature, "sdxl").save(tmp_path / "x.safetensors"))
    read = {"network_weights": file, "dim_from_weights": True, "network_dim": None}
    with torch.no_grad():
        ours, merged = (
            losses(prepare(miniature.checkpoint, tmp_path, **how).components)
            for how in (read, {"base_weights": [file]})
        )
    assert not torch.allclose(ours, plain, rtol=1e-3)
    torch.testing.assert_close(merged, ours, rtol=1e-4, atol=1e-4)


def test_lora_plus_raises_the_rate_of_tensors_that_start_at_zero(model: Path, tmp_path: Path) -> None:
    for kind, (plus, others) in {"loha": (1, 3), "dora": (1, 2), "lokr with dora": (1, 2)}.items():
        args = {"network_args": ["loraplus_lr_ratio=16"], "network_train_unet_only": True}
        prepared = prepare(model, tmp_path, **{**KINDS[kind], "conv_dim": None}, **args)
        groups = {group["name"]: (group["lr"], len(group["params"])) for group in prepared.trainable.parameter_groups()}
        count = len(prepared.network.layers)
        assert groups == {"unet": (1e-3, others * count), "unet plus": (16e-3, plus * count)}, kind


LAYERS: list[tuple[str, int, dict[str, Any]]] = [
    ("dora", 3, {"axis": "out"}),
    ("dora", 3, {"axis": "in"}),
    ("loha", 2, {}),
    ("loha", 6, {}),
    ("lokr", 2, {"factor": 4}),
    ("lokr", 100, {"factor": 2, "axis": "out"}),
    ("oft", 4, {"constraint": 0.05}),
    ("boft", 12, {"rescaled": True}),
]


@pytest.mark.deep
@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize(
    ("make", "dropouts"), [(linear, None), (conv, Dropouts(neuron=0.2, rank=0.3, module=0.3))], ids=["linear", "conv"]
)
def test_compiled_layers_are_one_graph_and_match_eager_ones(
    make: Callable[[torch.dtype], nn.Module], dropouts: Dropouts | None
) -> None:
    torch.manual_seed(0)
    layer = make(torch.float32)
    x = inputs(layer)
    found = []
    for backend in (None, CompileCounterWithBackend("aot_eager")):
        torch.manual_seed(1)
        models, networks = zip(
            *(adapted(layer, kind, rank, options, dropouts=dropouts) for kind, rank, options in LAYERS), strict=True
        )
        torch.manual_seed(2)
        together = Together(models)
        if backend:
            together.compile(backend=backend, fullgraph=True)
        y, x_grad = gradients(together, x)
        for network in networks:
            network.collect_gradients()
        found.append((x_grad, *y, *(network.gradients.clone() for network in networks)))
        assert backend is None or backend.frame_count == 1
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "rank", "options"), LAYERS)
def test_dropout_leaves_the_base_layer(kind: str, rank: int, options: dict[str, Any]) -> None:
    """All of the adapter is dropped, or nothing: with the module's share of outcomes, and nothing outside training."""
    torch.manual_seed(0)
    for make in (linear, conv):
        layer = make()
        x = inputs(layer)
        whole, plain = adapted(layer, kind, rank, options)[0](x), layer(x)
        torch.manual_seed(0)  # the same random numbers for the masters
        layer = make()
        x = inputs(layer)
        dropped, _ = adapted(layer, kind, rank, options, dropouts=Dropouts(module=0.5))
        outcomes = [dropped(x) for _ in range(16)]
        left = [torch.allclose(y, layer(x)) for y in outcomes]
        assert 2 <= sum(left) <= 14
        assert all(torch.allclose(y, dropped.eval()(x)) for y, out in zip(outcomes, left, strict=True) if not out)
        dropped.train()
        assert not torch.allclose(whole, plain)


@pytest.mark.parametrize("weight_format", [Fp8(), Int8(), Nf4()], ids=["fp8", "int8", "nf4"])
def test_the_change_of_a_quantized_layer_is_computed_from_its_values(weight_format: WeightFormat) -> None:
    """Kinds that do not form the weight compute with a quantized one as with its dequantized values."""
    for kind, rank, options in LAYERS:
        if (kind == "lokr" and options.get("axis")) or options.get("axis") == "in":
            continue
        torch.manual_seed(0)
        layer = nn.Linear(32, 48).requires_grad_(False)
        x = torch.randn(2, 5, 32)
        quantize_(layer, weight_format, torch.float32)
        plain = nn.Linear(32, 48).requires_grad_(False)
        plain.weight.data, plain.bias.data = dequantized(layer), layer.bias.data
        found = []
        for each in (layer, plain):
            torch.manual_seed(1)
            model = nn.Sequential(each)
            plan = LayerPlan(
                name="x", module=model, path="0", kind=adapter.adapter_kinds()[kind], rank=rank, alpha=2.0,
                group=adapter.Group("unet", 1e-3), options=options,
            )  # fmt: skip
            network = adapter_network(plan)
            y, x_grad = gradients(model, x)
            network.collect_gradients()
            found.append((y, x_grad, network.gradients.clone()))
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def adapter_network(plan: LayerPlan) -> Any:
    from sd_scripts.networks.network import attach

    network = attach([plan], Dropouts(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.masters.add_(0.1 * torch.randn(network.masters.shape))
    network.refresh()
    return network


# whole runs

STATES = {"save_state": True, "save_every_n_steps": 1, "use_ema": True}
COMPILED = {"compile": True, "compile_backend": "eager", "compile_fullgraph": True}  # graphs are Dynamo's
TRACED = ("loha", "oft")
"""Kinds whose runs are compiled here. All are compiled layer by layer, above and in test_every_form_run.py."""
NAMES: dict[str, dict[str, Any]] = {
    "dora": {"network_type": "dora", "fp8_base": True},
    "loha": {"network_module": "networks.loha", "network_args": ["rank_dropout=0.3"], "quantize_base": "nf4"},
    "lokr": {"network_module": "lycoris.kohya", "network_args": ["algo=lokr", "factor=4", "dora_wd=True"]},
    "oft": {"network_module": "networks.oft_flux", "blocks_to_swap": 1},
    "boft": {"network_type": "boft", "network_dim": 14, "quantize_base": "int8_weight_only"},
}
"""Every kind under one of its names, and with one of the things that may be had with each."""


@pytest.mark.run
@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("kind", NAMES)
def test_an_adapter_kind_trains_and_compiles_to_the_same_number_of_graphs_as_lora(
    flux_miniature: Any, tmp_path: Path, kind: str
) -> None:
    own = {**NAMES[kind], **(COMPILED if kind in TRACED else {})}
    module = own.pop("network_module", None)
    run = train(flux_miniature, tmp_path / "out", network_module=module, **own, **STATES)
    assert run.status == 0
    assert run.events_of("warning") == []
    assert [(told["graphs"], told["breaks"]) for told in run.events_of("compile")] == [(GRAPHS["flux"], 0)] * (
        kind in TRACED
    )
    moved = [tensor.any() for key, tensor in run.tensors().items() if key.endswith(STARTS_AT_ZERO)]
    assert moved
    assert all(moved)
    assert describe(run.output / "short.safetensors").family == "flux"


STARTS_AT_ZERO = ("lora_up.weight", "hada_w2_a", "lokr_w2_b", "lokr_w2", "oft_blocks")


@pytest.mark.run
def test_convolutions_are_trained_and_a_run_resumes_bit_for_bit(miniature: Any, tmp_path: Path) -> None:
    own = {"network_module": None, "network_type": "lokr", "conv_dim": 2, "dora_wd": True, "use_ema": True}
    own |= {"max_train_steps": 2}
    whole = train(miniature, tmp_path / "out", **own, save_state=True, save_every_n_steps=1)
    state = whole.output / "short-step00000001-state"
    again = train(miniature, tmp_path / "again", **own, resume=state)
    assert again.steps == [2]
    assert equal(again.tensors(), whole.tensors())
    assert equal(again.tensors("short-ema.safetensors"), whole.tensors("short-ema.safetensors"))
    assert any("emb_layers" in key or "in_layers" in key for key in whole.tensors())


# what is refused


def test_unsupported_options_of_a_kind_are_reported_before_training(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="network_args: ggpo_beta and ggpo_sigma have no effect"):
        prepare(model, tmp_path, network_type="loha", network_args=["ggpo_beta=0.1", "ggpo_sigma=0.1"])
    with pytest.raises(ValueError, match=r"network_dim: 1 is too small for BOFT on the 32 outputs of .*at least 2"):
        prepare(model, tmp_path, network_type="boft", network_dim=1)
    with pytest.raises(ValueError, match="network_args: block_count=3 does not divide the 32 outputs of lora_unet"):
        prepare(model, tmp_path, network_type="oft", network_args=["block_count=3"])


def test_a_file_of_a_different_form_is_reported_with_the_remedy(model: Path, tmp_path: Path) -> None:
    file, _ = written(prepare(model, tmp_path, **KINDS["lokr with dora"]), tmp_path, "lokr with dora")
    for values, problem in (
        ({"network_type": "loha"}, "has lokr, but loha is to be trained; choose another network_type, or turn on dim"),
        ({"network_type": "lokr", "network_dim": 1}, "has lokr_w1, lokr_w2 in the file and lokr_w1, lokr_w2_a, "),
        ({"network_type": "lokr", "full_matrix": True, "factor": 4}, "has dora_scale in the file; turn on dora_wd"),
        ({"network_type": "lokr", "full_matrix": True, "factor": 2, "dora_wd": True}, "has lokr_w1 of .* in the file"),
    ):
        with pytest.raises(ValueError, match=f"^network_weights: .*{problem}"):
            prepare(model, tmp_path, network_weights=str(file), **values)


def test_dora_continues_a_lora(model: Path, tmp_path: Path) -> None:
    lora = prepare(model, tmp_path, network_dim=4)
    with torch.no_grad():
        lora.network.masters.add_(torch.randn(lora.network.masters.shape) * 0.1)
        lora.network.refresh()
        expected = losses(lora.components)
        safetensors.torch.save_file(lora.network.file_tensors(None), tmp_path / "x.safetensors")
        dora = prepare(model, tmp_path, network_type="dora", network_weights=str(tmp_path / "x.safetensors"))
        torch.testing.assert_close(losses(dora.components), expected, rtol=1e-4, atol=1e-4)


def test_an_unknown_kind_is_refused_with_the_known_ones(model: Path, tmp_path: Path) -> None:
    given = context(model, tmp_path, network_args=["adapter=lohaa"])
    known = "boft, dora, loha, lokr, lora, oft"
    with pytest.raises(ValueError, match=f"^network_args: adapter=lohaa is not one of {known}$"):
        NetworkArgs.read(given.settings, pytest.fail)


# a kind of one's own


class ScaledLinear(AdaptedLinear):
    """y = x W + b + s * x W, a factor of its own for each output."""

    def __init__(self, plain: nn.Linear, dropouts: Dropouts):
        super().__init__(plain, dropouts)
        self.factors = self.parameter(plain.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(x, self.weight) * self.factors


class Scaled(Adapter):
    kind, endings = "scaled", ("factors",)

    def __init__(self, plan: LayerPlan, plain: nn.Module, dropouts: Dropouts):
        super().__init__(plan, plain, dropouts)
        assert isinstance(plain, nn.Linear)
        layer = self.layer = ScaledLinear(plain, dropouts)
        self.tensors = [TrainedTensor(copy=layer.factors, scale=self.scale, plus=True)]

    def initialize(self, generator: torch.Generator) -> None:
        """Leave the factors at 0."""

    def file_tensors(self) -> Tensors:
        return {"factors": self.masters[0].detach(), "alpha": torch.tensor(self.alpha)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.masters[0].copy_(tensors["factors"])

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        return Rank(4, file_alpha(tensors, 4)), ()

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        rank, _ = cls.rank_in_file(tensors, ())
        return weight.float() * tensors["factors"][:, None] * (strength * rank.alpha / rank.dim)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only here there is such a kind."""
    monkeypatch.setitem(network_choice.KINDS, "scaled", lambda arguments: {})
    adapter.register(Scaled)
    yield
    del adapter._kinds["scaled"]


@pytest.mark.usefixtures("registered")
def test_a_kind_is_one_class_and_one_reader_of_its_keys(model: Path, tmp_path: Path) -> None:
    prepared = prepare(model, tmp_path, network_args=["adapter=scaled"])
    assert {type(layer) for layer in prepared.network.layers} == {Scaled}
    with torch.no_grad():
        prepared.network.masters.copy_(torch.randn(prepared.network.masters.shape) * 0.2)
        prepared.network.refresh()
        expected = losses(prepared.components)
        safetensors.torch.save_file(prepared.network.file_tensors(None), tmp_path / "x.safetensors")
        for how in (
            {"network_weights": str(tmp_path / "x.safetensors"), "dim_from_weights": True},
            {"base_weights": [str(tmp_path / "x.safetensors")]},
        ):
            again = prepare(model, tmp_path, **how)
            torch.testing.assert_close(losses(again.components), expected, rtol=1e-4, atol=1e-5)
