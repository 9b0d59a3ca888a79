"""Effects of the options of training, optimizer, loss and data on a whole run."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils import _pytree as pytree

from sd_scripts.families.sdxl.unet import predict
from sd_scripts.settings.settings import Settings
from sd_scripts.training.execution.step_inputs import step_inputs
from sd_scripts.training.trainer import Trainer
from tests.support.data import make_folder, make_image
from tests.support.training import TEXT_ENCODERS_TOO, Run, equal, images, train

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def plain(data: Path, any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(any_miniature, tmp_path_factory.mktemp("plain") / "out", train_data_dir=data)


@pytest.fixture(scope="module")
def standing(data: Path, any_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve steps at a rate that moves nothing."""
    output = tmp_path_factory.mktemp("standing") / "out"
    return train(any_miniature, output, train_data_dir=data, learning_rate=1e-12, max_train_steps=12)


def learns(run: Run) -> bool:
    ups = [tensor for name, tensor in run.tensors().items() if "lora_up" in name]
    finite = all(math.isfinite(loss) for loss in run.losses) and all(bool(up.isfinite().all()) for up in ups)
    return run.status == 0 and finite and any(bool(up.any()) for up in ups)


@pytest.mark.parametrize(
    "options",
    [
        {
            "optimizer_type": "Adafactor",
            "optimizer_args": ["relative_step=False", "scale_parameter=False"],
            "max_grad_norm": 0.0,
        },
        {"optimizer_type": "torch.optim.NAdam"},
    ],
    ids=lambda options: options["optimizer_type"],
)
def test_optimizers_with_arguments_and_by_their_path_lower_the_loss(
    options: dict[str, Any], standing: Run, data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    run = train(
        any_miniature, tmp_path / "out", train_data_dir=data, max_train_steps=12, **{"learning_rate": 3e-3, **options}
    )
    assert run.status == 0
    assert sum(run.losses[5:]) < 0.99 * sum(standing.losses[5:])


def test_each_remark_about_an_option_is_reported_once(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    run = train(any_miniature, tmp_path / "out", train_data_dir=data, optimizer_type="Prodigy", learning_rate=1e-4)
    assert [warning["text"].split(":")[0] for warning in run.events_of("warning")] == ["learning_rate"]


def test_the_schedule_is_visible_in_the_events(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    schedule = {"lr_scheduler": "linear", "lr_warmup_steps": 2, "learning_rate": 1e-2, "max_train_steps": 4}
    run = train(any_miniature, tmp_path / "out", train_data_dir=data, **schedule)
    assert [event["lr"]["unet"] for event in run.events_of("step")] == pytest.approx([0, 5e-3, 1e-2, 5e-3])


def test_unet_and_text_encoders_train_at_their_own_rates_and_are_in_the_file(
    data: Path, miniature: Any, tmp_path: Path
) -> None:
    """Of a model that predicts velocity, according to the file."""
    own = {"unet_lr": 1e-3, "text_encoder_lr": [2e-4, 3e-4], "v_parameterization": True}
    run = train(miniature, tmp_path / "out", train_data_dir=data, **TEXT_ENCODERS_TOO, **own)
    assert run.events_of("step")[0]["lr"] == {
        "unet": pytest.approx(1e-3),
        "textencoder 1": pytest.approx(2e-4),
        "textencoder 2": pytest.approx(3e-4),
    }
    moved = {
        name.split("_text_model")[0] for name, tensor in run.tensors().items() if "lora_up" in name and tensor.any()
    }
    assert {"lora_te1", "lora_te2"} <= moved
    with safe_open(run.output / "short.safetensors", "pt") as file:
        assert file.metadata()["modelspec.prediction_type"] == "v"


def test_text_encoders_alone_lower_the_loss(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    options = {
        "cache_text_encoder_outputs": None,
        "network_train_unet_only": None,
        "network_train_text_encoder_only": True,
        "max_train_steps": 12,
        "network_dim": 8,
        "network_alpha": 8.0,
        "train_data_dir": data,
    }
    trainable = train(any_miniature, tmp_path / "learning", **{**options, "learning_rate": 3e-3})
    standing = train(any_miniature, tmp_path / "standing", **{**options, "learning_rate": 1e-12})
    assert all(name.startswith("lora_te") for name in trainable.tensors())
    assert sum(trainable.losses[5:]) < sum(standing.losses[5:])


def test_gradient_checkpointing_of_text_encoders_changes_no_loss(
    data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    with_text = {**TEXT_ENCODERS_TOO, "network_dropout": 0.1, "train_data_dir": data}
    whole = train(any_miniature, tmp_path / "whole", **with_text)
    saving = train(any_miniature, tmp_path / "saving", gradient_checkpointing=True, **with_text)
    assert saving.losses == pytest.approx(whole.losses, rel=1e-5)


def test_bf16_computes_in_halves_and_keeps_float32_masters(
    plain: Run, data: Path, any_miniature: Any, tmp_path: Path
) -> None:
    run = train(any_miniature, tmp_path / "out", train_data_dir=data, mixed_precision="bf16")
    assert learns(run)
    assert run.losses == pytest.approx(plain.losses, rel=0.05)
    assert {tensor.dtype for tensor in run.tensors().values()} == {torch.float32}


def test_full_bf16_keeps_bf16_masters(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    run = train(any_miniature, tmp_path / "out", train_data_dir=data, mixed_precision="bf16", full_bf16=True)
    assert learns(run)
    assert {tensor.dtype for tensor in run.tensors().values()} == {torch.bfloat16}


def test_gradients_of_two_batches_of_one_equal_one_batch_of_two(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    trainer = before_first_step(any_miniature, tmp_path / "out", data)
    inputs = step_inputs(trainer.training_data, next(trainer.loader.epoch(1)), "drawn once")
    network = trainer.trainable.network  # type: ignore[attr-defined]

    loss = trainer.eager.micro_step(inputs)
    whole = network.gradients.clone()
    trainer.trainable.updated()
    trainer.eager.accumulation = 2
    halves = [pytree.tree_map(lambda t, half=half: t[half : half + 1], inputs) for half in (0, 1)]
    losses = [trainer.eager.micro_step(half) for half in halves]
    assert whole.any()
    torch.testing.assert_close(network.gradients, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(sum(losses) / 2, loss)


def test_a_step_of_two_batches_sees_the_whole_epoch(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    two = train(any_miniature, tmp_path / "two", train_data_dir=data, gradient_accumulation_steps=2)
    assert two.steps == [1, 2, 3]
    assert [event["epoch"] for event in two.events_of("step")] == [1, 2, 3]
    assert learns(two)


def test_the_last_step_of_an_epoch_may_be_short(any_miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "three", count=3)
    run = train(
        any_miniature, tmp_path / "out", train_data_dir=root, gradient_accumulation_steps=2, max_train_epochs=2,
        max_train_steps=1,
    )  # fmt: skip
    assert [event["epoch"] for event in run.events_of("step")] == [1, 1, 2, 2]
    assert run.events_of("started")[0]["max_steps"] == 4


@pytest.fixture(scope="module")
def prepared(data: Path, miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A trainer before its first step."""
    return before_first_step(miniature, tmp_path_factory.mktemp("prepared") / "out", data)


def before_first_step(miniature: Any, output: Path, data: Path, **options: Any) -> Trainer:
    made: list[Trainer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train", lambda trainer: made.append(trainer))
        train(miniature, output, train_data_dir=data, train_batch_size=2, **options)
    return made[0]


@dataclass
class Step:
    """The result of a step and its inputs: latents and noise (2, 4, 8, 8), timesteps (2,)."""

    inputs: dict[str, Tensor]
    loss: Tensor
    error: Tensor
    """Prediction minus target."""


def step_of(trainer: Trainer, **options: Any) -> Step:
    """Compute one step with other options of loss and noise, always of the same draws."""
    context, plain = trainer.context, trainer.context.settings
    context.settings = Settings(plain.script, {**plain.values(), **options})
    try:
        inputs = step_inputs(trainer.training_data, next(trainer.loader.epoch(1)), "drawn once")
        with torch.no_grad():
            model, text = inputs.model, inputs.text
            states = torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=-1)
            prediction = predict(
                trainer.training_data.components.denoiser,
                *(model["noisy"], model["timesteps"], states, text["pool2"], model["sizes"]),
            )
            return Step(model, trainer.loss(inputs), prediction - model["target"])
    finally:
        context.settings = plain


def signal_share(zero_terminal: bool = False) -> Tensor:
    """The cumulated alphas of Stable Diffusion (1000,); at zero terminal SNR the last timestep is pure noise."""
    root = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0).sqrt()
    return ((root - root[-1]) * root[0] / (root[0] - root[-1]) if zero_terminal else root) ** 2


def mean(values: Tensor) -> Tensor:
    return values.mean(dim=(1, 2, 3))


def test_every_loss_is_its_formula(prepared: Trainer) -> None:
    def pseudo_huber(error: Tensor, width: Tensor) -> Tensor:
        width = width.view(-1, 1, 1, 1)
        return 2 * ((error**2 + width**2).sqrt() - width)

    velocity = {"v_parameterization": True, "zero_terminal_snr": True, "scale_v_pred_loss_like_noise_pred": True}
    formulas: list[tuple[dict[str, Any], Callable[[Tensor, Tensor, Tensor], Tensor]]] = [
        ({}, lambda e, t, snr: mean(e**2)),
        ({"min_snr_gamma": 5.0}, lambda e, t, snr: mean(e**2) * snr.clamp(max=5) / snr),
        ({"loss_type": "l1"}, lambda e, t, snr: mean(e.abs())),
        (
            {"loss_type": "huber", "huber_schedule": "snr", "huber_c": 0.2},
            lambda e, t, snr: mean(pseudo_huber(e, c := 0.8 / (1 + snr**-0.5) ** 2 + 0.2)) * c,
        ),
        (
            {"loss_type": "smooth_l1", "huber_schedule": "exponential", "huber_c": 0.2},
            lambda e, t, snr: mean(pseudo_huber(e, 0.2 ** (t / 1000))),
        ),
        ({"debiased_estimation_loss": True}, lambda e, t, snr: mean(e**2) / snr.clamp(max=1000).sqrt()),
        ({"v_pred_like_loss": 0.5}, lambda e, t, snr: mean(e**2) * (1 + 0.5 * (1 + 1 / snr))),
        (velocity, lambda e, t, snr: mean(e**2) * snr / (snr + 1)),
    ]
    wrong = {}
    for options, formula in formulas:
        step = step_of(prepared, **options)
        t = step.inputs["timesteps"]
        share = signal_share()[t]  # weights follow the plain schedule, as in sd-scripts
        wanted = formula(step.error.double(), t, share / (1 - share))
        if not torch.allclose(step.loss.double(), wanted, rtol=1e-4):
            wrong[str(options)] = step.loss, wanted
    assert wrong == {}


def test_noise_and_target_follow_the_options(prepared: Trainer) -> None:
    plain = step_of(prepared).inputs
    t, noise = plain["timesteps"], plain["target"]

    def shares(zero_terminal: bool = False) -> tuple[Tensor, Tensor]:
        share = signal_share(zero_terminal)[t].view(-1, 1, 1, 1)
        return share.sqrt().float(), (1 - share).sqrt().float()

    signal, grain = shares()
    latents = (plain["noisy"] - grain * noise) / signal
    generator = prepared.context.generator("drawn once")
    assert torch.equal(torch.randn(noise.shape, generator=generator), noise)
    offset = 0.1 * torch.randn(2, 4, 1, 1, generator=generator)
    moved = step_of(prepared, noise_offset=0.1).inputs
    torch.testing.assert_close(moved["target"], noise + offset)

    generator = prepared.context.generator("drawn once")
    torch.randn(noise.shape, generator=generator)
    assert torch.equal(torch.randint(0, 1000, (2,), generator=generator), t)
    more = 0.1 * torch.randn(noise.shape, generator=generator)
    perturbed = step_of(prepared, ip_noise_gamma=0.1).inputs
    assert torch.equal(perturbed["target"], noise)
    torch.testing.assert_close(perturbed["noisy"], signal * latents + grain * (noise + more), rtol=1e-4, atol=1e-4)

    velocity = step_of(prepared, v_parameterization=True, zero_terminal_snr=True).inputs
    signal, grain = shares(zero_terminal=True)
    torch.testing.assert_close(velocity["target"], signal * noise - grain * latents, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(velocity["noisy"], signal * latents + grain * noise, rtol=1e-4, atol=1e-4)


def test_options_of_a_file_reach_the_step(prepared: Trainer, data: Path, miniature: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"min_snr_gamma": 5.0, "loss_type": "huber", "huber_schedule": "snr", "noise_offset": 0.1}
    options |= {"multires_noise_iterations": 4, "ip_noise_gamma": 0.1, "v_pred_like_loss": 0.5}
    from_file, by_hand = (
        step_of(before_first_step(miniature, tmp_path / "out", data, **options)),
        step_of(prepared, **options),
    )
    assert torch.equal(from_file.inputs["noisy"], by_hand.inputs["noisy"])
    assert torch.equal(from_file.loss, by_hand.loss)
    assert not torch.equal(from_file.loss, step_of(prepared).loss)


def test_network_args_reach_the_layers_and_their_rates(data: Path, miniature: Any, tmp_path: Path) -> None:
    arguments = ["conv_dim=3", "conv_alpha=1", "loraplus_lr_ratio=4", "rank_dropout=0.2", "module_dropout=0.2"]
    run = train(miniature, tmp_path / "out", train_data_dir=data, network_dropout=0.2, network_args=arguments)
    downs = {tensor.shape for name, tensor in run.tensors().items() if name.endswith("lora_down.weight")}
    assert {(len(shape), shape[0]) for shape in downs} == {(2, 2), (4, 2), (4, 3)}
    assert sorted(run.events_of("step")[0]["lr"].values()) == pytest.approx([0.01, 0.04])
    assert learns(run)


def test_lowram_changes_no_bit(plain: Run, data: Path, any_miniature: Any, tmp_path: Path) -> None:
    assert equal(train(any_miniature, tmp_path / "out", train_data_dir=data, lowram=True).tensors(), plain.tensors())


def test_masked_areas_do_not_count(any_miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "images", count=1)
    (image,) = root.rglob("*.png")
    masks = {"masked_loss": True, "train_data_dir": root, "max_train_steps": 1}

    def loss(name: str, grey: int) -> float:
        from PIL import Image

        folder = tmp_path / name
        folder.mkdir()
        Image.new("L", (64, 64), grey).save(folder / image.name)
        run = train(any_miniature, tmp_path / f"{name}-out", conditioning_data_dir=folder, **masks)
        return run.losses[0]

    assert loss("black", 0) == 0
    assert loss("white", 255) == pytest.approx(
        train(any_miniature, tmp_path / "out", train_data_dir=root, max_train_steps=1).losses[0], rel=1e-5
    )


def test_regularisation_images_count_by_prior_loss_weight(data: Path, any_miniature: Any, tmp_path: Path) -> None:
    reg = tmp_path / "reg"
    make_folder(reg / "1_noise", [(64, 64)] * 2, caption="something")
    options = {"train_data_dir": data, "reg_data_dir": reg, "max_train_epochs": 1}
    full = train(any_miniature, tmp_path / "full", learning_rate=1e-12, **options)
    none = train(any_miniature, tmp_path / "none", learning_rate=1e-12, prior_loss_weight=0.0, **options)
    assert len(full.losses) == len(none.losses) == 4
    assert sorted(loss == 0 for loss in none.losses) == [False, False, True, True]
    assert [b for a, b in zip(full.losses, none.losses, strict=True) if b] == pytest.approx(
        [a for a, b in zip(full.losses, none.losses, strict=True) if b], rel=1e-4
    )


def test_a_dataset_file_describes_the_data(any_miniature: Any, tmp_path: Path) -> None:
    make_image(tmp_path / "here" / "a.png")
    config = tmp_path / "data.toml"
    config.write_text(
        "[[datasets]]\nresolution = 64\nbatch_size = 1\n"
        f"[[datasets.subsets]]\nimage_dir = '{tmp_path / 'here'}'\nclass_tokens = 'a cat'\nnum_repeats = 3\n"
    )
    run = train(any_miniature, tmp_path / "out", dataset_config=config, max_train_epochs=1)
    assert run.steps == [1, 2, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_every_path_can_start_with_the_home_folder(
    each_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").symlink_to(each_miniature.checkpoint.parent)
    images(tmp_path / "data")
    (tmp_path / "data.toml").write_text("[[datasets]]\n[[datasets.subsets]]\nimage_dir = '~/data/1_noise'\n")
    (tmp_path / "prompts.txt").write_text("a circle --w 64 --h 64 --s 1")
    home: dict[str, Any] = {name: f"~/models/{path.name}" for name, path in each_miniature.files.items()}
    home |= {name: f"~/{name}" for name in ("output_dir", "run_dir", "logging_dir")}
    if each_miniature.family == "sdxl":
        home["vae"] = home["pretrained_model_name_or_path"]
    once = {"dataset_config": "~/data.toml", "save_state": True, "max_train_steps": 1}
    first = train(each_miniature, tmp_path / "output_dir", **once, **home)
    assert first.status == 0
    home["run_dir"] = "~/again"
    again = train(
        each_miniature,
        tmp_path / "output_dir",
        train_data_dir="~/data",
        sample_prompts="~/prompts.txt",
        sample_every_n_steps=2,
        network_weights="~/output_dir/short.safetensors",
        base_weights=["~/output_dir/short.safetensors"],
        resume="~/output_dir/short-state",
        resume_changed_model=True,  # base_weights change it
        max_train_steps=2,
        **home,
    )
    assert again.status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [
            "again",
            "data",
            "data.toml",
            "logging_dir",
            "models",
            "output_dir",
            "output_dir.toml",
            "prompts.txt",
            "run_dir",
        ]
    )


def test_an_unreadable_image_is_named_and_replaced(any_miniature: Any, tmp_path: Path) -> None:
    root = images(tmp_path / "images", count=3)
    broken = sorted(root.rglob("*.png"))[1]
    broken.write_bytes(broken.read_bytes()[:200])
    run = train(any_miniature, tmp_path / "out", train_data_dir=root, cache_latents=None)
    assert learns(run)
    assert any(broken.name in warning["text"] for warning in run.events_of("warning"))
