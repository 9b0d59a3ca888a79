"""Problems known before anything is loaded: all reported together, each once."""

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.access.allowed_paths import AllowedPaths
from sd_scripts import flux_train_network, sdxl_train_network
from sd_scripts.options.spec import Option
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from tests.support.scripts import FLUX_LORA, SDXL_LORA
from tests.support.suite.fresh import found_by_processes

SDXL_KEYS = ("conditioner.embedders.1.model.ln_final.weight", "first_stage_model.decoder.conv_in.weight")


def model(path: Path, *keys: str) -> Path:
    """A .safetensors file of these tensors, one number each."""
    entries = {key: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, key in enumerate(keys)}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * len(keys)))
    return path


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Any]:
    """Settings that nothing is wrong with."""
    images = tmp_path / "images" / "10_cat"
    images.mkdir(parents=True)
    (images / "one.png").touch()
    return {
        "pretrained_model_name_or_path": str(model(tmp_path / "sdxl.safetensors", *SDXL_KEYS)),
        "train_data_dir": str(tmp_path / "images"),
        "output_dir": str(tmp_path / "out" / "deeper"),
        "resolution": "1024",
        "learning_rate": 1e-4,
    }


def told(values: dict[str, Any], script: Script = SDXL_LORA) -> list[str]:
    return [str(problem) for problem in preflight.problems(from_values(script, values))]


def test_a_good_run_is_silent_and_writes_nothing(good: dict[str, Any], tmp_path: Path) -> None:
    assert told(good) == []
    assert not (tmp_path / "out").exists()


def test_a_start_checks_and_uses_the_same_prompts(good: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a cat --q 3")
    settings = from_values(SDXL_LORA, {**good, "sample_prompts": str(file)})
    assert AllowedPaths.within([tmp_path]).problems_of(settings) == []
    assert preflight.problems(settings) == []
    file.write_text("a dog")
    assert preflight.remarks(settings)[-1] == f"sample_prompts: '{file}', line 1: --q: unknown option"
    prompts = preflight.prompt_file(settings.replaced({"seed": 3}))
    assert prompts
    assert [entry.keys["prompt"] for entry in prompts.entries] == ["a cat"]


def test_mistakes_of_every_kind_are_reported_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / "5_dog").mkdir(parents=True)
    (tmp_path / "lora.safetensors").write_bytes(b"cut")
    (tmp_path / "in the way").touch()
    flags = [
        "--netwrok_dim=8", "--train_batch_size=0", f"--pretrained_model_name_or_path={tmp_path / 'lora.safetensors'}",
        f"--train_data_dir={tmp_path / 'data'}", f"--sample_prompts={tmp_path / 'prompts.txt'}",
        f"--output_dir={tmp_path / 'in the way' / 'out'}", f"--network_weights={tmp_path / 'none.safetensors'}",
    ]  # fmt: skip
    assert sdxl_train_network.main(flags) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "--netwrok_dim",
        "train_batch_size",
        "resolution",
        "pretrained_model_name_or_path",
        "network_weights",
        "train_data_dir",
        "sample_prompts",
        "output_dir",
    ]


def test_bad_input_is_refused_before_torch_is_imported(good: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "not.toml").write_text("resolution = ")
    flags = [f"--{name}={value}" for name, value in good.items()]
    cases: dict[str, tuple[str, list[str]]] = {
        "--netwrok_dim": ("sdxl_train_network", [*flags, "--netwrok_dim=8"]),
        "train_batch_size": ("sdxl_train", [*flags, "--train_batch_size=0"]),
        "pretrained_model_name_or_path": ("flux_train", [*flags, "--pretrained_model_name_or_path=none.safetensors"]),
        "config_file": ("flux_train_network", [f"--config_file={tmp_path / 'not.toml'}"]),
        "prompt": ("sdxl_generate", flags[:1]),
        "output_dir": ("sdxl_train_network", [*flags, "--output_dir=/proc/studio"]),
    }
    code = (
        "import contextlib, importlib, io, json, sys\n"
        "for name, (script, argv) in json.loads(sys.argv[1]).items():\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as console:\n"
        "        try:\n"
        "            status = importlib.import_module(f'sd_scripts.{script}').main(argv)\n"
        "        except SystemExit as ended:\n"
        "            status = ended.code\n"
        "    assert status == 2 and console.getvalue().startswith(f'{name}: '), console.getvalue()\n"
        "print(*{'torch', 'numpy', 'cv2', 'transformers', 'diffusers'} & {*sys.modules})\n"
    )
    command = [sys.executable, "-c", code, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=found_by_processes(), check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_mistakes_that_need_torch_and_the_model_are_reported_together(
    good: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--{name}={value}" for name, value in good.items()]
    wrong = ["--mixed_precision=fp16", "--compile", "--compile_options", "max_autotun=True"]
    assert sdxl_train_network.main([*flags, *wrong]) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "compile_options: inductor has no option max_autotun. Did you mean max_autotune?",
        "mixed_precision: fp16 is for GPUs; set bf16, or no",
    ]


def test_a_settings_file_with_a_missing_model_and_a_component_of_a_different_kind_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "5_dog").mkdir(parents=True)
    clip = model(tmp_path / "clip.safetensors", "text_model.final_layer_norm.weight")
    (tmp_path / "run.toml").write_text(
        f"pretrained_model_name_or_path = 'none.safetensors'\ntrain_data_dir = '{tmp_path / 'data'}'\n"
        f"output_dir = '{tmp_path}'\nt5xxl = '{clip}'\nclip_l = '{clip}'\nae = '{clip}'\n"
    )
    flags = [f"--config_file={tmp_path / 'run.toml'}", "--netwrok_dim=8"]
    assert flux_train_network.main(flags) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "--netwrok_dim",
        "resolution",
        "pretrained_model_name_or_path",
        "t5xxl",
        "ae",
        "train_data_dir",
        "Note",
        "Note",
    ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"pretrained_model_name_or_path": "none.safetensors"},
            "pretrained_model_name_or_path: file or folder not found",
        ),
        ({"pretrained_model_name_or_path": "lora.safetensors"}, "pretrained_model_name_or_path: 'lora.safetensors' is"),
        ({"pretrained_model_name_or_path": "flux.safetensors"}, "pretrained_model_name_or_path: 'flux.safetensors' is"),
        (
            {"optimizer_type": "came"},
            "optimizer_type: cannot find 'came_pytorch.CAME', because the package came_pytorch",
        ),
        ({"optimizer_type": "mine.Optimizer"}, ""),
        ({"vae": "none"}, "vae: file or folder not found: 'none'"),
        ({"vae": "flux.safetensors"}, "vae: 'flux.safetensors' is FLUX.1 schnell, not a VAE for SDXL"),
        (
            {"network_weights": "sdxl.safetensors"},
            "network_weights: 'sdxl.safetensors' is an SDXL checkpoint, not a LoRA",
        ),
        ({"pretrained_model_name_or_path": "bare.safetensors"}, "vae: 'bare.safetensors' contains no VAE; set vae to"),
        ({"pretrained_model_name_or_path": "bare.safetensors", "vae": "owner/name"}, ""),
        ({"base_weights": ["lora.safetensors", "no"]}, "base_weights: file not found: 'no'"),
        ({"train_data_dir": "none"}, "train_data_dir: folder not found: 'none'"),
        ({"train_data_dir": "images/10_cat"}, ""),
        ({"train_data_dir": "empty"}, "train_data_dir: no images (png, jpg, webp, bmp) in 3_dog"),
        ({"reg_data_dir": "empty"}, "reg_data_dir: no images"),
        ({"in_json": "none.json"}, "in_json: file not found: 'none.json'"),
        ({"in_json": "list.json"}, "in_json: 'list.json' is not a metadata file: it must contain a table"),
        ({"dataset_config": "none.toml"}, "dataset_config: file not found: 'none.toml'"),
        ({"dataset_config": "data.toml"}, "dataset_config: datasets[0].subsets[0].image_dir (line 3): folder"),
        ({"masked_loss": True, "conditioning_data_dir": "x"}, "conditioning_data_dir: folder not found: 'x'"),
        ({"sample_prompts": "none.txt"}, "sample_prompts: file not found: 'none.txt'"),
        ({"resume": "none"}, "resume: folder not found: 'none'"),
        ({"resume": "latest"}, ""),
        ({"metadata_thumbnail": "none.png"}, "metadata_thumbnail: "),
        ({"metadata_thumbnail": "data:image/png;base64," + "a" * 9000}, ""),
        ({"output_dir": "list.json"}, "output_dir: 'list.json' cannot be written to (Not a directory)"),
        ({"console_log_file": "nowhere/x.log"}, "console_log_file: 'nowhere/x.log' cannot be written"),
        ({"log_tracker_config": "prompts.txt"}, "log_tracker_config: 'prompts.txt' is not TOML"),
    ],
    ids=lambda value: "-".join(map(str, next(iter(value.items()))))[:60] if isinstance(value, dict) else "",
)
def test_a_file_or_folder_is_described(
    wrong: dict[str, Any], sentence: str, good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "lora.safetensors", "lora_te2_x.lora_down.weight", "lora_te2_x.lora_up.weight")
    model(tmp_path / "bare.safetensors", SDXL_KEYS[0])
    model(tmp_path / "flux.safetensors", "double_blocks.0.img_attn.qkv.weight")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "prompts.txt").write_text("a cat")
    (tmp_path / "data.toml").write_text("[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'x'\n")
    (tmp_path / "empty" / "3_dog").mkdir(parents=True)
    found = told({**good, **wrong})
    assert len(found) == bool(sentence), found
    assert not sentence or found[0].startswith(sentence), found


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"optimizer_args": ["weight_decya=0.1"]},
            "optimizer_args: AdamW does not accept weight_decya. Did you mean weight_",
        ),
        ({"optimizer_args": ["d_coef=2"]}, "optimizer_args: AdamW does not accept d_coef. It takes amsgrad, betas, "),
        ({"optimizer_args": ["betas=0.9"]}, "optimizer_args: betas=0.9 must be two numbers of at least 0 and below 1"),
        ({"optimizer_args": ["betas=0.9,0.99"]}, ""),
        ({"optimizer_args": ["betas=(0.9, 1.0)"]}, "optimizer_args: betas=(0.9, 1.0) must be two numbers"),
        ({"optimizer_args": ["weight_decay='a'"]}, "optimizer_args: weight_decay='a' must be a number of at least 0"),
        ({"optimizer_args": ["eps=1e-8", "lr=1"]}, "optimizer_args: lr is set by learning_rate"),
        ({"optimizer_args": ["fused=None", "amsgrad=True"]}, ""),
        ({"optimizer_args": ["momentum=abc"], "optimizer_type": "SGDNesterov"}, "optimizer_args: 'abc', the value of"),
        ({"optimizer_args": ["nesterov=1.5"], "optimizer_type": "sgdnesterov"}, "optimizer_args: nesterov=1.5 must be"),
        ({"optimizer_args": ["x=y"], "optimizer_type": "Lion"}, "optimizer_args: 'y', the value of x, is not a Python"),
        ({"optimizer_args": ["d_coef=2"], "optimizer_type": "Prodigy"}, ""),
        ({"lr_scheduler_args": ["gamma=a b"]}, "lr_scheduler_args: 'a b', the value of gamma, is not a Python value"),
        ({"lr_scheduler_args": ["gamma=0.9"]}, ""),
        ({"network_args": ["conv_dim=four"]}, "network_args: conv_dim=four is not a number or a list of numbers"),
        ({"network_args": ["conv_dim=2.5"]}, "network_args: conv_dim=2.5 must be a whole number"),
        ({"network_args": ["rank_dropout=1"]}, "network_args: rank_dropout=1 drops everything"),
        ({"network_args": ["loraplus_lr_ratio=-4"]}, "network_args: loraplus_lr_ratio=-4 must be at least 0"),
        ({"network_args": ["conv_dim=four", "algo=dylora"], "network_module": "lycoris.kohya"}, ""),
    ],
    ids=lambda value: "-".join(map(str, next(iter(value.values())))) if isinstance(value, dict) else "",
)
def test_arguments_with_known_signatures_are_reported_with_all_other_problems(
    wrong: dict[str, Any], sentence: str, good: dict[str, Any]
) -> None:
    found = told({**good, **wrong})
    assert len(found) == bool(sentence), found
    assert not sentence or found[0].startswith(sentence), found


VARYING = {
    **{"shuffle_caption": "true", "enable_wildcard": "true", "caption_dropout_rate": "0.1"},
    **{"caption_dropout_every_n_epochs": "2", "caption_tag_dropout_rate": "0.1", "token_warmup_step": "5"},
    **{"color_aug": "true", "random_crop": "true"},
}


@pytest.mark.parametrize("level", ["general", "datasets[0]", "datasets[0].subsets[0]"])
def test_data_that_varies_at_every_step_cannot_be_cached(level: str, good: dict[str, Any], tmp_path: Path) -> None:
    keys = "\n".join(f"{key} = {value}" for key, value in VARYING.items())
    at = {"general": "", "datasets[0]": "", "datasets[0].subsets[0]": "", level: keys}
    folder = tmp_path / "images" / "10_cat"
    (tmp_path / "data.toml").write_text(
        f"[general]\n{at['general']}\n[[datasets]]\n{at['datasets[0]']}\n[[datasets.subsets]]\n"
        f"image_dir = '{folder}'\n{at['datasets[0].subsets[0]']}\n"
    )
    values = {**good, "train_data_dir": None, "dataset_config": str(tmp_path / "data.toml")}
    assert told(values) == []
    cached = told(
        {**values, "cache_latents_to_disk": True, "cache_text_encoder_outputs": True, "network_train_unet_only": True}
    )
    paths = {sentence.split()[1] for sentence in cached if "at every step" in sentence}
    assert paths == {f"{level}.{key}" for key in VARYING}


def test_a_subset_may_override_its_dataset_and_frozen_encoders_vary_nothing(
    good: dict[str, Any], tmp_path: Path
) -> None:
    subset = f"[[datasets.subsets]]\nimage_dir = '{tmp_path / 'images' / '10_cat'}'\n"
    (tmp_path / "data.toml").write_text(
        f"[[datasets]]\nshuffle_caption = true\n{subset}shuffle_caption = false\n{subset}num_repeats = 0\n"
        f"[[datasets]]\nshuffle_caption = true\nvalidation_split = 1.0\n{subset}"
    )
    values = {**good, "train_data_dir": None, "dataset_config": str(tmp_path / "data.toml")}
    assert told({**values, "cache_text_encoder_outputs": True, "network_train_unet_only": True}) == []


def test_a_dataset_without_resolution_and_with_an_unknown_filter_is_reported(
    good: dict[str, Any], tmp_path: Path
) -> None:
    subset = f"[[datasets.subsets]]\nimage_dir = '{tmp_path / 'images' / '10_cat'}'\n"
    (tmp_path / "data.toml").write_text(
        f"[[datasets]]\nresolution = 64\n{subset}resize_interpolation = 'banana'\n[[datasets]]\n{subset}"
    )
    values = {**good, "resolution": None, "train_data_dir": None, "dataset_config": str(tmp_path / "data.toml")}
    assert [sentence.partition("; ")[0] for sentence in told(values)] == [
        "dataset_config: datasets[1] (line 6) has no resolution",
        "dataset_config: datasets[0].subsets[0].resize_interpolation (line 5) must be one of lanczos, nearest, "
        "bilinear, linear, bicubic, cubic, area, not 'banana'",
    ]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everywhere")
def test_an_unreadable_image_folder_is_reported(good: dict[str, Any], tmp_path: Path) -> None:
    closed = tmp_path / "closed" / "3_dog"
    closed.mkdir(parents=True)
    closed.chmod(0)
    (tmp_path / "data.toml").write_text(f"[[datasets]]\n[[datasets.subsets]]\nimage_dir = '{closed}'\n")
    assert "cannot be read: Permission denied" in told({**good, "train_data_dir": str(closed.parent)})[0]
    assert "cannot be read: Permission denied" in told({**good, "dataset_config": str(tmp_path / "data.toml")})[0]


def test_flux_components_that_neither_an_option_nor_the_model_names_are_reported(
    good: dict[str, Any], tmp_path: Path
) -> None:
    flux = str(model(tmp_path / "flux.safetensors", "double_blocks.0.img_attn.qkv.weight"))
    clip = str(model(tmp_path / "clip.safetensors", "text_model.final_layer_norm.weight"))
    parts = told({**good, "pretrained_model_name_or_path": flux, "clip_l": clip, "t5xxl": clip}, FLUX_LORA)
    assert [problem.partition(":")[0] for problem in parts] == ["t5xxl", "ae"]
    assert told({**good, "clip_l": clip, "t5xxl": flux, "ae": flux}, FLUX_LORA)[0].endswith(
        "choose the model family SDXL, or run sdxl_train_network.py instead"
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(good: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert told({**good, "output_dir": str(tmp_path / "closed" / "out")}) == [
        f"output_dir: '{tmp_path / 'closed' / 'out'}' cannot be written to (Permission denied); choose another folder"
    ]


ODD: tuple[Any, ...] = (
    True, -1, 10**30, 0.5, math.nan, math.inf, "", " ", "nan", "-inf", "1e400", "a\0b", "~\0/x", "~nobody/x", "a\nb",
    "x" * 300, "x" * 5_000, "\ud800", [], [[1]], {"a": 1}, [None], ["a"], ["\0"], ["a=" + "[" * 5_000],
    "../x", "/", "..", "a..b", "1,", date(2020, 1, 1), b"x",
)  # fmt: skip
"""Values that a file, a flag or another program may pass."""


def options_by_script() -> list[tuple[Script, dict[str, Option]]]:
    """The scripts that have options of their own or train by a method of their own, with all their options."""
    found: list[tuple[Script, dict[str, Option]]] = []
    known: set[str] = set()
    for script in SCRIPTS:
        options = {o.name: o for group in script.groups for o in each_option(group)}
        if options.keys() - known or script.method not in {other.method for other, _ in found}:
            found.append((script, options))
        known |= options.keys()
    return found


@pytest.mark.run
def test_odd_values_of_any_option_fail_only_in_short_sentences(good: dict[str, Any]) -> None:
    """Values that an option refuses are given to all of them together; one that it accepts is given to it alone."""
    found: list[str] = []
    scripts = options_by_script()
    script, options = scripts[-1]
    for value in ODD:
        for each, names in scripts:
            found += told(good | dict.fromkeys(names, value), each)
        taken = [o.name for o in options.values() if o.problem(o.read(value)) is None and o.type is str]
        for name in taken:
            found += told({**good, name: value}, script)
    assert found
    assert [problem for problem in found if "\n" in problem or len(problem) > 1000] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.touch(),
        lambda path: path.write_bytes(bytes(range(256)) * 20),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("a = " + "[" * 100_000),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.name),
        pytest.param(
            lambda path: os.mkfifo(path), marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
        ),
        lambda path: None,
    ],
    ids=["empty", "binary", "deep JSON", "deep TOML", "folder", "loop", "pipe", "nothing"],
)
@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("pretrained_model_name_or_path", ".safetensors"),
        ("pretrained_model_name_or_path", ".ckpt"),
        ("vae", ".safetensors"),
        ("network_weights", ".pt"),
        ("base_weights", ".safetensors"),
        ("clip_l", ".safetensors"),
        ("in_json", ".json"),
        ("in_json", ".jsonl"),
        ("dataset_config", ".toml"),
        ("dataset_config", ".json"),
        ("sample_prompts", ".toml"),
        ("sample_prompts", ".json"),
        ("log_tracker_config", ".toml"),
    ],
)
def test_every_path_that_is_not_a_file_is_reported_by_its_option(
    name: str, ending: str, make: Callable[[Path], Any], good: dict[str, Any], tmp_path: Path
) -> None:
    """A pipe is never waited for."""
    file = tmp_path / f"file{ending}"
    make(file)
    script = FLUX_LORA if name == "clip_l" else SDXL_LORA
    found = told({**good, name: [str(file)] if name == "base_weights" else str(file)}, script)
    if ending == ".toml" and file.is_file() and not file.stat().st_size and name != "sample_prompts":
        return  # an empty TOML file is one
    assert [problem for problem in found if problem.startswith(f"{name}: ")], found


def test_impossible_file_names_are_reported(good: dict[str, Any]) -> None:
    for path, why in (("a\0b", "control character"), ("a\tb", "control character"), ("x" * 300, "too long")):
        for name in ("vae", "train_data_dir", "sample_prompts", "output_dir", "logging_dir", "resume"):
            (problem,) = told({**good, name: path})
            assert problem.startswith(f"{name}: ")
            assert why in problem


def test_an_impossible_file_extension_is_reported(good: dict[str, Any], tmp_path: Path) -> None:
    (problem,) = told({**good, "caption_extension": "/../x"})
    assert problem.startswith("caption_extension: '/../x' is not a file extension")
    config = tmp_path / "data.toml"
    config.write_text(f"[[datasets]]\n[[datasets.subsets]]\nimage_dir = '{tmp_path}'\ncaption_extension = '/x'\n")
    assert "(line 4) must be a file extension" in told({**good, "dataset_config": str(config)})[0]
