"""Full training: the whole model is trained, in each family, every partition and precision, and its file is the
model."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from sd_scripts.families.sdxl.unet import block_of
from tests.support.training import Run, equal, run, settings_for, train_whole

STEPS = {"max_train_steps": 3}
COMPILED = {"compile": True, "compile_backend": "aot_eager"}
HALF = {"mixed_precision": "bf16", "full_bf16": True}
PLAIN_ADAFACTOR = {
    "optimizer_type": "Adafactor",
    "optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"],
}


pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.fixture(scope="module")
def models(miniature: Any, any_miniature: Any, qwen_image_miniature: Any) -> dict[str, Any]:
    return {"sdxl": miniature, "flux": any_miniature, "qwen_image": qwen_image_miniature}


@pytest.fixture(scope="module")
def plain(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Three steps of each family without anything special. Do not write to it."""
    return {name: train_whole(model, tmp_path_factory.mktemp("plain") / "out") for name, model in models.items()}


def base_of(miniature: Any) -> dict[str, Tensor]:
    return load_file(miniature.files["pretrained_model_name_or_path"])


UNREAD = re.compile(r"transformer_blocks\.4\.(txt_mlp|attn\.(to_add_out|add_q_proj|norm_added_q))\..*")
"""Weights of Qwen-Image's last block that only decide its text, which nothing reads; a decay may change them."""


def of_denoiser(keys: Iterable[str]) -> set[str]:
    """The denoiser's keys."""
    return {key for key in keys if not key.startswith(("first_stage_model.", "conditioner."))}


def learned(keys: Iterable[str]) -> set[str]:
    """The denoiser's keys that can be trained."""
    return {key for key in of_denoiser(keys) if not UNREAD.fullmatch(key)}


@pytest.mark.parametrize("family", ["sdxl", "flux", "qwen_image"])
def test_the_file_is_the_whole_model_with_a_fully_trained_denoiser(
    family: str, models: dict[str, Any], plain: dict[str, Run]
) -> None:
    run = plain[family]
    before, after = base_of(models[family]), run.tensors()
    assert run.status == 0
    assert {key: tensor.shape for key, tensor in after.items()} == {key: t.shape for key, t in before.items()}
    changed = {key for key in before if not torch.equal(after[key], before[key].to(after[key].dtype))}
    assert learned(changed) == learned(before)
    with safe_open(run.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    assert not any(key.startswith("ss_") for key in told)
    assert not told["modelspec.architecture"].endswith("/lora")


def test_training_lowers_the_loss(any_miniature: Any, tmp_path: Path) -> None:
    """Compared with a run that sees the same images, noise and timesteps at rate 0."""
    learning, standing = (
        train_whole(any_miniature, tmp_path / str(rate), max_train_steps=15, learning_rate=rate).losses
        for rate in (1e-3, 1e-12)
    )
    assert sum(learning[10:]) < 0.9 * sum(standing[10:])


def test_compiled_training_is_identical(plain: dict[str, Run], any_miniature: Any, tmp_path: Path) -> None:
    compiled = train_whole(any_miniature, tmp_path / "out", **COMPILED)
    assert compiled.losses == pytest.approx(plain["flux"].losses, rel=1e-4)
    assert compiled.tensors().keys() == plain["flux"].tensors().keys()
    assert compiled.events_of("compile")[-1]["breaks"] == 0


HALF_ADAFACTOR = {**HALF, **PLAIN_ADAFACTOR}


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("flux", PLAIN_ADAFACTOR),
        ("flux", {"mixed_precision": "bf16"}),
        ("flux", HALF),
        ("flux", HALF_ADAFACTOR),
        ("sdxl", HALF_ADAFACTOR),
        ("qwen_image", HALF_ADAFACTOR),
    ],
    ids=["adafactor", "masters", "half", "half adafactor", "sdxl", "qwen_image"],
)
def test_each_precision_and_optimizer_trains(
    family: str, more: dict[str, Any], models: dict[str, Any], plain: dict[str, Run], tmp_path: Path
) -> None:
    ours = train_whole(models[family], tmp_path / "out", **more)
    assert ours.losses[0] == pytest.approx(plain[family].losses[0], rel=0.05)
    before, after = base_of(models[family]), ours.tensors()
    same = [key for key in learned(before) if torch.equal(after[key].float(), before[key].to(after[key].dtype).float())]
    assert not same


FUSED = {"fused_backward_pass": True}


@pytest.mark.parametrize(
    ("family", "chosen", "portions"),
    [
        ("sdxl", {}, [FUSED, {"fused_optimizer_groups": 4}]),
        ("flux", {}, [FUSED, {"blockwise_fused_optimizers": True}]),
        ("flux", PLAIN_ADAFACTOR, [FUSED, {"blockwise_fused_optimizers": True}]),
        ("qwen_image", {}, [FUSED]),
    ],
    ids=["sdxl", "flux", "flux adafactor", "qwen_image"],
)
def test_updates_within_backward_are_the_same_updates(
    family: str, chosen: dict[str, Any], portions: list[dict[str, Any]], models: dict[str, Any], tmp_path: Path
) -> None:
    values = {"max_grad_norm": 0.0, "gradient_checkpointing": True, "max_train_steps": 2, **chosen}
    whole = train_whole(models[family], tmp_path / "whole", **values)
    for number, portion in enumerate(portions):
        fused = train_whole(models[family], tmp_path / f"fused{number}", **portion, **values)
        assert fused.losses == whole.losses
        assert equal(fused.tensors(), whole.tensors())


@pytest.mark.parametrize(
    "more",
    [
        {"fused_backward_pass": True, "gradient_checkpointing": True},
        {**PLAIN_ADAFACTOR, "gradient_accumulation_steps": 2, "cpu_offload_checkpointing": True},
        {**PLAIN_ADAFACTOR, "compile": True, "compile_backend": "eager"},
    ],
    ids=["fused and checkpointed", "accumulated", "compiled"],
)
def test_trained_swapped_blocks_match_resident_ones(more: dict[str, Any], flux_miniature: Any, tmp_path: Path) -> None:
    assert_swapped_is_resident(flux_miniature, tmp_path, swap=2, **more)


def assert_swapped_is_resident(model: Any, tmp_path: Path, swap: int, **more: Any) -> None:
    swapped = train_whole(model, tmp_path / "swapped", **HALF, **more, blocks_to_swap=swap)
    torch._dynamo.reset()
    resident = train_whole(model, tmp_path / "resident", **HALF, **more)
    assert swapped.status == 0
    assert swapped.losses == resident.losses
    assert equal(swapped.tensors(), resident.tensors())


def test_swapped_blocks_of_a_u_net_train_like_resident_ones_with_its_text_encoders(
    miniature: Any, tmp_path: Path
) -> None:
    """With one block of the U-Net frozen, and one of the text encoders."""
    rates = ",".join("0" if number == 8 else "1e-3" for number in range(23))
    texts = {"train_text_encoder": True, "learning_rate_te2": 0.0, "cache_text_encoder_outputs": None}
    more = {"fused_backward_pass": True, "gradient_checkpointing": True, "block_lr": rates, **texts}
    more |= {"max_train_steps": 2}
    assert_swapped_is_resident(miniature, tmp_path, swap=9, **more)


@pytest.mark.parametrize(
    ("family", "more", "stops"),
    [
        ("sdxl", {**HALF, "fused_backward_pass": True, "blocks_to_swap": 9}, (1, 3)),
        ("flux", {"mixed_precision": "bf16", "use_ema": True}, (1, 2, 3)),
        ("flux", {**HALF, **PLAIN_ADAFACTOR}, (2, 3)),
    ],
    ids=["fused and swapped", "masters and average", "adafactor"],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(
    family: str, more: dict[str, Any], stops: tuple[int, ...], models: dict[str, Any], tmp_path: Path
) -> None:
    """Within an epoch and at its end. test_kill has masters and average, test_full_resume FLUX.1 fused."""
    model = models[family]
    values = {**more, "save_precision": "float", "max_train_steps": 3}
    whole = train_whole(model, tmp_path / "whole", **values)
    losses = []
    state: Path | None = None
    for part, until in enumerate(stops):
        out = tmp_path / f"part{part}"
        values |= {"max_train_steps": until, "save_state_on_train_end": True}
        done = train_whole(model, out, **values, **({"resume": state} if state else {}))
        losses += done.losses
        state = out / "short-state"
    assert losses == whole.losses
    assert equal(done.tensors(), whole.tensors())
    if "use_ema" in more:
        assert equal(done.tensors("short-ema.safetensors"), whole.tensors("short-ema.safetensors"))


def test_trained_weights_are_not_stored_in_eight_bits(any_miniature: Any, tmp_path: Path) -> None:
    plain = train_whole(any_miniature, tmp_path / "plain", **HALF, max_train_steps=1)
    names = ("fp8_base", "fp8_base_unet", "fp8_compute")
    ours = train_whole(any_miniature, tmp_path / "ours", **HALF, **dict.fromkeys(names, True), max_train_steps=1)
    told = {event["text"] for event in ours.events_of("warning")}
    assert told >= {f"{name}: has no effect in full training" for name in names}
    assert equal(ours.tensors(), plain.tensors())


def test_the_ema_file_is_saved_next_to_the_trained_one(any_miniature: Any, tmp_path: Path) -> None:
    ours = train_whole(any_miniature, tmp_path / "out", use_ema=True, save_every_n_steps=1, save_last_n_steps=1)
    assert ours.files == [
        *("short-ema.safetensors", "short-step00000001-ema.safetensors", "short-step00000001.safetensors"),
        *("short-step00000002-ema.safetensors", "short-step00000002.safetensors", "short.safetensors"),
    ]
    first, second = (ours.tensors(f"short-step0000000{n}.safetensors") for n in (1, 2))
    averages = [ours.tensors(f"short-step0000000{n}-ema.safetensors") for n in (1, 2)]
    before = base_of(any_miniature)
    key = max(learned(before), key=lambda name: before[name].numel())
    wanted = torch.lerp(before[key].float(), first[key], 1 - 2 / 11)
    torch.testing.assert_close(averages[0][key], wanted)
    torch.testing.assert_close(averages[1][key], torch.lerp(wanted, second[key], 1 - 3 / 12))


TEXT = {"train_text_encoder": True, "cache_text_encoder_outputs": None}
FIRST, SECOND = "conditioner.embedders.0.", "conditioner.embedders.1."


@pytest.mark.parametrize(
    ("rates", "learns"),
    [
        ({"learning_rate_te1": 0.0}, (SECOND,)),
        ({"learning_rate_te2": 0.0, "learning_rate_te1": 1e-4}, (FIRST,)),
    ],
    ids=["second", "first"],
)
def test_text_encoders_train_at_their_own_rates(
    rates: dict[str, Any], learns: tuple[str, ...], miniature: Any, tmp_path: Path
) -> None:
    run = train_whole(miniature, tmp_path / "out", **TEXT, **rates, max_train_steps=1)
    before, after = base_of(miniature), run.tensors()
    changed = {key for key in before if not torch.equal(before[key].float(), after[key].float())}
    for encoder in (FIRST, SECOND):
        assert any(key.startswith(encoder) for key in changed) == (encoder in learns)


def test_a_block_with_rate_0_stays_unchanged(miniature: Any, tmp_path: Path) -> None:
    rates = ["1e-3"] * 23
    rates[0] = rates[22] = "0"
    before = base_of(miniature)
    after = train_whole(miniature, tmp_path / "out", block_lr=",".join(rates), max_train_steps=1).tensors()
    same = {key.split(".")[2] for key in learned(before) if torch.equal(before[key].float(), after[key].float())}
    assert same == {"time_embed", "label_emb", "out"}


def test_blocks_of_the_unet_are_counted_as_in_sd_scripts() -> None:
    assert [
        block_of(name)
        for name in (
            *("time_embedding.linear_1.weight", "add_embedding.linear_2.bias", "conv_in.weight"),
            *("down_blocks.0.resnets.0.conv1.weight", "down_blocks.2.attentions.1.proj_in.weight"),
            *("mid_block.attentions.0.norm.weight", "up_blocks.0.resnets.0.conv1.weight"),
            *("up_blocks.2.resnets.2.norm1.weight", "conv_norm_out.weight", "conv_out.bias"),
        )
    ] == [0, 0, 1, 2, 9, 11, 13, 21, 22, 22]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"blocks_to_swap": 2}, "blocks_to_swap: trained blocks can be swapped only in bf16; set full_bf16"),
        (
            {"fused_backward_pass": True, "gradient_accumulation_steps": 2},
            "fused_backward_pass: frees each gradient immediately",
        ),
        (
            {"fused_backward_pass": True, "blockwise_fused_optimizers": True},
            "fused_backward_pass: cannot be combined with blockwise_fused_optimizers",
        ),
        ({"learning_rate": 0.0}, "learning_rate: all learning rates are 0"),
        ({"full_bf16": True}, "full_bf16: needs mixed_precision = bf16"),
        ({"resume": "nowhere"}, "resume: folder not found: 'nowhere'"),
    ],
)
def test_bad_input_is_one_sentence(
    values: dict[str, Any], why: str, any_miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = train_whole(any_miniature, tmp_path / "out", **values)
    told = capsys.readouterr().err
    assert ours.status == 2
    assert why in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"block_lr": "1,2"}, "block_lr: has 2 values; give 23"),
        ({"block_lr": "a,b"}, "block_lr: 'a,b' is not a comma-separated list of numbers"),
        ({"train_text_encoder": True}, "cache_text_encoder_outputs: text encoders cannot be trained"),
        (
            {**HALF, "blocks_to_swap": 2, "fused_optimizer_groups": 4},
            "fused_optimizer_groups: updates weights of several blocks together",
        ),
        (
            {**HALF, "blocks_to_swap": 10},
            "blocks_to_swap: 10 exceeds 9, the most that a U-Net with 11 transformer blocks of the largest size can",
        ),
    ],
)
def test_bad_input_of_sdxl_is_one_sentence(
    values: dict[str, Any], why: str, miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_whole(miniature, tmp_path / "out", **values).status == 2
    assert why in capsys.readouterr().err


def test_network_options_have_no_effect_on_full_training(
    miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = settings_for(miniature)["pretrained_model_name_or_path"]
    flags = ["--pretrained_model_name_or_path", str(model), "--network_dim", "4"]
    assert run(flags, tmp_path, "sdxl", "full").status == 2
    assert "network_dim" in capsys.readouterr().err
