"""A training that runs also learns: images of a miniature, before and after, show it."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from diffusers.optimization import get_scheduler
from diffusers.training_utils import compute_snr
from peft import LoraConfig, get_peft_model_state_dict

from benchmarks.learning import QUIET, success
from benchmarks.learning_compared import LORA_FILE, demo_options, training_of
from benchmarks.plain_training.loop import WEIGHT_DECAY
from sd_scripts import demo
from sd_scripts.families.common.family import StepInputs
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.testing import trained
from sd_scripts.testing.shapes import zorb_scene
from sd_scripts.training.execution.step_inputs import step_inputs
from tests.support.training import run

pytestmark = [pytest.mark.deep, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_a_lora_teaches_a_base_model_a_word_for_a_new_shape(tmp_path: Path) -> None:
    """Before under 10 % of the images show it, after over 80 %."""
    config = demo.make(tmp_path / "demo", "flux")
    short = {**QUIET, "reg_data_dir": "", "max_train_steps": 300}
    values = {**read_toml(config), **short, "output_name": "zorb"}
    write_toml(config, {name: value for name, value in values.items() if value != ""})
    files = {option: config.with_name(trained.file_name("flux", option)) for option in trained.options_of("flux")}
    random = Random(9)
    scenes = [zorb_scene(random) for _ in range(10)]
    fast = ("--steps=8",)
    assert success("flux", files, scenes, tmp_path / "before", fast)["all"] < 0.1
    output = tmp_path / "demo" / "output"
    assert run(["--config_file", str(config)], output, "flux").status == 0
    after = success("flux", files, scenes, tmp_path / "after", (*fast, f"--lora_weights={output / 'zorb.safetensors'}"))
    assert after["all"] > 0.8


def test_with_the_same_noise_sdxls_losses_equal_diffusers_and_pefts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five steps with min-SNR, from the same LoRA: each loss depends on all updates before it."""
    steps = 5
    recorded: list[StepInputs] = []

    def record(*arguments: Any) -> StepInputs:
        recorded.append(step_inputs(*arguments))
        return recorded[-1]

    options = demo_options("sdxl")
    config = demo.make(tmp_path / "demo", "sdxl")
    values = {**read_toml(config), **QUIET, "reg_data_dir": "", "max_train_steps": steps}
    write_toml(config, {name: value for name, value in values.items() if value != ""})
    kind = training_of("sdxl")
    kind.write_model(tmp_path / "model", options)
    plain: Any = kind(tmp_path / "model", options)
    unet = plain.denoiser.requires_grad_(False)
    rank = options["network_dim"]
    unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=plain.layers()))
    plain.save(tmp_path, get_peft_model_state_dict(unet))
    monkeypatch.setattr("sd_scripts.training.trainer.step_inputs", record)
    output = tmp_path / "output"
    flags = [f"--network_weights={tmp_path / LORA_FILE}", f"--run_dir={output / 'run'}"]
    result = run(["--config_file", str(config), *flags], output)
    assert result.status == 0
    ours = [event["loss"] for event in result.events_of("step")]

    parameters = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, options["learning_rate"], weight_decay=WEIGHT_DECAY)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=0, num_training_steps=steps)
    theirs = []
    for inputs in recorded:
        model, text = inputs.model, inputs.text
        states = torch.cat([text["hidden_state1"], text["hidden_state2"]], dim=-1)
        conditions = {"text_embeds": text["pool2"], "time_ids": model["sizes"]}
        times = model["timesteps"]
        prediction = unet(model["noisy"], times, states, added_cond_kwargs=conditions).sample
        snr = compute_snr(plain.schedule, times)
        weight = snr.clamp(max=options["min_snr_gamma"]) / snr
        loss = ((prediction - model["target"]).square().mean((1, 2, 3)) * weight).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-5)
