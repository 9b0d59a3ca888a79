"""An adapter kind is one class: a LoHa of a few lines, defined here, does all that LoRA does."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from lora_sdxl import base, context, losses, prepare
from torch import Tensor, nn
from training_help import Run, equal, train

from sd_scripts.families.model_file import describe
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.networks import adapter
from sd_scripts.networks.adapter import Adapter, LayerPlan, Tensors, TrainedTensor, file_alpha
from sd_scripts.networks.layers import AdaptedLinear, Dropouts
from sd_scripts.networks.rules import Rank
from sd_scripts.training.lora import Lora

LOHA = ["adapter=loha"]


class LohaLinear(AdaptedLinear):
    """y = x W + b + x ((A1 B1) * (A2 B2)), with alpha / rank already in A1."""

    def __init__(self, plain: nn.Linear, rank: int, dropouts: Dropouts):
        super().__init__(plain, dropouts)
        out, into = plain.out_features, plain.in_features
        self.a1, self.b1 = self.parameter(out, rank), self.parameter(rank, into)
        self.a2, self.b2 = self.parameter(out, rank), self.parameter(rank, into)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(x, (self.a1 @ self.b1) * (self.a2 @ self.b2))


class Loha(Adapter):
    kind, degree = "loha", 4
    endings = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")

    def __init__(self, plan: LayerPlan, plain: nn.Module, dropouts: Dropouts):
        super().__init__(plan, plain, dropouts)
        assert isinstance(plain, nn.Linear)
        layer = self.layer = LohaLinear(plain, plan.rank, dropouts)
        rest = [TrainedTensor(copy=copy) for copy in (layer.b1, layer.a2, layer.b2)]
        self.tensors = [TrainedTensor(copy=layer.a1, scale=self.scale, plus=True), *rest]

    def initialize(self, generator: torch.Generator) -> None:
        for master in self.masters[1:]:
            master.copy_(torch.randn(master.shape, generator=generator) * 0.1)

    def file_tensors(self) -> Tensors:
        tensors = dict(zip(self.endings, (master.detach() for master in self.masters), strict=True))
        return {**tensors, "alpha": torch.tensor(self.alpha)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for ending, master in zip(self.endings, self.masters, strict=True):
            master.copy_(tensors[ending])

    @classmethod
    def rank_in_file(cls, tensors: Mapping[str, Tensor], split_dims: tuple[int, ...]) -> tuple[Rank, tuple[int, ...]]:
        rank = len(tensors["hada_w1_b"])
        return Rank(rank, file_alpha(tensors, rank)), ()

    @classmethod
    def delta(cls, tensors: Mapping[str, Tensor], weight: Tensor, strength: float = 1.0) -> Tensor:
        a1, b1, a2, b2 = (tensors[ending].to(weight.device).float() for ending in cls.endings)
        rank, _ = cls.rank_in_file(tensors, ())
        return (a1 @ b1) * (a2 @ b2) * (strength * rank.alpha / rank.dim)


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    """Only here there is such a kind."""
    adapter.register(Loha)
    yield
    del adapter._kinds["loha"]


@pytest.fixture(scope="module")
def trained(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps of each family, with states. Do not write to it."""
    states = {"save_state": True, "save_every_n_steps": 1, "use_ema": True}
    return train(each_miniature, tmp_path_factory.mktemp("loha") / "out", network_args=LOHA, **states)


@pytest.mark.run
def test_a_run_trains_it_and_its_file_is_recognised(trained: Run, each_miniature: Any) -> None:
    assert trained.status == 0
    assert trained.told("warning") == []
    tensors = trained.tensors()
    assert {key.partition(".")[2] for key in tensors} == {*Loha.endings, "alpha"}
    moved = [tensor.any() for key, tensor in tensors.items() if key.endswith("hada_w1_a")]
    assert all(moved) if each_miniature.family == "flux" else any(moved)
    assert describe(trained.output / "short.safetensors").family == each_miniature.family


@pytest.mark.run
def test_it_resumes_bit_for_bit(trained: Run, each_miniature: Any, tmp_path: Path) -> None:
    state = trained.output / "short-step00000002-state"
    again = train(each_miniature, tmp_path / "out", network_args=LOHA, use_ema=True, resume=state)
    assert again.steps == [3]
    assert equal(again.tensors(), trained.tensors())
    assert equal(again.tensors("short-ema.safetensors"), trained.tensors("short-ema.safetensors"))


@pytest.mark.run
def test_compiled_it_learns_the_same_in_one_graph_a_block(trained: Run, each_miniature: Any, tmp_path: Path) -> None:
    compiled = {"compile": True, "compile_backend": "aot_eager", "compile_fullgraph": True}
    found = train(each_miniature, tmp_path / "out", network_args=LOHA, **compiled)
    assert found.losses == pytest.approx(trained.losses, rel=1e-4)
    assert found.told("compile")[-1]["breaks"] == 0


@pytest.fixture
def model(miniature: Any) -> Path:
    return miniature.checkpoint


def written(model: Path, folder: Path, name: str = "{}") -> tuple[Path, Tensor]:
    """A file with random numbers, as if training had been, under these names; and the losses with it."""
    prepared = prepare(model, folder, network_args=LOHA)
    with torch.no_grad():
        prepared.network.masters.copy_(torch.randn(prepared.network.masters.shape) * 0.2)
        prepared.network.refresh()
        expected = losses(prepared.components)
    safetensors.torch.save_file(
        {name.format(key): t for key, t in prepared.network.file_tensors(None).items()}, folder / "x.safetensors"
    )
    assert not torch.allclose(expected, losses(base(model)), rtol=1e-3)
    return folder / "x.safetensors", expected


def test_a_new_run_begins_with_its_file_whatever_the_rank_there(model: Path, tmp_path: Path) -> None:
    file, expected = written(model, tmp_path)
    values = {"network_weights": str(file), "network_dim": None}
    again = prepare(model, tmp_path, dim_from_weights=True, **values)
    assert {type(layer) for layer in again.network.layers} == {Loha}
    assert {layer.rank for layer in again.network.layers} == {4}
    with torch.no_grad():
        torch.testing.assert_close(losses(again.components), expected)


def test_its_file_can_be_merged_into_the_base_model(model: Path, tmp_path: Path) -> None:
    file, expected = written(model, tmp_path)
    merged = prepare(model, tmp_path, base_weights=[str(file)])
    with torch.no_grad():
        torch.testing.assert_close(losses(merged.components), expected, rtol=1e-4, atol=1e-5)


def test_norms_are_limited_and_clipping_and_learning_rates_are_those_of_all_kinds(model: Path, tmp_path: Path) -> None:
    args = [*LOHA, "loraplus_lr_ratio=16"]
    prepared = prepare(model, tmp_path, network_args=args, scale_weight_norms=0.01, network_train_unet_only=True)
    groups = {group["name"]: (group["lr"], len(group["params"])) for group in prepared.trainable.parameter_groups()}
    count = len(prepared.network.layers)
    assert groups == {"unet": (1e-3, 3 * count), "unet plus": (16e-3, count)}
    with torch.no_grad():
        prepared.network.masters.fill_(0.3)
    prepared.trainable.limit_norms()
    assert [float(layer.norm()) for layer in prepared.network.layers] == pytest.approx([0.01] * count, rel=1e-4)

    losses(prepared.components).mean().backward()
    prepared.trainable.collect_gradients()
    norm = prepared.trainable.clip(1e-3)
    assert norm > 1e-3
    assert float(prepared.network.gradients.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_a_file_of_another_kind_has_no_layer_of_the_network(model: Path, tmp_path: Path) -> None:
    file, _ = written(model, tmp_path)
    with pytest.raises(ValueError, match=r"network_weights: '.*' has no layer of this network"):
        prepare(model, tmp_path, network_weights=str(file))


def test_what_a_kind_does_not_have_is_told_before_anything_is_trained(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="network_args: ggpo_beta and ggpo_sigma have no effect"):
        prepare(model, tmp_path, network_args=[*LOHA, "ggpo_beta=0.1", "ggpo_sigma=0.1"])


def test_an_unknown_kind_is_refused_with_the_known_ones(model: Path, tmp_path: Path) -> None:
    given = context(model, tmp_path, network_args=["adapter=lohaa"])
    assert Lora().check(SDXL, given.settings) == ["network_args: adapter=lohaa is not one of loha, lora"]
