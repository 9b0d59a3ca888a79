"""The preset that settings start from, and what differs from it."""

from pathlib import Path
from typing import Any

import pytest

from kohya_gui.form.configuration import open_file
from kohya_gui.form.controls import given
from kohya_gui.tabs import TABS
from kohya_gui.train.fits import recommended
from kohya_gui.train.starting_point import IN_CARDS, Preset, deviations, presets_of, starting_point
from sd_scripts.planning.fit import fit
from sd_scripts.settings.catalog import SCRIPTS, script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings

GIB = 2**30
KOHYA = Path(__file__).parents[2] / "reference" / "kohya_lora_defaults.json"


def of_preset(name: str, **changes: Any) -> Settings:
    preset = next(each for each in presets_of("lora", "sdxl") if each.name == name)
    return from_values(script_for("sdxl", "lora"), {**preset.values, **changes})


@pytest.mark.parametrize("tab", TABS)
def test_each_preset_is_its_own_starting_point_and_nothing_differs_from_it(tab: str) -> None:
    method = TABS[tab].method
    families = [script.family for script in SCRIPTS if script.method == method]
    presets = [(family, preset) for family in families for preset in presets_of(tab, family)]
    assert presets
    wrong = []
    for family, preset in presets:
        settings = from_values(script_for(family, method), preset.values)
        found = starting_point(settings, tab, "")
        if found != preset or deviations(settings, preset):
            wrong.append(preset.name)
    assert wrong == []


def test_only_what_differs_from_the_preset_is_listed_with_both_values() -> None:
    settings = of_preset("sdxl_safe_start", learning_rate=2e-4, output_name="cat", train_data_dir="cats", num_repeats=3)
    preset = starting_point(settings, "lora", "sdxl_safe_start")
    assert preset
    (found,) = deviations(settings, preset)
    assert (found["name"], found["value"], found["preset"]) == ("learning_rate", "0.0002", "0.0001")


def test_the_preset_that_was_chosen_stays_the_starting_point_whatever_differs() -> None:
    settings = of_preset("sdxl_low_memory_6gb")
    found = starting_point(settings, "lora", "sdxl_safe_start")
    assert found
    assert found.name == "sdxl_safe_start"
    assert "quantize_base" in [each["name"] for each in deviations(settings, found)]


def test_a_file_of_kohya_is_a_preset_and_what_differs_from_it() -> None:
    opened = open_file(KOHYA, TABS["lora"], "sdxl")
    settings = from_values(script_for(opened.family, "lora"), opened.values)
    preset = starting_point(settings, "lora", "")
    assert preset
    changes = {each["name"]: each["value"] for each in deviations(settings, preset)}
    options = settings.options
    rebuilt = {name: given(options[name], value) for name, value in changes.items()}
    together = from_values(settings.script, {**preset.values, **rebuilt})
    differing = {name for name, value in settings.values().items() if value != together.values()[name]}
    assert differing <= IN_CARDS


def preset(name: str) -> Preset:
    return Preset(name=name, title="", about="", values={})


def test_the_recommended_preset_is_the_first_if_it_fits_else_the_one_that_saves_as_little_as_needed() -> None:
    needed = {"a_safe_start": 20, "a_low_memory_8gb": 6, "a_low_memory_16gb": 12, "a_fast_compiled": 7}
    needed["a_small_low_memory_12gb"] = 10  # for one of the family's models
    presets = [preset(name) for name in needed]
    found = {size: recommended(presets, needed, size) for size in (0, 4, 6, 11, 12, 20, 80)}
    assert found == {
        0: "a_safe_start",
        4: "a_low_memory_8gb",
        6: "a_low_memory_8gb",
        11: "a_low_memory_8gb",
        12: "a_low_memory_16gb",
        20: "a_safe_start",
        80: "a_safe_start",
    }
    assert recommended([], {}, 8) == ""


def test_presets_that_save_memory_fit_the_gpu_in_their_name() -> None:
    wrong = []
    for script in SCRIPTS:
        for tab in (name for name, each in TABS.items() if each.method == script.method):
            presets = [each for each in presets_of(tab, script.family) if each.name.endswith("gb")]
            needed = fit({each.name: {**script.identity, **each.values} for each in presets})["needed"]
            for name, size in needed.items():
                if size is not None and size > int(name.rpartition("_")[2].removesuffix("gb")) * GIB:
                    wrong.append((tab, name, size / GIB))
    assert wrong == []
