"""Every optimizer of the list is created through its own library and trains."""

import inspect
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from sd_scripts.library.optim.optimizers import description, eval_mode, make_optimizer, train_mode
from sd_scripts.library.optim.recordable import ScalesGradients
from sd_scripts.options.optimization.optimizer import OptimizerOptions, remarks
from sd_scripts.options.optimization.optimizer_args import TAKEN
from sd_scripts.options.optimization.optimizer_table import OPTIMIZERS

warnings.filterwarnings("ignore", module="bitsandbytes")
INSTALLED = {name: known for name, known in OPTIMIZERS.items() if known.installed}


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(8, 8))


def named(name: str, *arguments: str, rate: float = 0.01) -> OptimizerOptions:
    return OptimizerOptions(optimizer_type=name, optimizer_args=list(arguments), learning_rate=rate)


@pytest.mark.parametrize("name", INSTALLED)
def test_each_name_in_any_case_creates_an_optimizer_that_changes_the_weights(name: str) -> None:
    parameter = weight()
    optimizer = make_optimizer(
        named(name.upper(), rate=1.0 if OPTIMIZERS[name].finds_its_rate else 0.01), [{"params": [parameter]}]
    )
    train_mode(optimizer)
    for _ in range(8):  # RAdam without a schedule waits for six steps
        parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()
    eval_mode(optimizer)
    assert (parameter < 1).all()


def test_each_package_of_the_table_is_among_the_requirements() -> None:
    lines = (Path(__file__).parents[3] / "requirements.txt").read_text().splitlines()
    required = {re.split(r"[=<>; \[]", line)[0].lower().replace("_", "-") for line in lines}
    assert {known.package for known in INSTALLED.values()} <= required


def test_the_table_names_the_optimizers_that_round_weights_and_refresh_copies_themselves() -> None:
    def rounds(name: str) -> bool:
        half = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
        return isinstance(make_optimizer(named(name), [{"params": [half]}], rounding=True), ScalesGradients)

    assert [name for name in INSTALLED if rounds(name)] == [n for n, known in INSTALLED.items() if known.updates_halves]


def test_the_default_is_fused_adamw_with_a_tensor_as_rate_of_each_group() -> None:
    options = OptimizerOptions(learning_rate=0.01)
    groups = [{"params": [weight()], "lr": 0.5}, {"params": [weight()]}]
    optimizer = make_optimizer(options, groups)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["fused"]
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(isinstance(rate, torch.Tensor) for rate in rates)
    assert [round(float(rate), 6) for rate in rates] == [0.5, 0.01]


def test_a_loaded_state_goes_into_the_same_rate_tensors() -> None:
    saved = make_optimizer(named("AdamW", rate=0.25), [{"params": [weight()]}])
    optimizer = make_optimizer(named("AdamW", rate=0.01), [{"params": [weight()]}])
    rate = optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(saved.state_dict())
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


def test_adamw_accepts_foreach_instead_of_fused() -> None:
    optimizer = make_optimizer(named("AdamW", "foreach=True"), [{"params": [weight()]}])
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_optimizer_args_are_python_values_and_may_contain_an_equals_sign() -> None:
    options = named("AdamW", "betas=(0.8, 0.9)", " weight_decay = 0.5 ")
    optimizer = make_optimizer(options, [{"params": [weight()]}])
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert description(optimizer, options) == "torch.optim.adamw.AdamW(betas=(0.8, 0.9),weight_decay=0.5)"
    with pytest.raises(ValueError, match=r"optimizer_args: 'a=b', the value of mode, is not a Python value"):
        make_optimizer(named("AdamW", "mode=a=b"), [{"params": [weight()]}])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (named("AdamW", "betas"), "optimizer_args: 'betas' is not of the form key=value"),
        (named("AdamW", "beta=1"), "optimizer_args, learning_rate: AdamW does not accept these values .*'beta'"),
        (named("AdamX"), "optimizer_type: not found: 'torch.optim.AdamX'.*known names are AdamW"),
        (
            named("nowhere.AdamX"),
            "cannot find 'nowhere.AdamX', because the package nowhere is not installed: install it",
        ),
        (named("CAME"), "cannot find 'came_pytorch.CAME', because .* not installed: pip install came-pytorch"),
        (named("prodigyplus.ProdigyPlusScheduleFree"), "not installed: pip install prodigy-plus-schedule-free"),
        (named("torch.optim.adamw.adamw"), "optimizer_type: 'torch.optim.adamw.adamw' is not a class"),
    ],
)
def test_a_scheduler_that_cannot_be_created_is_reported_in_one_sentence(
    options: OptimizerOptions, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_optimizer(options, [{"params": [weight()]}])


@pytest.mark.parametrize("path", ["RMSprop", "torch.optim.RMSprop", "lion_pytorch.Lion"])
def test_any_class_can_be_named_by_its_path(path: str) -> None:
    assert type(make_optimizer(named(path), [{"params": [weight()]}])).__name__ == path.split(".")[-1]


def test_adafactor_sets_its_own_rate_by_default() -> None:
    groups = [{"params": [weight()], "lr": 0.5}]
    assert make_optimizer(named("Adafactor"), groups).param_groups[0]["lr"] is None
    assert make_optimizer(named("Adafactor", "relative_step=False"), groups).param_groups[0]["lr"] == 0.5
    both = make_optimizer(named("Adafactor", "relative_step=False", "warmup_init=True"), groups)
    assert both.defaults["relative_step"], "warmup_init is a relative step"
    assert "ignores them" in remarks(named("Adafactor"))[0]


def test_optimizers_that_find_their_rate_need_one_rate_near_1() -> None:
    groups = [{"params": [weight()], "lr": 1.0}, {"params": [weight()], "lr": 0.5}]
    with pytest.raises(ValueError, match=r"unet_lr, text_encoder_lr: Prodigy uses a single learning rate.* 0.5, 1.0"):
        make_optimizer(named("prodigy"), groups)
    assert remarks(named("Prodigy", rate=1.0)) == []
    assert "1 is usual" in remarks(named("Prodigy", rate=1e-4))[0]


def test_schedule_free_weights_differ_between_training_and_saving() -> None:
    parameter = weight()
    optimizer = make_optimizer(named("AdamWScheduleFree"), [{"params": [parameter]}])
    train_mode(optimizer)
    for _ in range(3):
        parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()
    trained = parameter.detach().clone()
    eval_mode(optimizer)
    assert not torch.equal(parameter, trained)
    train_mode(optimizer)
    torch.testing.assert_close(parameter.detach(), trained)


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgdnesterov", torch.optim.SGD)])
def test_the_arguments_known_before_torch_is_imported_match_the_optimizers(name: str, kind: type) -> None:
    assert TAKEN[name].keys() == inspect.signature(kind).parameters.keys() - {"params", "lr"}
