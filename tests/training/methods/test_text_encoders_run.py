"""Runs in which some text encoders are trained and others are not, with our LoRA and an external network."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.training import TEXT_ENCODERS_TOO, Run, images, train

pytestmark = pytest.mark.run

FOREIGN = {"network_module": "tests.support.networks.foreign_network", "network_args": ["preset=full"]}


def learned(run: Run) -> set[str]:
    """Beginnings of the names of layers that are in the file and not as they began."""
    assert run.status == 0
    tensors = {key: tensor for key, tensor in run.tensors().items() if key.endswith(("up.weight", "shift"))}
    starts = {"_".join(key.split("_")[:2]): False for key in tensors}
    for key, tensor in tensors.items():
        starts["_".join(key.split("_")[:2])] |= bool(tensor.any())
    assert all(starts.values()), starts
    return set(starts)


@pytest.fixture(scope="module")
def both(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A step of both text encoders of SDXL. Do not write to it."""
    output = tmp_path_factory.mktemp("both") / "out"
    return train(miniature, output, text_encoder_lr=[1e-3], **TEXT_ENCODERS_TOO, max_train_steps=1)


@pytest.mark.parametrize("rates", [[1e-3, 0.0], [0.0, 1e-3]], ids=["first", "second"])
def test_captions_of_an_sdxl_encoder_with_rate_0_are_encoded_outside_the_step(
    rates: list[float], both: Run, miniature: Any, tmp_path: Path
) -> None:
    one = train(miniature, tmp_path / "one", text_encoder_lr=rates, **TEXT_ENCODERS_TOO, max_train_steps=1)
    assert one.losses[0] == pytest.approx(both.losses[0], rel=1e-5)
    assert learned(one) == {"lora_unet", "lora_te1" if rates[0] else "lora_te2"}


@pytest.mark.parametrize("more", [{}, FOREIGN], ids=["ours", "foreign"])
def test_t5_with_rate_0_may_be_cached_and_gets_no_layers(
    more: dict[str, Any], flux_miniature: Any, tmp_path: Path
) -> None:
    data = images(tmp_path / "images")
    rates = {"text_encoder_lr": [1e-3, 0.0], "train_data_dir": data}
    still = train(flux_miniature, tmp_path / "still", train_t5xxl=True, network_train_unet_only=None, **rates, **more)
    unasked = train(flux_miniature, tmp_path / "unasked", **TEXT_ENCODERS_TOO, **rates, **more)
    assert still.losses == pytest.approx(unasked.losses, rel=1e-5)
    denoiser = set() if more else {"lora_unet"}  # the other network knows no block of FLUX.1
    assert learned(still) == learned(unasked) == {*denoiser, "lora_te1"}


@pytest.mark.parametrize(
    ("rates", "wanted"), [([1e-3], {"lora_te1", "lora_te3"}), ([0.0, 1e-3], {"lora_te3"})], ids=["both", "t5 alone"]
)
def test_an_external_network_adapts_t5_where_it_is_trained(
    rates: list[float], wanted: set[str], flux_miniature: Any, tmp_path: Path
) -> None:
    run = train(
        flux_miniature, tmp_path / "run", train_t5xxl=True, text_encoder_lr=rates, **TEXT_ENCODERS_TOO, **FOREIGN
    )
    assert learned(run) == wanted


def test_options_that_an_external_network_ignores_are_reported(flux_miniature: Any, tmp_path: Path) -> None:
    more = {**TEXT_ENCODERS_TOO, **FOREIGN, "train_t5xxl": True}
    run = train(flux_miniature, tmp_path / "run", max_train_steps=1, img_attn_dim=2, split_qkv=True, **more)
    assert [event["text"] for event in run.events_of("warning")] == [
        f"{name}: has no effect on tests.support.networks.foreign_network, which reads only network_args"
        for name in ("img_attn_dim", "split_qkv")
    ]


def test_t5_that_is_not_trained_despite_its_option_is_reported(flux_miniature: Any, tmp_path: Path) -> None:
    for name, options in {
        "network_train_unet_only": {},
        "text_encoder_lr": {"network_train_unet_only": None, "text_encoder_lr": [1e-3, 0.0]},
    }.items():
        run = train(flux_miniature, tmp_path / name, max_train_steps=1, train_t5xxl=True, **options)
        (warning,) = [event["text"] for event in run.events_of("warning")]
        assert warning.startswith("train_t5xxl: has no effect")
        assert name in warning
