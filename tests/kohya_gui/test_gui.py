"""The form, the files and the refusals of the GUI, without a browser."""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from kohya_gui import app, command
from kohya_gui.app import build
from kohya_gui.dataset import recognise_images
from kohya_gui.dreambooth_gui import DREAMBOOTH
from kohya_gui.finetune_gui import FINETUNE
from kohya_gui.form import recognise
from kohya_gui.form.configuration import config_path, open_file, prepare, tab_for
from kohya_gui.form.controls import Form, given, kind, shown
from kohya_gui.form.draft import Draft
from kohya_gui.form.field_links import NAME
from kohya_gui.form.panels import TIMESTEPS
from kohya_gui.form.presets import BASE_MODEL, PRESETS, preset_title, preset_words
from kohya_gui.form.training import Training
from kohya_gui.form.training_tab import TrainingTab, hint, offer, output_hint
from kohya_gui.lora_gui import LORA, open_configuration, save_configuration
from kohya_gui.runs.past_runs import why_not
from kohya_gui.runs.run_view import duration, newest_state, sections, speed
from kohya_gui.runs.runs_gui import PLAN, printed_command
from kohya_gui.server.messages import message
from kohya_gui.tabs import TABS
from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import cards, preset_family
from sd_scripts.families.flux.card.options import RECOMMENDED
from sd_scripts.formats.toml_files import read_toml, toml_text
from sd_scripts.options.compile import CompileMoreOptions, CompileOptions
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.run_state import OutputFile, RunState, SentCommand, State
from sd_scripts.runs.store import RunRow, RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from tests.support.gui import SIX, startable
from tests.support.scripts import FLUX_LORA, SDXL_FULL, SDXL_LORA

WITH_CLIP = ("flux", "flux_kontext")
FLUX_FAMILIES = tuple(card.name for card in cards() if card.trains("flux"))
QWEN_FAMILIES = tuple(card.name for card in cards() if card.trains("qwen_image"))
WAN_FAMILIES = tuple(card.name for card in cards() if card.trains("wan"))
HUNYUAN_FAMILIES = tuple(card.name for card in cards() if card.trains("hunyuan_video"))
FLOW_FAMILIES = (*FLUX_FAMILIES, "flux2", "anima", "krea2", *QWEN_FAMILIES, "z_image", *WAN_FAMILIES, *HUNYUAN_FAMILIES)
COMPILE = [o.name for o in each_option(CompileOptions)]
MORE = [o.name for o in each_option(CompileMoreOptions)]


@pytest.fixture(scope="module")
def tabs(tmp_path_factory) -> dict[str, TrainingTab]:
    """Name -> a tab of the page."""
    queue = RunQueue(RunStore(tmp_path_factory.mktemp("state") / "runs.sqlite"))
    with gr.Blocks():
        made = [TrainingTab(training, queue, "launch") for training in (LORA, DREAMBOOTH, FINETUNE)]
        for each in made:
            each.connect_others(made)
    return {each.name: each for each in made}


@pytest.fixture(scope="module")
def tab(tabs) -> TrainingTab:
    return tabs["lora"]


@pytest.fixture(scope="module")
def form(tab) -> Form:
    return tab.form


@pytest.fixture(scope="module", params=["lora", "dreambooth", "finetune"])
def each_tab(request, tabs) -> TrainingTab:
    return tabs[request.param]


def page_after(form: Form, values: dict) -> dict:
    """What Gradio hands to a function once `values` were written to the page."""
    updates, _ = form.write(values)
    return {component: updates[component] for component in form.controls.values()}


def test_every_option_that_works_has_one_control(each_tab):
    method, controls = each_tab.training.tab.method, each_tab.form.controls
    options = [o for s in SCRIPTS if s.method == method for group in s.groups for o in each_option(group)]
    expected = {o.name for o in options if not o.not_yet and method in o.methods} - {"run_dir"}
    if not shutil.which("sbatch"):
        expected -= {o.name for o in each_option(SlurmOptions)}
    assert set(controls) == expected
    assert len({id(c) for c in controls.values()}) == len(expected)


def test_a_new_page_starts_with_the_preset_that_it_names(each_tab):
    form, folder = each_tab.form, PRESETS / each_tab.name
    defaults = {name: form.options[name].default for name in form.controls}
    preset = each_tab.training.open_configuration(folder / "sdxl_safe_start.toml").values
    read = form.read({c: c.value for c in form.controls.values()})
    assert read == {**defaults, **RECOMMENDED, **preset, "output_dir": "outputs"}
    assert each_tab.preset.value == "sdxl_safe_start"


def test_saved_and_visible_options_of_a_tab_have_its_name(each_tab):
    kept = (each_tab.draft.state, each_tab.unknown, each_tab.recent, each_tab.opened)
    shown_there = [*each_tab.form.controls.values(), each_tab.run.start, each_tab.file]
    assert all(state.storage_key.startswith(f"{each_tab.name}-") for state in kept)
    assert all(component.elem_id.startswith(f"{each_tab.name}-") for component in shown_there)


def test_each_tab_shows_its_own_options(each_tab):
    first = {name for panel in each_tab.training.panels for name in panel.names}
    mine = {
        "lora": {"network_dim", "fp8_base", "unet_lr"},
        "dreambooth": {"reg_data_dir", "prior_loss_weight", "train_text_encoder", "fused_backward_pass", "full_bf16"},
        "finetune": {"in_json", "dataset_repeats", "dataset_config", "block_lr", "fused_optimizer_groups"},
    }
    assert mine[each_tab.name] <= first
    panels = [accordion.label for accordion, _ in each_tab.form._panels]
    assert {"EMA", "Memory", "Timesteps", CompileOptions.title} <= set(panels)
    assert ("Full training" in panels) is (each_tab.training.tab.method == "full")


def test_the_browser_gets_the_rules_of_each_family(form):
    options, panels = form.rules["options"], form.rules["panels"]
    assert form.rules["family"] == "sdxl"
    assert options["clip_skip"]["families"] == ("sdxl",)
    assert options["t5xxl"]["families"] == FLUX_FAMILIES
    assert options["clip_l"]["families"] == WITH_CLIP
    assert options["control_directory"]["families"] == ("flux_kontext", "flux2", "qwen_image_edit", "wan", "framepack")
    assert options["compile"]["families"] == tuple(card.name for card in cards())
    assert options["vae"]["families"] == ("sdxl", *(each for each in FLOW_FAMILIES if each not in FLUX_FAMILIES))
    assert {options[name]["families"] for name in panels["lora-panel-flux1-layers"]} == {FLUX_FAMILIES, WITH_CLIP}
    timesteps = {options[name]["families"] for name in panels["lora-panel-timesteps"]}
    assert timesteps == {FLUX_FAMILIES, (*WITH_CLIP, *HUNYUAN_FAMILIES), FLOW_FAMILIES}
    assert form.rules["advice"] == {f"lora-advice-{family}": family for family in FLOW_FAMILIES}


def test_recommended_values_are_offered_for_differing_ones(each_tab):
    form = each_tab.form
    for _, row, _ in form.advice[: len(WITH_CLIP)]:
        assert form.advised({**RECOMMENDED, "guidance_scale": 3.5})[row]["visible"] is True
        assert form.advised(RECOMMENDED)[row]["visible"] is False
        assert row.visible is False


def test_schnell_is_not_advised_to_use_guidance(tmp_path):
    schnell = str(shaped(tmp_path / "s.safetensors", FLUX))
    assert TIMESTEPS.advice[0].good({BASE_MODEL: schnell}) == {
        **RECOMMENDED,
        "guidance_scale": 3.5,
    }
    assert TIMESTEPS.advice[0].good({BASE_MODEL: None}) == RECOMMENDED


def test_options_of_other_families_are_neither_saved_nor_trained_with(form, tmp_path):
    values = form.read(page_after(form, {**RECOMMENDED, "apply_t5_attn_mask": True, "clip_skip": 3, "seed": 1}))
    assert read_toml(save_configuration(tmp_path / "s.toml", values, "sdxl", {})) == {
        **SDXL_LORA.identity,
        "clip_skip": 3,
        "seed": 1,
    }
    flux = {**RECOMMENDED, "apply_t5_attn_mask": True, "seed": 1}
    assert read_toml(save_configuration(tmp_path / "f.toml", values, "flux", {})) == FLUX_LORA.identity | flux
    values |= {"pretrained_model_name_or_path": "m", "train_data_dir": "d", "output_dir": str(tmp_path)}
    prepared = prepare({**values, "resolution": "1024"}, SDXL_LORA, {}, print_only=True)
    assert not {*flux} - {"seed"} & prepared.command.toml.keys()


def test_the_compile_controls_are_in_their_accordion(each_tab):
    (accordion,) = (a for a, names in each_tab.form._panels if names == [*COMPILE, *MORE])
    assert accordion.label == "Torch Compile Settings"


def test_the_browser_gets_the_options_that_depend_on_compile(form):
    more = ["compile_text_encoder", "compile_vae"]
    options = form.rules["options"]
    for name in COMPILE[1:]:
        assert options[name]["masters"] == ["compile", *more]
    assert [options[name]["offeredWith"] for name in more] == ["compile", "compile"]
    assert options["compile_mode"]["activeWith"] == ("compile_backend", "inductor")
    assert options["compile_options"]["default"] == form.rules["values"]["compile_options"] == ""  # as its text field
    assert set(form.rules["values"]) >= {"compile", "compile_backend", "compile_mode", *more}
    assert form.rules["values"]["compile"] is False


def test_the_controls_of_a_network_type_are_shown_with_it(form):
    options = form.rules["options"]
    assert options["factor"]["shownFor"] == ("network_type", ("lokr",))
    assert options["factor"]["default"] == form.rules["values"]["factor"] == -1  # set otherwise, it is always shown
    for name in ("conv_dim", "dora_wd", "wd_on_output", "constraint"):
        watched, types = options[name]["shownFor"]
        assert watched in form.rules["values"]
        assert set(types) <= set(form.options["network_type"].choices)


def test_values_round_trip_through_the_page(form):
    values = {
        **SIX,
        "learning_rate": 1e-4,
        "network_args": ["conv_dim=8", "conv_alpha=4"],
        "text_encoder_lr": [5e-5, 1e-5],
        "lr_warmup_steps": 0.1,
        "seed": 0,
        "output_name": "kätzchen",
        "max_token_length": 225,
    }
    read = form.read(page_after(form, values))
    assert {name: read[name] for name in values} == values


def test_only_controls_that_change_are_written_to_a_page_that_is_known(form):
    updates, _ = form.write({"seed": 7, "network_dim": 16})
    now = page_after(form, {"network_dim": 16})
    assert form.changed(updates, now) == {form.controls["seed"]: "7"}
    assert form.changed(updates, {}) == updates
    assert form.changed({form.advice[0][1]: "told"}, now) == {form.advice[0][1]: "told"}


def test_unset_zero_and_set_are_different(form):
    seed = form.options["seed"]
    for value in (None, 0, 7):
        assert given(seed, shown(seed, value)) == value


def test_a_list_of_texts_has_one_a_line(form):
    several = next(option for option in form.options.values() if option.many and option.type is str)
    assert given(several, "one\u2028and more\r\n\x85two \n\n three") == ["one\u2028and more", "two", "three"]


def test_quotes_are_stripped_from_a_pasted_path_and_from_no_other_text(form):
    model = form.options["pretrained_model_name_or_path"]
    assert given(model, ' "C:\\models\\a b.safetensors" ') == "C:\\models\\a b.safetensors"
    comment = form.options["training_comment"]
    assert given(comment, '"my cat"') == '"my cat"'
    assert given(form.options["caption_prefix"], "photo of ") == "photo of "
    assert given(comment, '"a/b" and "c/d"') == '"a/b" and "c/d"'


def test_an_invalid_value_is_reported_and_the_default_stays(form):
    updates, remarks = form.write({"compile_mode": "fast", "compile_cache_size_limit": -1, "seed": 3})
    assert {remark.name for remark in remarks} == {"compile_mode", "compile_cache_size_limit"}
    assert updates[form.controls["compile_mode"]] == "default"
    assert updates[form.controls["seed"]] == "3"


def test_words_in_a_number_field_reach_the_problem_list(form):
    assert form.options["text_encoder_lr"].problem(given(form.options["text_encoder_lr"], "1e-5 fast")) is not None


def test_secrets_are_hidden_and_kept_nowhere(form, tab, tmp_path):
    assert form.controls["wandb_api_key"].type == "password"
    assert "option:wandb_api_key" not in tab.draft.of({"wandb_api_key": "s3cret"}, "sdxl", "", None)
    path = save_configuration(tmp_path / "a.toml", {"wandb_api_key": "s3cret", "seed": 1}, "sdxl", {})
    assert "s3cret" not in path.read_text()


def test_a_saved_file_contains_only_values_that_differ_from_the_defaults(form, tmp_path):
    values = form.read(page_after(form, {"compile": True, "compile_mode": "default", "seed": 1}))
    path = save_configuration(tmp_path / "a.toml", values, "sdxl", {})
    sections = (
        'family = "sdxl"\nmethod = "lora"\n',
        "\n# Training\nseed = 1\n",
        "\n# Torch Compile Settings\ncompile = true\n",
    )
    assert path.read_text() == "".join(sections)


def test_an_unknown_key_survives_a_round_trip_and_is_reported(form, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("netwrok_dim = 8\nseed = 1\n[section]\ncompile = true\n")
    opened = open_configuration(path)
    assert opened.values == {"seed": 1, "compile": True}
    assert any("network_dim" in remark.text for remark in opened.remarks)
    saved = save_configuration(tmp_path / "b.toml", opened.values, "sdxl", opened.unknown)
    assert "netwrok_dim = 8" in saved.read_text()


def test_opening_a_file_replaces_every_earlier_value(form, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("seed = 1\n")
    read = form.read(page_after(form, open_configuration(path).values))
    assert read["seed"] == 1
    assert read["output_name"] == form.options["output_name"].default


@pytest.mark.parametrize("text", ["", "= 3", "seed = 1\nseed = 2"])
def test_a_broken_file_is_one_sentence(tmp_path, text):
    path = tmp_path / "a.toml"
    if text:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"^.*a\.toml.*$"):
        open_configuration(path)


def kohya_file(folder: Path) -> Path:
    path = folder / "old.json"
    told = {"sdxl": True, "network_dim": 16, "sample_prompts": "a cat --w 512", "sample_every_n_steps": 9, "odd_key": 1}
    path.write_text(json.dumps(told))
    return path


def test_opening_a_kohya_file_writes_nothing_and_keeps_its_prompts(tmp_path):
    opened = open_configuration(kohya_file(tmp_path))
    assert opened.values["network_dim"] == 16
    assert opened.unknown == {"odd_key": 1}
    assert opened.prompts == "a cat --w 512"
    assert "sample_every_n_steps" not in [remark.name for remark in opened.remarks]  # it has prompts to draw
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_prompts_that_were_in_a_kohya_file_are_written_by_save_over_no_other(tab, form, tmp_path):
    (tmp_path / "new-prompts.txt").write_text("mine\n")
    updates = tab._opened(str(kohya_file(tmp_path)), [], "sdxl")
    assert "the prompts in old.json are kept in the page" in updates[tab.run.message]
    data = {c: updates[c] for c in form.controls.values()}
    data |= {tab.family: "sdxl", tab.unknown: {}, tab.recent: [], tab.preset: None, tab.opened: "", tab.replacing: ""}
    data[form.prompts] = updates[form.prompts]
    saved = tab._saved(data, str(tmp_path / "new"))
    named = str(tmp_path / "new-prompts-2.txt")
    assert read_toml(tmp_path / "new.toml")["sample_prompts"] == named == saved[form.controls["sample_prompts"]]
    assert saved[form.prompts] == ""
    assert Path(named).read_text() == "a cat --w 512\n"
    assert (tmp_path / "new-prompts.txt").read_text() == "mine\n"


def test_prompts_of_a_kohya_file_are_written_into_the_run_folder(tmp_path):
    values = {**startable(tmp_path), "output_dir": str(tmp_path), "sample_every_n_steps": 1}
    prepared = prepare(values, SDXL_LORA, {}, False, prompts="a cat --s 2")
    place = Path(prepared.command.toml["sample_prompts"])
    assert place.read_text() == "a cat --s 2\n"
    assert place.parent == prepared.folder.path
    assert "sample_every_n_steps" not in {remark.name for remark in prepared.remarks}


def test_every_preset_opens_as_the_family_of_its_name():
    files = [file for tab in TABS for file in sorted((PRESETS / tab).glob("*.toml"))]
    opened = {file.stem: open_file(file, TABS[file.parent.name], "sdxl").family for file in files}
    assert opened == {file.stem: preset_family(file.stem) for file in files}


def test_the_list_of_presets_begins_with_those_of_the_chosen_family(tab):
    first = [title for title, _ in tab.preset.choices]
    before = {**tab.form.first(), tab.family: "krea2", tab.preset: None, tab.draft.state: {}}
    chosen = [title for title, _ in tab._chosen(before)[tab.preset]["choices"]]
    assert first[0].startswith("SDXL ")
    assert chosen[0].startswith("Krea 2 ")
    assert {*chosen} == {*first}


def test_a_family_that_is_chosen_brings_its_own_defaults_and_leaves_what_was_set(tab):
    form = tab.form
    shown = {**form.first(), tab.family: "anima", tab.preset: None, tab.draft.state: {}}
    shown |= {form.controls["timestep_sampling"]: "sigma", form.controls["discrete_flow_shift"]: "5"}
    updates = tab._chosen(shown)
    assert updates[form.controls["timestep_sampling"]] == "sigmoid"
    assert form.controls["discrete_flow_shift"] not in updates
    back = tab._chosen({**shown, **updates, tab.family: "sdxl", tab.preset: None, tab.draft.state: {"family": "anima"}})
    assert back[form.controls["timestep_sampling"]] == "sigma"


def test_every_preset_has_a_description():
    for path in PRESETS.glob("*/*.toml"):
        assert preset_title(path).startswith(
            (
                "SDXL ",
                "FLUX.1 ",
                "FLUX.2 klein ",
                "Anima ",
                "Krea 2 ",
                "Chroma ",
                "Z-Image ",
                "Qwen-Image ",
                "Qwen-Image-Edit ",
                "Wan ",
                "HunyuanVideo ",
                "FramePack ",
            )
        )
        comments = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
        assert preset_words(path) == " ".join(comments)
        assert re.match(
            r"(SDXL|Anima|Chroma|Krea 2|Z-Image|Qwen-Image|Wan|HunyuanVideo|FramePack|FLUX\.[12]|For|Train|A |Fine)",
            preset_words(path),
        ), path


@pytest.mark.parametrize("text", ["/", "..", "folder/", " "])
def test_a_folder_is_refused_as_a_configuration_name(text):
    with pytest.raises(ValueError, match="name"):
        config_path(text)


@pytest.mark.parametrize("name", [".", "..", "x" * 300, "a/b"])
def test_an_impossible_file_name_is_reported_by_its_option(tmp_path, name):
    with pytest.raises(ValueError, match=r"(^|\n)output_name: "):
        prepare({"output_dir": str(tmp_path), "output_name": name}, SDXL_LORA, {}, print_only=True)


def test_every_problem_is_reported_and_nothing_is_created(tmp_path):
    with pytest.raises(ValueError, match=r"pretrained_model_name_or_path: .*\n(.*\n)*resolution: "):
        prepare({"output_dir": str(tmp_path / "out")}, SDXL_LORA, {}, print_only=False)
    assert not (tmp_path / "out").exists()


def test_a_command_can_be_pasted_and_shows_what_compiles(tmp_path):
    values = {
        **SIX,
        "pretrained_model_name_or_path": "my model.safetensors",
        "train_data_dir": str(tmp_path),
        "output_dir": str(tmp_path / "my results"),
        "output_name": "cat",
        "resolution": "1024",
        "wandb_api_key": "s3cret",
    }
    prepared = prepare(values, SDXL_LORA, {}, print_only=True)
    assert list(tmp_path.iterdir()) == []
    assert "--compile" in prepared.command.argv
    assert str(tmp_path / "my results") in prepared.command.argv
    assert "s3cret" not in str(prepared.command.argv)


@pytest.mark.parametrize(
    ("text", "name"), [("a", "a.toml"), ('"b.toml"', "b.toml"), ("c.json", "c.json"), ("d.1", "d.1.toml")]
)
def test_a_file_name_is_read_as_intended(text, name):
    assert config_path(text).name == name


def test_a_draft_restores_typed_values(tab, form):
    full, _ = form.complete(SIX)
    draft = json.loads(json.dumps(tab.draft.of(full, "sdxl", "a.toml", None)))
    assert tab.draft.values(draft) == {name: value for name, value in full.items() if not form.options[name].secret}
    assert tab.draft.of_this_launch(draft)
    assert not tab.draft.of_this_launch({**draft, "launch": "an earlier one"})


def test_numbers_have_no_limits_of_gradio_and_unset_ones_are_texts(form):
    for name, component in form.controls.items():
        if kind(form.options[name]) == "number":
            assert component.minimum is component.maximum is component.precision is None
        if isinstance(component, gr.Number | gr.Slider):
            assert not form.options[name].nullable, f"{name}: Gradio would make 0 of an unset number"


def test_whole_numbers_within_a_short_range_have_a_slider(form):
    workers = form.options["max_data_loader_n_workers"]
    assert [kind(replace(workers, within=limits)) for limits in ((100, 120), (0, 64))] == ["slider", "number"]


def test_an_emptied_field_is_unset_or_reported(form):
    assert given(form.options["seed"], "") is None
    assert given(form.options["optimizer_type"], None) == ""
    rate = form.options["learning_rate"]
    assert "not a number" in (rate.problem(given(rate, "")) or "")
    assert [shown(rate, v) for v in (1e-4, 2e-6, 0.123456789)] == ["0.0001", "2e-06", "0.123456789"]


# Which tab a file is for


NOT_HERE = [
    (LORA, "train_text_encoder = true", "a.toml is a DreamBooth configuration; open it in the DreamBooth tab"),
    (
        LORA,
        'fused_backward_pass = true\nin_json = "m.json"',
        "is a Fine-tune configuration; open it in the Fine-tune tab",
    ),
    (DREAMBOOTH, "network_dim = 8", "a.toml is a LoRA configuration; open it in the LoRA tab"),
    (FINETUNE, 'network_module = "networks.lora"', "is a LoRA configuration; open it in the LoRA tab"),
]


@pytest.mark.parametrize(("training", "toml", "why"), NOT_HERE)
def test_a_file_for_a_different_method_is_refused_in_one_sentence(tmp_path, training, toml, why):
    (tmp_path / "a.toml").write_text(toml)
    with pytest.raises(ValueError, match=why) as refusal:
        training.open_configuration(tmp_path / "a.toml")
    assert "\n" not in str(refusal.value)
    assert f"{tab_for(tmp_path / 'a.toml').title}" in why


@pytest.mark.parametrize(
    ("tab", "key"), [(LORA, "LoRA_type"), (DREAMBOOTH, "learning_rate_te1"), (FINETUNE, "train_dir")]
)
def test_a_file_of_kohya_opens_in_the_tab_that_wrote_it_only(tmp_path, tab: Training, key):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"sdxl": True, key: ""}))
    assert tab_for(path) == tab.tab
    assert tab.open_configuration(path).family == "sdxl"
    for other in {"lora": LORA, "dreambooth": DREAMBOOTH, "finetune": FINETUNE}.values():
        if other is not tab:
            with pytest.raises(ValueError, match=f"open it in the {tab.tab.title} tab"):
                other.open_configuration(path)


@pytest.mark.parametrize("training", [LORA, DREAMBOOTH, FINETUNE])
def test_a_file_without_a_tab_opens_in_any(tmp_path, training):
    (tmp_path / "a.toml").write_text("seed = 1\n")
    assert training.open_configuration(tmp_path / "a.toml").values == {"seed": 1}
    assert tab_for(tmp_path / "a.toml") == LORA.tab


def test_whole_models_are_saved_and_opened_again(tmp_path):
    values = {
        "train_text_encoder": True,
        "learning_rate_te1": 0.0,
        "full_bf16": True,
        "prior_loss_weight": 0.0,
        "use_ema": True,
    }
    path = DREAMBOOTH.save_configuration(tmp_path / "a.toml", values, "sdxl", {"mine": 1})
    assert read_toml(path) == {"mine": 1, **SDXL_FULL.identity, **values}
    opened = DREAMBOOTH.open_configuration(path)
    assert (opened.values, opened.unknown) == (values, {"mine": 1})


def test_the_family_of_a_whole_model_is_recognised_again(tmp_path):
    (tmp_path / "f.toml").write_text('clip_l = "c"\nfull_bf16 = true\n')
    assert FINETUNE.open_configuration(tmp_path / "f.toml", "sdxl").family == "flux"


# What is found at a path


def safetensors(path: Path, *keys: str, cut: bool = False) -> Path:
    header = {key: {"dtype": "F16", "shape": [4], "data_offsets": [8 * i, 8 * i + 8]} for i, key in enumerate(keys)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * (8 * len(keys) - cut))
    return path


SDXL_KEY = "conditioner.embedders.1.model.ln_final.weight"


@pytest.mark.parametrize(
    ("keys", "good", "words"),
    [
        ([SDXL_KEY], True, "SDXL checkpoint, fp16"),
        (["cond_stage_model.transformer.text_model.final_layer_norm.weight"], False, "Stable Diffusion 1.5 checkpoint"),
        (
            ["lora_unet_x.lora_down.weight", "lora_te2_x.lora_down.weight"],
            False,
            "SDXL LoRA, fp16, 234 bytes: not a base",
        ),
        (["add_embedding.linear_1.weight"], False, "SDXL U-Net alone"),
        (["something.else"], False, "Unknown model type"),
    ],
)
def test_a_checkpoint_is_recognised_by_its_header(tmp_path, keys, good, words):
    found = recognise.model(str(safetensors(tmp_path / "m.safetensors", *keys)), "sdxl")
    assert found.good is good
    assert words in found.text


FLUX = {"double_blocks.0.img_attn.qkv.weight": (9216, 3072), "img_in.weight": (3072, 64)}
DEV = {**FLUX, "guidance_in.in_layer.weight": (3072, 256)}
CLIP = "text_model.final_layer_norm.weight"
TOKENS = "text_model.embeddings.token_embedding.weight"
QUERY = "encoder.block.0.layer.0.SelfAttention.q.weight"


def shaped(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> Path:
    """A file with these shapes in its header, and a hole where the weights would be."""
    size, end, header = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}[dtype], 0, {}
    for key, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * size
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize(
    ("shapes", "family", "variant"),
    [
        (DEV, "flux", "FLUX.1 dev"),
        (FLUX, "flux", "FLUX.1 schnell"),
        ({f"model.diffusion_model.{key}": shape for key, shape in DEV.items()}, "flux", "FLUX.1 dev"),
        ({**DEV, "img_in.weight": (3072, 384)}, None, "FLUX.1 Fill"),
        ({**FLUX, "distilled_guidance_layer.in_proj.weight": (5120, 64)}, "chroma", "Chroma"),
        ({**DEV, "double_blocks.0.img_attn.qkv.weight.quant_state.bitsandbytes__nf4": (80,)}, None, "FLUX.1 in 4 bits"),
        ({CLIP: (768,), TOKENS: (49408, 768)}, None, "CLIP-L text encoder"),
        ({CLIP: (1280,), TOKENS: (49408, 1280)}, None, "CLIP-G text encoder"),
        ({QUERY: (4096, 4096)}, None, "T5-XXL text encoder"),
        ({QUERY: (48, 48)}, None, "T5 text encoder"),
        ({"decoder.conv_in.weight": (512, 16, 3, 3)}, None, "FLUX.1 autoencoder"),
        ({"decoder.conv_in.weight": (512, 4, 3, 3)}, None, "VAE"),
    ],
)
def test_components_of_flux_are_recognised_by_their_shapes(tmp_path, shapes, family, variant):
    found = describe(shaped(tmp_path / "m.safetensors", shapes))
    assert (found.family, found.variant, found.precision) == (family, variant, "bf16")


def test_a_base_model_is_described_by_variant_precision_and_size(tmp_path):
    path = shaped(tmp_path / "m.safetensors", {**DEV, "rest": (11_873, 1000, 1000)})
    found = recognise.model(str(path), "flux")
    assert (found.text, found.good) == ("FLUX.1 dev, bf16, 23.8 GB", True)
    fp8 = shaped(tmp_path / "fp8.sft", DEV, "F8_E4M3")
    assert recognise.model(str(fp8), "flux").text == "FLUX.1 dev, fp8, 29.3 MB"


def test_a_model_of_the_other_family_is_refused_and_names_its_own(tmp_path):
    dev, sdxl = shaped(tmp_path / "f.safetensors", DEV), safetensors(tmp_path / "s.safetensors", SDXL_KEY)
    wrong = recognise.model(str(dev), "sdxl"), recognise.model(str(sdxl), "flux")
    assert [(found.good, found.family) for found in wrong] == [(False, "flux"), (False, "sdxl")]
    assert "not a base model for FLUX.1" in wrong[1].text
    lora = safetensors(tmp_path / "l.safetensors", "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight")
    assert recognise.model(str(lora), "flux").family is None
    assert "data-choose" in hint(wrong[1], offer("lora-family", "sdxl"))


@pytest.mark.parametrize(
    ("option", "shapes", "good", "words"),
    [
        ("clip_l", {CLIP: (768,), TOKENS: (49408, 768)}, True, "CLIP-L text encoder, bf16"),
        ("clip_l", {QUERY: (4096, 4096)}, False, "bf16, 33.6 MB: this is not the CLIP-L text encoder"),
        ("t5xxl", {QUERY: (4096, 4096)}, True, "T5-XXL text encoder, bf16"),
        ("t5xxl", DEV, False, "FLUX.1 dev, bf16, 58.6 MB: this is not the T5-XXL text encoder"),
        ("ae", {"decoder.conv_in.weight": (512, 16, 3, 3)}, True, "FLUX.1 autoencoder"),
        ("ae", {"decoder.conv_in.weight": (512, 4, 3, 3)}, False, "VAE, bf16, 37 kB: this is not FLUX.1's autoencoder"),
        ("ae", {"something.else": (4,)}, False, "Unknown file type"),
    ],
)
def test_a_part_of_flux_is_recognised_where_it_is_asked_for(tmp_path, option, shapes, good, words):
    found = recognise.part(str(shaped(tmp_path / "m.safetensors", shapes)), option, "flux")
    assert found.good is good
    assert words in found.text


def test_a_part_next_to_the_base_model_is_offered(tab, flux_miniature):
    files = {name: str(path) for name, path in flux_miniature.files.items()}
    model = files.pop(BASE_MODEL)
    assert {"clip_l", "t5xxl", "ae"} <= files.keys()
    for name in ("clip_l", "t5xxl", "ae"):
        assert f'data-set="lora-{name}" data-value="{files[name]}"' in tab._beside(name, model, "flux")
        assert tab._beside(name, model, "sdxl") == ""
    assert recognise.part_beside(model, "ae", "flux", lambda place: place.name == Path(model).name) is None
    assert recognise.part_beside("\0", "ae", "flux", lambda place: True) is None


def test_a_component_that_is_not_a_file_is_reported(tmp_path):
    assert "This is a folder without" in recognise.part(str(tmp_path), "t5xxl", "flux").text
    assert "not found" in recognise.part(str(tmp_path / "gone"), "ae", "flux").text
    assert recognise.part("", "ae", "flux").text == ""
    (tmp_path / "t5.gguf").touch()
    assert "choose the .safetensors file" in recognise.part(str(tmp_path / "t5.gguf"), "t5xxl", "flux").text


def test_a_component_can_be_in_a_folder_or_in_a_combined_file(tmp_path):
    (tmp_path / "whole" / "text_encoder_2").mkdir(parents=True)
    for n, keys in enumerate(({"shared.weight": (8, 4096)}, {QUERY: (4096, 4096)}), 1):
        shaped(tmp_path / "whole" / "text_encoder_2" / f"model-0000{n}-of-00002.safetensors", keys)
    for folder in (tmp_path / "whole", tmp_path / "whole" / "text_encoder_2"):
        assert recognise.part(str(folder), "t5xxl", "flux").text == "T5-XXL text encoder, bf16, 33.6 MB"
    every = {f"model.diffusion_model.{key}": shape for key, shape in DEV.items()} | {"vae.decoder.conv_in.weight": (4,)}
    path = shaped(tmp_path / "all.safetensors", every)
    assert recognise.model(str(path), "flux").text == "FLUX.1 dev, bf16, 58.6 MB, with ae in it"
    assert recognise.part(str(path), "ae", "flux").good
    assert not recognise.part(str(path), "clip_l", "flux").good


def flux_folder(folder: Path) -> Path:
    """A diffusers folder whose transformer comes in two files."""
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    (folder / "transformer" / "config.json").write_text('{"guidance_embeds": true}')
    shards = [f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {"weight_map": {f"{n}.weight": shard for n, shard in enumerate(shards)}}
    (folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    for shard in shards:
        shaped(folder / "transformer" / shard, {"a": (4,)})
    return folder


def test_a_folder_in_several_files_is_recognised_and_a_missing_one_is_reported(tmp_path):
    folder = flux_folder(tmp_path / "flux")
    found = describe(folder)
    assert (found.family, found.variant, found.precision) == ("flux", "FLUX.1 dev diffusers folder", "bf16")
    (folder / "transformer" / "diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    told = recognise.model(str(folder), "flux")
    assert not told.good
    assert told.text.startswith("This lacks transformer/diffusion_pytorch_model-00002-of-00002.safetensors")


# Which family a file is for


@pytest.mark.parametrize(
    ("toml", "shown", "family"),
    [
        ('clip_l = "clip_l.safetensors"', "sdxl", "flux"),
        ("guidance_scale = 3.5", "sdxl", "flux"),
        ('network_module = "networks.lora_flux"', "sdxl", "flux"),
        ('timestep_sampling = "shift"', "sdxl", "flux"),
        ('timestep_sampling = "qwen_shift"', "sdxl", "qwen_image"),
        ('timestep_sampling = "shift"\npretrained_model_name_or_path = "Qwen/Qwen-Image"', "sdxl", "qwen_image"),
        ('text_encoder = "qwen_2.5_vl_7b.safetensors"', "sdxl", "qwen_image"),
        ('train_blocks = "single"', "sdxl", "flux"),  # kohya_ss leaves it at the top of its TOML
        ("fp8_base = true", "sdxl", "sdxl"),  # stands in files for SDXL too
        ("seed = 1", "sdxl", "sdxl"),
        ("seed = 1", "flux", "flux"),
        ('pretrained_model_name_or_path = "black-forest-labs/FLUX.1-dev"', "sdxl", "flux"),
        ('pretrained_model_name_or_path = "stabilityai/stable-diffusion-xl-base-1.0"', "flux", "sdxl"),
        ('pretrained_model_name_or_path = "DEV"', "sdxl", "flux"),
        ('pretrained_model_name_or_path = "SDXL"', "flux", "sdxl"),
        ('pretrained_model_name_or_path = "/gone/m.safetensors"', "flux", "flux"),
    ],
)
def test_a_file_identifies_its_family(tmp_path, toml, shown, family):
    dev, sdxl = shaped(tmp_path / "f.safetensors", DEV), safetensors(tmp_path / "s.safetensors", SDXL_KEY)
    path = tmp_path / "a.toml"
    path.write_text(toml.replace("DEV", dev.as_posix()).replace("SDXL", sdxl.as_posix()))
    assert open_configuration(path, shown).family == family


def test_half_a_file_and_no_file_are_reported(tmp_path):
    assert (
        "This is cut short"
        in recognise.model(str(safetensors(tmp_path / "m.safetensors", SDXL_KEY, cut=True)), "sdxl").text
    )
    (tmp_path / "n.safetensors").write_bytes(b"<html>not found</html>")
    assert "not a safetensors file" in recognise.model(str(tmp_path / "n.safetensors"), "sdxl").text
    assert recognise.model(str(tmp_path / "gone.safetensors"), "sdxl").good is False
    (tmp_path / "a.toml").touch()
    assert "Not a model file" in recognise.model(str(tmp_path / "a.toml"), "sdxl").text
    assert recognise.model("stabilityai/stable-diffusion-xl-base-1.0", "sdxl").good is None


def images(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def told_of(folder: Path, *how: Any) -> tuple[str, bool | None, bool]:
    found = recognise_images.train_data(str(folder), *how)
    return found.text, found.good, found.warning


def test_a_data_folder_is_counted(tmp_path):
    images(tmp_path, "10_cat/a.png", "10_cat/b.jpg", "2_dog/c.webp", "10_cat/a.txt", "10_cat/b.txt", "2_dog/c.txt")
    told = "3 images, all captioned, 22 per epoch: 10_cat (2), 2_dog (1)", True, False
    assert told_of(tmp_path, ".txt") == told_of(tmp_path, "txt") == told  # as the training reads it
    assert told_of(tmp_path / "10_cat", ".txt") == ("2 images, all captioned, 20 per epoch", True, False)


def test_videos_count_for_a_family_that_is_trained_on_them(tmp_path):
    images(tmp_path, "10_cat/a.png", "10_cat/b.mp4", "10_cat/c.mov", "10_cat/a.txt", "10_cat/b.txt", "10_cat/c.txt")
    found = recognise_images.train_data(str(tmp_path), ".txt", clips=True)
    assert found.text == "1 image and 2 videos, all captioned, 30 per epoch: 10_cat (3)"
    assert told_of(tmp_path, ".txt")[0] == "1 image, all captioned, 10 per epoch: 10_cat (1)"


def test_missing_captions_are_a_warning_that_names_the_extension_found(tmp_path):
    images(
        tmp_path, "10_cat/a.png", "10_cat/b.jpg", "10_cat/c.png", "10_cat/a.txt", "10_cat/b.caption", "10_cat/c.caption"
    )
    assert told_of(tmp_path, ".txt") == (
        "3 images, 1 with a .txt file, 2 have a .caption file, 30 per epoch: 10_cat (3)",
        True,
        True,
    )
    assert told_of(tmp_path, ".cap")[0].startswith("3 images, none with a .cap file, 2 have a .caption file")


def test_folders_that_are_never_seen_are_reported(tmp_path):
    images(tmp_path, "0_dog/a.png", "0_dog/a.txt")
    assert told_of(tmp_path, ".txt")[1] is False
    images(tmp_path, "1_cat/a.png", "1_cat/a.txt")
    text, good, warning = told_of(tmp_path, ".txt")
    assert (good, warning) == (True, True)
    assert "1 per epoch: 1_cat (1); folder '0_dog' is skipped" in text


@pytest.mark.parametrize(
    ("count", "epochs", "repeats", "words"),
    [
        (3, "", 1, "Use this folder as is"),
        (3, "nonsense", 1, "Use this folder as is"),
        (3, "20", 25, "Use this folder, 25 repeats"),
        (7, "10", 21, "Use this folder, 21 repeats"),
        (4, "400", 1, "Use this folder as is"),
    ],
)
def test_a_flat_folder_is_offered_with_repeats_for_a_usual_first_run(tab, tmp_path, count, epochs, repeats, words):
    images(tmp_path / "flat", *(f"{number}.png" for number in range(count)))
    hint = tab._image_hint(str(tmp_path / "flat"), ".txt", "", "", False, epochs, "sdxl")
    assert f'data-set="lora-num_repeats" data-value="{repeats}"' in hint
    assert words in hint


@pytest.mark.parametrize("below", ["img/8_dog", "train/images/8_dog"])
def test_the_only_subfolder_with_repeats_is_offered(tab, tmp_path, below):
    images(tmp_path / "kohya", f"{below}/a.png", "log/x.txt")
    parent = (tmp_path / "kohya" / below).parent
    hint = tab._image_hint(str(tmp_path / "kohya"), ".txt", "", "", False, "", "sdxl")
    assert f'data-set="lora-train_data_dir" data-value="{parent}"' in hint
    assert f"Use &#x27;{parent.relative_to(tmp_path / 'kohya')}&#x27;<" in hint
    images(tmp_path / "kohya", "other/3_cat/b.png")
    assert "button" not in tab._image_hint(str(tmp_path / "kohya"), ".txt", "", "", False, "", "sdxl")


@pytest.mark.parametrize("typed", ["'{}'", '"{}"', " '{}' ", "file://{}"])
def test_a_path_is_understood_as_file_managers_and_terminals_copy_it(tab, tmp_path, typed):
    images(tmp_path / "my cats", "2_cat/a.png", "2_cat/a.txt")
    copied = typed.format(str(tmp_path / "my cats").replace(" ", "%20" if "://" in typed else " "))
    assert "1 image, all captioned" in tab._image_hint(copied, ".txt", "", "", False, "", "sdxl")
    assert given(tab.form.options["train_data_dir"], copied) == str(tmp_path / "my cats")
    assert given(tab.form.options["caption_prefix"], "'ohwx'") == "'ohwx'"


def test_a_windows_path_is_called_one(tab):
    for path in ("D:\\cats", "z:\\loras\\x.safetensors", "\\\\nas\\cats"):
        assert "A Windows path" in tab._image_hint(path, ".txt", "", "", False, "", "sdxl")
        assert "A Windows path" in recognise.model(path, "flux").text


def test_a_flat_folder_can_be_used_unchanged(tab, tmp_path):
    images(tmp_path / "flat", "a.png", "a.txt")
    refused = tab._image_hint(str(tmp_path / "flat"), ".txt", "", "", False, "", "sdxl")
    assert "hint-bad" in refused
    assert 'data-set="lora-num_repeats" data-value="1"' in refused
    taken = tab._image_hint(str(tmp_path / "flat"), ".txt", "", "3", False, "", "sdxl")
    assert "hint-good" in taken
    assert "1 image, all captioned, 3 per epoch" in taken
    images(tmp_path / "20241122_cats", "a.png")
    assert "hint-bad" in tab._image_hint(str(tmp_path / "20241122_cats"), ".txt", "", "", False, "", "sdxl")


def test_the_extension_of_the_captions_found_is_applied_with_one_click(tab, tmp_path):
    images(tmp_path / "10_cat", "a.png", "a.caption", "b.png", "b.caption", "c.png", "c.txt")
    told = tab._image_hint(str(tmp_path), ".txt", "", "", False, "", "sdxl")
    assert 'data-set="lora-caption_extension" data-value=".caption"' in told
    assert "button" not in tab._image_hint(
        str(tmp_path), ".caption", "", "", False, "", "sdxl"
    )  # fewer have a .txt file


def test_a_folder_with_a_metadata_file_shows_no_repeats(tmp_path):
    images(tmp_path, "a.png", "10_cat/b.jpg", "10_cat/deep/c.webp")
    found = recognise_images.beside_metadata(str(tmp_path))
    assert (found.text, found.good) == ("3 images; the metadata file decides which are trained", True)
    (tmp_path / "empty").mkdir()
    assert recognise_images.beside_metadata(str(tmp_path / "empty")).warning
    assert recognise_images.beside_metadata(str(tmp_path / "gone")).text == "Folder not found"


@pytest.mark.parametrize(
    ("name", "text", "good", "words"),
    [
        ("m.json", '{"a": {"caption": "cat"}, "b": {"tags": "dog"}}', True, "2 images"),
        (
            "m.json",
            '{"a": {"caption": "cat"}, "b": {"train_resolution": [64, 64]}}',
            True,
            "2 images, 1 with a caption",
        ),
        ("m.jsonl", '{"image_path": "a.png", "caption": "cat"}\n', True, "1 images"),
        ("m.json", "{}", False, "0 images"),
        ("m.json", "[1]", False, "Not a metadata file: expected a JSON object with an entry per image"),
        ("m.json", '{"a": 1}', False, "Not a metadata file: expected a JSON object with an entry per image"),
        ("m.json", "{", False, "Not a metadata file: expected a JSON object with an entry per image"),
    ],
)
def test_a_metadata_file_is_counted(tmp_path, name, text, good, words):
    (tmp_path / name).write_text(text)
    found = recognise.metadata(str(tmp_path / name))
    assert (found.good, found.text) == (good, words)
    assert recognise.metadata(str(tmp_path / "gone.json")).text == "File not found"


def test_many_folders_are_named_by_the_first_of_them(tmp_path):
    for number in range(1, 8):
        (tmp_path / f"{number}_cat").mkdir()
    text = recognise_images.train_data(str(tmp_path), ".txt").text
    assert text == "No images in 1_cat, 2_cat, 3_cat, 4_cat and 3 more"


@pytest.mark.parametrize("text", ["x" * 5000, "~nobody/x", "a\0b", "²_cat", "//", "\t"])
def test_no_text_typed_as_a_path_breaks_a_hint(tmp_path, text):
    (tmp_path / "²_cat").mkdir()
    assert recognise.model(text, "sdxl").good is not True
    assert recognise_images.train_data(text, "../x").good is not True
    assert recognise_images.train_data(str(tmp_path), "\0").good is False


# What the page shows of a run


def row(state: State = "running", **facts: Any) -> RunRow:
    """A run in the list."""
    known = {"id": 7, "folder": Path("/runs/a & b"), "name": "a & b", "tab": "lora", "family": "sdxl", "gpus": "all"}
    unknown = {field.name: None for field in fields(RunRow)}
    return RunRow(**{**unknown, "results": (), "error": "", **known, **facts, "state": state})


def run_view(run_state: RunState, of: RunRow | None = None) -> str:
    """All sections in one, as the page puts them together."""
    return "".join(sections(run_state, of or row(run_state.state)).values())


def trained(state: State = "running", steps: int = 30) -> RunState:
    run_state = RunState()
    run_state.apply({"kind": "started", "max_steps": 50, "epochs": 2, "images_per_step": 2, "time": 1.0})
    for step in range(1, steps + 1):
        told = {"step": step, "epoch": 1, "loss": 1 / step, "seconds": 0.5, "lr": {"unet": 1e-4}}
        run_state.apply({"kind": "step", **told, "vram": 3 * 2**30, "ram": 2**30})
    run_state.state = state
    return run_state


def test_a_run_is_shown_with_all_its_events_and_its_texts_are_escaped():
    run_state = trained()
    run_state.apply(
        {"kind": "compile", "graphs": 14, "recompiles": 1, "seconds": 38.0, "breaks": 0, "text": "<b>x</b>", "step": 2}
    )
    graph = {"block": "<u>Block", "seconds": 1.2, "why": "size of x is 3 instead of 2", "cache": "hit"}
    run_state.apply({"kind": "compile", "step": 2, "compiled": [graph, "no graph"], "cache_hits": 9, "cache_misses": 0})
    told = {"loss_difference": 2e-7, "gradient_difference": 0.25, "exceeds": True}
    run_state.apply({"kind": "compile_check", "step": 20, **told})
    run_state.apply({"kind": "warning", "text": "is odd", "option": "seed"})
    run_state.apply({"kind": "saved", "path": "/out/<i>.safetensors", "step": 30, "bytes": 2_000_000})
    run_state.apply({"kind": "failed", "error": "the disk is full", "remedy": "free some space", "details": "<script>"})
    html = run_view(run_state)
    for words in ("step 30 of 50", "0.50 s/it", "4/s", "3.0 GiB", "1.0 GiB", "seed: is odd"):
        assert words in html
    compared = (
        "Compared with eager at 1 step, last at step 20: loss differs by at most 2e-07, gradients by at most 0.25"
    )
    assert f"{compared} of the largest. More than rounding explains at step 20<" in html
    assert "14 graphs · 1 recompile · 0 graph breaks · 38 s to compile · 9 from the cache<" in html
    assert "<td>2</td><td>&lt;u&gt;Block</td><td>1.2 s</td><td>found</td><td>size of x is 3 instead of 2</td>" in html
    for words in ("2.0 MB", "free some space", "studio/run/7/file/0", "a &amp; b"):
        assert words in html
    assert "<script" not in html
    assert "<b>x" not in html
    assert "<i>.safe" not in html


def test_a_run_that_the_user_ended_is_not_shown_as_failed():
    run_state = trained()
    run_state.add_command({"kind": "end"})
    run_state.mark_ended("stopped", "You stopped this run immediately at step 30")
    html = run_view(run_state)
    assert 'message-note" role="status"' in html
    assert "You stopped this run immediately at step 30" in html
    assert "message-error" not in html


def test_a_run_that_is_stopping_and_still_saves_is_shown():
    run_state = trained()
    run_state.add_command({"kind": "end", "id": "a"})
    run_state.apply({"kind": "heard", "ids": ["a"], "step": 30})
    assert "✓" not in sections(run_state, row())["controls"]


@pytest.mark.parametrize(
    ("saved", "lost"),
    [
        ([], "all training is lost"),
        (["cat-state"], "training after step 20 is lost"),
        (["cat.safetensors"], "files up to step 20 stay, later training is lost"),
    ],
)
def test_stop_now_explains_the_saved_and_the_lost_part(saved, lost):
    run_state = trained()
    for name in saved:
        run_state.apply({"kind": "saved", "path": f"/out/{name}", "step": 20})
    told = sections(run_state, row())["controls"]
    assert lost in told
    assert ("It saves first if the current step ends by then" in told) == (os.name != "nt")


@pytest.mark.parametrize(("images", "shown"), [(1, False), (4, True)])
def test_images_per_second_are_shown_where_they_say_more_than_the_speed(images, shown):
    run_state = RunState()
    run_state.apply({"kind": "started", "max_steps": 9, "images_per_step": images, "time": 1.0})
    for step in range(1, 9):
        run_state.apply({"kind": "step", "step": step, "epoch": 1, "loss": 0.5, "seconds": 0.5})
    assert ("<span>Images</span>" in sections(run_state, row())["tiles"]) == shown


def test_a_relative_output_folder_is_shown_as_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"Saves to {tmp_path / 'loras' / 'cat'}<" in output_hint("loras/cat")
    assert f"Saves to {tmp_path}<" in output_hint("")
    assert output_hint(str(tmp_path)) == output_hint("~/loras") == ""


def test_the_duration_of_a_run_comes_from_its_row():
    run_state = trained("finished")
    assert "<b>4:02</b><span>Took" in run_view(run_state, row("finished", started=1000.0, ended=1242.0))


def test_a_running_duration_ticks_in_the_page():
    run_state = RunState()
    started = row("starting", started=100.0)
    assert 'data-since="100.0"' in sections(run_state, started)["progress"]
    run_state.apply({"kind": "phase", "name": "compiling", "time": 130.0})
    run_state.apply({"kind": "phase", "name": "compiling", "note": "12 graphs so far", "time": 160.0})
    html = sections(run_state, started)["progress"]
    assert "Compiling · 12 graphs so far" in html
    assert 'data-since="130.0"' in html
    assert "data-since" not in sections(trained(), started)["progress"]


def test_an_unchanged_section_keeps_its_html():
    run_state = trained()
    before = sections(run_state, row())
    run_state.apply({"kind": "step", "step": 31, "epoch": 1, "loss": 0.5, "seconds": 0.5})
    after = sections(run_state, row())
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"head", "progress", "tiles"}


def test_a_running_run_shows_a_command_until_it_is_acknowledged():
    run_state = trained()
    assert run_view(run_state).count("disabled") == 0
    run_state.add_command({"kind": "save", "id": "a"})
    html = run_view(run_state)
    assert "Requested…" in html
    assert html.count("disabled") == 1
    run_state.apply({"kind": "heard", "command": "save", "ids": ["a"], "step": 30})
    html = run_view(run_state)
    assert "Requested…" not in html
    assert "Saved at step 30" in html
    assert [sent.handled_step for sent in run_state.commands if isinstance(sent, SentCommand)] == [30]


def test_ending_immediately_explains_the_lost_part():
    assert "Nothing is trained yet, so nothing is lost" in run_view(trained(steps=0))
    run_state = trained()
    assert "all training is lost" in run_view(run_state)
    run_state.apply({"kind": "saved", "path": "/out/a-step10.safetensors", "step": 10})
    assert "files up to step 10 stay" in run_view(run_state)
    run_state.apply({"kind": "saved", "path": "/out/a-step20-state", "step": 20})
    assert "training after step 20 is lost" in run_view(run_state)


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        ("queued", {"first", "remove"}),
        ("starting", {"save", "sample", "stop", "end"}),
        ("stopped", {"continue", "load", "forget"}),
        ("finished", {"continue", "load", "forget"}),
    ],
)
def test_the_actions_of_a_run_depend_on_its_state(tmp_path, state: State, offered: set[str]):
    run_state = RunState(state=state)
    (tmp_path / "a-state").mkdir()
    run_state.saved.append(OutputFile(tmp_path / "a-state", 10))
    (tmp_path / "a-state" / "progress.json").touch()
    assert set(re.findall(r'data-action="(\w+)"', run_view(run_state, row(state, place=1)))) == offered


def test_a_deleted_or_incomplete_state_is_not_resumed(tmp_path):
    run_state = RunState(state="stopped")
    for name in ("a-000001-state", "a-000002-state", "a-000003-state"):
        (tmp_path / name).mkdir()
        run_state.saved.append(OutputFile(tmp_path / name, 1))
    assert newest_state(run_state) is None
    (tmp_path / "a-000001-state" / "progress.json").touch()
    (tmp_path / "a-000002-state" / "progress.json").touch()
    assert newest_state(run_state) == tmp_path / "a-000002-state"


def test_a_waiting_run_shows_its_position_and_for_what_it_waits():
    html = run_view(RunState(state="queued"), row("queued", place=2, error="waits for HF_TOKEN"))
    assert "position 2 in the queue" in html
    assert "waits for HF_TOKEN" in html
    assert "tile" not in html


def test_a_finished_run_shows_its_file_with_a_copy_button_and_how_to_use_it():
    run_state = RunState()
    for name in ("a & b-000001.safetensors", "a & b.safetensors", "a & b-state"):
        run_state.apply({"kind": "saved", "path": f"/loras/{name}", "step": 1})
    assert 'class="result"' not in run_view(run_state)
    run_state.apply({"kind": "finished", "step": 1, "time": 2.0})
    html = sections(run_state, row("finished"))["result"]
    assert 'data-copy="/loras/a &amp; b.safetensors"' in html
    assert "models/loras" in html


def test_a_whole_model_has_its_own_destination_and_its_average_is_named():
    run_state = RunState()
    run_state.apply({"kind": "started", "method": "full", "max_steps": 1})
    for name in ("cat.safetensors", "cat-ema.safetensors", "cat-state"):
        run_state.apply({"kind": "saved", "path": f"/models/{name}", "step": 1})
    run_state.apply({"kind": "finished", "step": 1, "time": 2.0})
    html = sections(run_state, row("finished"))["result"]
    assert 'data-copy="/models/cat.safetensors"' in html
    assert "cat-ema.safetensors</b>" in html
    assert "models/checkpoints" in html
    assert "diffusion_models" not in html
    assert "models/loras" not in html
    assert "models/diffusion_models" in sections(run_state, row("finished", family="flux"))["result"]


def test_numbers_are_written_for_people():
    assert [speed(s) for s in (None, 0.0791, 1.234, 42)] == ["–", "79 ms/it", "1.23 s/it", "42 s/it"]
    assert [duration(s) for s in (None, 5, 65, 3725)] == ["–", "5 s", "1:05", "1:02:05"]


def past_run(tab: TrainingTab, folder: Path, settings: str, family: str = "sdxl", state: State = "finished") -> str:
    """The number of a run with these settings, in the list of a tab."""
    folder.mkdir()
    (folder / "config.toml").write_text(settings)
    return str(tab._queue.store.add(folder, tab="lora", family=family, state=state, gpus="cpu").id)


def test_a_past_run_fills_in_the_form_and_its_own_file_is_not_the_one_to_save(tab, form, tmp_path):
    run = past_run(tab, tmp_path / "cat", 'seed = 3\nguidance_scale = 3.5\nmine = "kept"\n', "flux")
    updates = tab._load_past(run)
    assert (updates[form.controls["seed"]], updates[tab.family]) == ("3", "flux")
    assert (updates[tab.opened], updates[tab.file]["value"], updates[tab.unknown]) == ("", "", {"mine": "kept"})
    assert "Loaded the settings of cat" in updates[tab.run.message]


def test_a_past_run_without_its_folder_or_off_the_list_is_reported(tab, tmp_path):
    run = past_run(tab, tmp_path / "cat", "seed = 3\n")
    (tmp_path / "cat" / "config.toml").unlink()
    with pytest.raises(ValueError, match="settings file not found"):
        tab._load_past(run)
    assert "no longer in the list" in tab._load_past("4711")[tab.run.message]
    assert "no longer in the list" in tab._load_past("")[tab.run.message]


def test_a_run_that_has_to_wait_shows_why(tab, monkeypatch, tmp_path):
    monkeypatch.setattr(tab, "_queue", RunQueue(RunStore(tmp_path / "runs.sqlite")))
    first, second = (int(past_run(tab, tmp_path / name, "", state="queued")) for name in ("first", "second"))
    assert tab._why_waiting(first) == ""
    assert tab._why_waiting(second) == "second is queued and will start automatically"
    tab._queue.store.paused = True
    assert tab._why_waiting(first) == "first is queued: the queue is paused"


def test_the_plan_has_its_space_before_it_is_made():
    """A plan that comes later would shift the column."""
    (plan,) = re.findall(r'data-plan="(\w+)"><p class="plan[^>]*>([^<]+)<', PLAN.format(tab="lora"))
    assert plan == ("lora", "Making the plan…")


def test_a_printed_command_is_copied_unchanged_and_wraps_only_between_words():
    line = "'/my folder/accelerate' launch --network_args 'a=<1>  b' --training_comment \"it's\""
    html = printed_command(line)
    assert unescape(re.findall('data-copy="(.*?)"', html)[0]) == line
    shown = html.partition("<pre>")[2].removesuffix("</pre>")
    assert unescape(re.sub("</?span>", "", shown)) == line
    assert [unescape(word) for word in re.findall("<span>(.*?)</span>", shown)] == line.split(" ")


def test_the_output_name_comes_with_the_base_model_before_the_images(form):
    names = list(form.controls)
    assert names.index(BASE_MODEL) < names.index("output_name") < names.index("train_data_dir")


def test_a_sentence_names_the_field_by_its_label_and_links_to_it(form):
    said = form.links.sentence("min_snr_gamma: <b> needs mixed_precision = bf16; other_words stay")
    assert (
        re.sub("<.*?>", "", said)
        == "Min-SNR gamma (min_snr_gamma): &lt;b&gt; needs mixed_precision = bf16; other_words stay"
    )
    assert re.findall('data-field="(.*?)"', said) == ["lora-min_snr_gamma", "lora-mixed_precision"]
    assert 'data-panels="lora-panel-advanced-training lora-panel-loss"' in said
    assert form.links.sentence("nobody: knows <this>") == "nobody: knows &lt;this&gt;"


def test_a_failed_run_links_to_the_field_to_change(form):
    state = RunState()
    state.apply(
        {"kind": "failed", "error": "vae: no such file", "remedy": "set output_dir", "details": "", "time": 1.0}
    )
    state.apply({"kind": "warning", "text": "keep_tokens: has no effect", "time": 1.0})
    told = sections(state, row("failed"), links=form.links)
    assert re.findall('data-field="(.*?)"', told["failure"]) == ["lora-vae", "lora-output_dir", "lora-vae"]
    assert 'data-action="load" data-field="lora-vae" data-panels="lora-panel-model"' in told["failure"]
    assert 'data-field="lora-keep_tokens"' in told["warnings"]
    queued = sections(RunState(), row("queued", error="gpu_ids: 7 is not here"), links=form.links)
    assert 'data-field="lora-gpu_ids"' in queued["failure"]
    assert form.links.words("gpu_ids: 7 is not here") == "GPU IDs: 7 is not here"
    assert "data-field" not in sections(state, row("failed"))["failure"]


def test_a_refusal_counts_the_problems_and_names_the_fields_to_mark(form):
    several = form.links.refused(ValueError("seed: a\ncache_latents, color_aug: b\nseed: c\nno: option"), start=True)
    assert "4 problems to fix" in several
    assert 'data-wrong="lora-seed lora-cache_latents lora-color_aug" data-go' in several
    assert "data-go" not in form.links.refused(ValueError("seed: a"))


def test_a_hint_fits_the_families_and_the_method_of_its_tab(each_tab):
    method, half = each_tab.training.tab.method, []
    for option in each_tab.form.options.values():
        hint = f"{option.label}: {option.help_for(method)}"
        of_one = (
            "FLUX.1" not in hint
            and "transformer" not in hint
            and any(word in hint for word in ("SDXL was", "U-Net", "conv_dim"))
        )
        if (len(option.families) > 1 and of_one) or (method == "full" and "LoRA" in hint):
            half.append(hint)
    assert half == []
    assert ("1e-4" in str(each_tab.form.controls["learning_rate"].info)) is (method == "lora")


def test_a_hint_names_other_fields_by_their_labels(form):
    assert "*Masked loss*" in form.controls["conditioning_data_dir"].info
    assert "such as clip_l.safetensors" in form.controls["clip_l"].info  # a file, no field
    for name, control in form.controls.items():
        own_key, _, help_text = control.info.partition("\n")
        assert own_key == f"`{name}` `?`"
        named = [word for word in NAME.findall(help_text) if word in form.options]
        assert named == [], name


def test_missing_files_of_a_queued_run_are_reported_when_its_turn_comes(tab, tmp_path):
    settings = {**startable(tmp_path), "learning_rate": 1e-4, "output_dir": str(tmp_path)}
    run = past_run(tab, tmp_path / "run", toml_text(settings), state="queued")
    row = tab._queue.store.row(int(run))
    assert why_not(row) == ""
    (tmp_path / "m.safetensors").unlink()
    (tmp_path / "data" / "10_cat" / "one.png").unlink()
    assert re.fullmatch("pretrained_model_name_or_path: .*; train_data_dir: no images .*", why_not(row))
    tab._queue.store.forget(int(run), state="queued")


def test_values_a_preset_replaced_are_restored(tab, form):
    data = page_after(form, {"network_dim": 77, "seed": 3, "wandb_api_key": "s3cret"})
    data |= {tab.family: "sdxl", tab.file: "a.toml", tab.preset: "flux_safe_start", tab.unknown: {"mine": 1}}
    data |= {tab.opened: "a.toml", form.prompts: "a cat", tab.before: {}, tab.run.past: "undo"}
    assert "Nothing to undo" in tab._open_past(data)[tab.run.message]
    updates = tab._open_past({**data, tab.run.past: "preset:sdxl_safe_start"})
    assert 'data-load="undo"' in updates[tab.run.message]
    after = {**data, **{c: u for c, u in updates.items() if c in form.controls.values()}}
    assert form.read(after)["network_dim"] == 16
    back = tab._open_past({**after, tab.before: updates[tab.before]})
    assert back[form.controls["network_dim"]] == "77"
    assert form.read({**after, **back})["seed"] == 3
    assert (back[tab.unknown], back[tab.opened], back[form.prompts]) == ({"mine": 1}, "a.toml", "a cat")


def test_a_missing_tab_is_reported(tab, form):
    updates = tab._open_past({tab.run.past: "tab:made up"})
    assert "no such tab" in updates[tab.run.message]


def test_an_error_of_the_program_is_an_answer_too(tab, caplog):
    def fails(data: dict) -> dict:
        raise KeyError("made up")

    assert "Internal error (KeyError: &#x27;made up&#x27;)" in tab._answering(fails)({})[tab.run.message]
    assert "made up" in caplog.text


def test_changes_are_counted_from_the_opened_saved_or_preset_values(tab, form):
    data = page_after(form, {})
    data |= {tab.family: "sdxl", tab.file: "", tab.preset: "sdxl_safe_start", tab.unknown: {}, tab.recent: []}
    data |= {tab.opened: "", form.prompts: "", tab.before: {}, tab.run.past: "undo"}
    preset = tab._open_preset(data)
    assert preset[tab.draft.state]["saved"]
    assert (
        "saved" not in tab._open_past({**data, tab.before: preset[tab.before]})[tab.draft.state]
    )  # a different form again


def test_model_and_images_are_copied_from_a_different_tab_and_the_rest_stays(tabs):
    lora, full = tabs["lora"], tabs["dreambooth"]
    theirs, _ = lora.form.complete({"train_data_dir": "/data/cats", "num_repeats": 3, "ae": "/ae", "seed": 5})
    data = {**page_after(full.form, {"seed": 7, "vae": "/vae"}), full.family: "sdxl", full.file: "", full.preset: None}
    data |= {full.unknown: {}, full.opened: "", full.form.prompts: "", full.run.past: "tab:lora", lora.draft.state: {}}
    assert "set in the LoRA tab yet" in full._open_past(data)[full.run.message]
    updates = full._open_past({**data, lora.draft.state: lora.draft.of(theirs, "flux", "", None)})
    assert updates[full.family] == "flux"
    assert 'data-load="undo"' in updates[full.run.message]
    after = full.form.read({**data, **updates})
    named = ("train_data_dir", "num_repeats", "ae", "vae", "seed")
    assert [after[name] for name in named] == ["/data/cats", 3, "/ae", "/vae", 7]


def test_a_dataset_file_is_not_opened_as_settings(tmp_path):
    (tmp_path / "d.toml").write_text("[general]\nseed = 1\n[[datasets]]\nresolution = 64\n")
    with pytest.raises(ValueError, match=r"d.toml is a dataset configuration, .* enter it under dataset_config"):
        open_configuration(tmp_path / "d.toml")


@pytest.mark.skipif(os.name == "nt", reason="it is a path there")
def test_a_windows_path_is_refused_on_other_systems():
    with pytest.raises(ValueError, match="is a Windows path"):
        config_path("C:\\Users\\me\\lora.toml")


def test_prompts_that_are_being_typed_are_used_or_reported(tab, form, tmp_path):
    assert form.prompt_editor
    text, kept = form.prompt_editor._text, form.prompt_editor._opened
    (file := tmp_path / "p.txt").write_text("a dog\n")
    typed = {form.prompts: "", text: "a fox --w 512\n", kept: ("", "")}
    assert {text, kept} <= tab._page
    assert tab._prompts(typed, {"sample_prompts": ""}) == "a fox --w 512"
    assert tab._prompts(typed, {"sample_prompts": str(file)}) == ""
    assert tab._has_other_prompts(typed, str(file))
    saved = {**typed, text: "a dog", kept: (str(file), "a dog\n")}
    assert tab._prompts(saved, {"sample_prompts": ""}) == ""  # cleared on purpose
    assert not tab._has_other_prompts(saved, str(file))


def test_prompts_without_an_interval_are_reported():
    remarks = from_values(SDXL_LORA, {"sample_prompts": "p.txt"}).remarks
    assert [remark.name for remark in remarks if "no samples" in remark.text] == ["sample_prompts"]
    remarks = from_values(SDXL_LORA, {"sample_prompts": "p.txt", "sample_every_n_steps": 5}).remarks
    assert "sample_prompts" not in [remark.name for remark in remarks]


def test_a_message_is_text():
    assert "&lt;script&gt;" in message("error", "<script>", ["<b>"])


# The flags and how it is served


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "0.0.0.0"], "--listen 0.0.0.0 opens the page to others"),
        (["--share"], "--share opens the page to others"),
        (["--username", "me"], "requires a password"),
        (["--config", "gone.toml"], "file not found"),
        (["--print-command"], "requires --config"),
    ],
)
def test_unsafe_ways_to_serve_are_refused_in_one_sentence(capsys, flags, words):
    assert command.main(flags) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [[], ["--listen", "localhost"], ["--listen", "::1"], ["--listen", "0.0.0.0", "--insecure"],
     ["--share", "--username", "me", "--password", "word"]],
)  # fmt: skip
def test_loopback_or_a_password_or_an_explicit_flag_is_enough(flags):
    assert command.refusal(command.parser().parse_args(flags)) is None


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory) -> gr.Blocks:
    return build(RunQueue(RunStore(tmp_path_factory.mktemp("state") / "runs.sqlite")))


def test_the_page_builds_and_exposes_no_way_to_start_a_program(whole_page):
    public = [d for d in whole_page.config["dependencies"] if d.get("api_visibility") == "public"]
    assert public == []


def test_an_idle_page_does_not_tick(whole_page):
    assert [block for block in whole_page.blocks.values() if isinstance(block, gr.Timer) and block.active] == []


@pytest.mark.parametrize(
    ("name", "text", "tab", "shown"),
    [
        (None, None, None, "lora"),
        ("a.toml", "network_dim = 8", None, "lora"),
        ("a.toml", "block_lr = ''", None, "dreambooth"),
        ("a.toml", "block_lr = ''\nin_json = 'm.json'", None, "finetune"),
        ("a.json", '{"image_folder": ""}', None, "finetune"),
        ("a.toml", "seed = 1", "dreambooth", "dreambooth"),
        ("a.toml", "= broken", None, "lora"),
    ],
)
def test_the_file_named_at_the_start_opens_in_its_tab(tmp_path, monkeypatch, name, text, tab, shown):
    monkeypatch.setattr(app, "TRAININGS", ())  # the content of the tabs takes a second to build
    if name:
        (tmp_path / name).write_text(text)
    page = build(RunQueue(RunStore(tmp_path / "runs.sqlite")), tmp_path / name if name else None, tab)
    (tabs,) = (block for block in page.blocks.values() if isinstance(block, gr.Tabs))
    assert tabs.selected == shown


def test_the_gui_process_loads_no_torch_and_reads_no_sources_of_gradio():
    code = (
        "import ast, sys; ast.get_source_segment = None; "  # Gradio would call it for each of its components
        "import kohya_gui.command, kohya_gui.app as app, kohya_gui.runs.live_routes, kohya_gui.print_command; "
        "from sd_scripts.runs.store import RunStore; "
        "app.build(app.RunQueue(RunStore())); sys.exit('torch' in sys.modules)"
    )
    env = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"}
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=env).returncode == 0


def test_an_answer_of_the_page_costs_the_browser_no_walk_over_all_its_controls(whole_page):
    """Gradio looks through the whole page for each control that shows progress, and for each listener of an event."""
    events = whole_page.get_config_file()["dependencies"]
    assert all(event["show_progress_on"] is not None for event in events if event["backend_fn"])
    most = 240 + 8 * len(cards())  # each family has files and options of its own
    assert sum(len(event["targets"]) for event in events if event["trigger_after"] is None) < most
    assert max(len(event["show_progress_on"] or []) for event in events) <= 1


def test_the_form_of_a_draft_is_named_by_option(tab):
    assert isinstance(tab.draft, Draft)
    assert tab.draft.values({"option:seed": 3, "family": "sdxl", "option:gone": 1}) == {"seed": 3}


def test_the_flags_and_a_printed_command_need_no_gradio():
    code = "import sys, kohya_gui.command, kohya_gui.print_command; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
