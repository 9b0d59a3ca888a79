"""Presets load, set nothing needless and leave only the user's own paths to fill in."""

from pathlib import Path

import pytest

from benchmarks.presets import METHODS, presets_of
from kohya_gui.print_command import print_command
from kohya_gui.tabs import TABS
from sd_scripts.data.plan.blueprint import parse_resolution
from sd_scripts.data.plan.buckets import Extent
from sd_scripts.data.plan.epochs import BatchShape
from sd_scripts.families.cards.registry import card_of, names, preset_family
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.compile import CompileOptions
from sd_scripts.planning.memory import plan_memory
from sd_scripts.settings.catalog import SCRIPTS, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from tests.support.gui import settings_in

FOLDER = Path(__file__).parent.parent / "presets"
PRESETS = sorted(FOLDER.glob("*/*.toml"))
FLUX = [preset for preset in PRESETS if preset.stem.startswith(("flux_", "flux2_", "krea2_", "chroma_", "z_image_"))]
QWEN_IMAGE = [preset for preset in PRESETS if preset.stem.startswith("qwen_image_")]
WAN = [preset for preset in PRESETS if preset.stem.startswith("wan_")]
HUNYUAN = [preset for preset in PRESETS if preset.stem.startswith(("hunyuan_video_", "framepack_"))]
ANIMA = [preset for preset in PRESETS if preset.stem.startswith("anima_")]
FULL = [preset for preset in PRESETS if preset.parent.name in ("dreambooth", "finetune")]
SMALL_KLEIN = [preset for preset in PRESETS if preset.stem.startswith("flux2_4b_")]
LITTLE = [preset for preset in PRESETS if "low_memory" in preset.stem]
WAYS = ("safe_start", "fast_compiled", "low_memory_12gb", "low_memory_16gb", "low_memory_24gb", "best_quality")
WAYS_OF_QWEN_IMAGE = ("safe_start", "fast_compiled", "low_memory_24gb")
"""Its text encoder alone needs 16 GB when a whole model is trained."""
PATHS = {"pretrained_model_name_or_path", "train_data_dir", "output_dir"}
SMALLER = {f"{tab}/sdxl_low_memory_8gb" for tab in ("dreambooth", "finetune")}
"""SDXL is trained in full on smaller GPUs than FLUX.1."""
PARTS = {"clip_l", "t5xxl", "ae"}


def name(preset: Path) -> str:
    return f"{preset.parent.name}/{preset.stem}"


def script_of(preset: Path) -> Script:
    return script_for(preset_family(preset.stem), TABS[preset.parent.name].method)


every_preset = pytest.mark.parametrize("preset", PRESETS, ids=name)


def test_every_tab_has_presets_of_its_own():
    assert {preset.parent.name for preset in PRESETS} == set(TABS)
    wanted = {
        f"{tab}/{family}_{way}" for tab in ("dreambooth", "finetune") for family in ("sdxl", "flux") for way in WAYS
    }
    wanted |= {
        f"{tab}/{family}_{way}"
        for tab in ("dreambooth", "finetune")
        for family in (
            "chroma",
            "flux2",
            "z_image",
            "krea2",
            "qwen_image",
            "qwen_image_edit",
            "wan",
            "wan_5b",
            "hunyuan_video",
            "framepack",
        )
        for way in WAYS_OF_QWEN_IMAGE
    }
    wanted |= {
        f"{tab}/anima_{way}"
        for tab in ("dreambooth", "finetune")
        for way in ("safe_start", "fast_compiled", "low_memory_12gb")
    }
    distilled = {f"{tab}/flux_kontext_{way}" for tab in ("dreambooth", "finetune") for way in WAYS[:-1]}
    assert {name(preset) for preset in FULL} == wanted | distilled | SMALLER


@every_preset
def test_a_preset_lacks_only_the_paths(preset):
    settings = from_values(script_of(preset), read_toml(preset))
    own = {"token_string"} if preset.parent.name == "textual_inversion" else set()
    assert {name for problem in settings.problems() for name in problem.names} - PARTS == PATHS | own
    paths = {"dit_high_noise": "high.safetensors"} if "_a14b_" in preset.stem else {}
    assert from_values(script_of(preset), {**read_toml(preset), **paths}).remarks == []


@every_preset
def test_a_preset_sets_only_values_that_differ_from_the_defaults(preset):
    said = read_toml(preset)
    assert said == from_values(script_of(preset), read_toml(preset)).changed()
    assert list(said) == sorted(said)
    assert preset.read_text(encoding="utf-8").startswith("# "), "it states for whom it is"


@every_preset
def test_a_preset_with_paths_becomes_a_command(preset, tmp_path, capsys):
    parts = {component.option for component in card_of(script_of(preset).family).files.separate_components}
    paths = {option: str(tmp_path / option) for option in PATHS | parts}
    paths |= {"token_string": "mycat", "output_name": "mycat"} if preset.parent.name == "textual_inversion" else {}
    write_toml(tmp_path / "in.toml", {**script_of(preset).identity, **read_toml(preset), **paths})
    assert print_command(preset.parent.name, tmp_path / "in.toml") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert script_of(preset).file in line
    assert settings_in(line, script_of(preset)) == {**read_toml(preset), **paths}


def test_presets_named_compiled_compile_and_each_script_has_one():
    compiled = [preset for preset in PRESETS if "compiled" in preset.stem]
    assert {script_of(preset).file for preset in compiled} == {script.file for script in SCRIPTS}
    assert all(from_values(script_of(preset), read_toml(preset))[CompileOptions].compile for preset in compiled)


@pytest.mark.parametrize("preset", FLUX + ANIMA + QWEN_IMAGE + WAN + HUNYUAN, ids=name)
def test_presets_train_at_the_recommended_timesteps(preset):
    card = card_of(preset_family(preset.stem))
    values = {**card.defaults, **read_toml(preset)}
    assert {name: values.get(name) for name in card.page.recommended} == card.page.recommended


@pytest.mark.parametrize("tab", METHODS)
def test_a_method_of_a_family_has_presets_for_smaller_gpus(tab):
    for family in (name for name in names() if METHODS[tab] in card_of(name).scripts):
        presets = [preset for preset in presets_of(family) if preset.cap and preset.name.startswith(f"{tab}/")]
        little = [preset for preset in LITTLE if preset.parent.name == tab and preset_family(preset.stem) == family]
        assert len(presets) == len(little) > 0


def _planned_image(preset):
    """Return the bytes in use that the plan expects for images of the preset's own resolution."""
    settings = preset.settings()
    extent = Extent(*parse_resolution(settings.value("resolution")))
    shape = BatchShape(extent=extent, images=settings.value("train_batch_size"))
    return plan_memory(settings, [shape]).in_use


def test_the_plan_of_each_preset_fits_the_gpu_that_it_names():
    presets = [preset for family in names() for preset in presets_of(family) if preset.cap]
    assert {preset.name for preset in presets if _planned_image(preset) > preset.cap} == set()
    assert min(preset.cap for preset in presets) == 6 * 10**9


@pytest.mark.parametrize(
    ("stem", "extent", "gigabytes"),
    [
        ("wan_a14b_low_memory_24gb", Extent(832, 480, 33), 24),
        ("wan_a14b_fast_compiled", Extent(832, 480, 81), 80),
        ("wan_5b_image_to_video", Extent(1280, 704, 49), 24),
    ],
)
def test_the_plan_of_a_preset_for_clips_fits_the_gpu_that_it_names(stem, extent, gigabytes):
    preset = FOLDER / "lora" / f"{stem}.toml"
    settings = from_values(script_of(preset), {**read_toml(preset), "dit_high_noise": "high.safetensors"})
    assert plan_memory(settings, [BatchShape(extent=extent, images=1)]).in_use < gigabytes * 10**9


@pytest.mark.parametrize("preset", LITTLE, ids=name)
def test_presets_for_little_memory_use_the_options_that_save_it(preset):
    said = read_toml(preset)
    assert said["gradient_checkpointing"]
    assert said["cache_latents"]
    assert said["cache_text_encoder_outputs"]
    if preset in FULL:
        assert said["full_bf16"]
        keeps_gradients = preset.stem in ("sdxl_low_memory_16gb", "sdxl_low_memory_24gb")  # so that steps are recorded
        assert said.get("fused_backward_pass", False) is not keeps_gradients
        assert said["optimizer_type"] == "Adafactor"
    elif preset in FLUX + QWEN_IMAGE + WAN + HUNYUAN and preset not in SMALL_KLEIN[:-1]:
        assert said.get("fp8_base") or said["quantize_base"] == "nf4"


@pytest.mark.parametrize("preset", FULL, ids=name)
def test_a_preset_for_a_whole_model_has_a_low_learning_rate(preset):
    assert 5e-6 <= read_toml(preset)["learning_rate"] <= 1e-5
