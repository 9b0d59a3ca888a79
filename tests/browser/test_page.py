"""The page in real Chromium, against the real GUI and the real trainer on a miniature: what a person would do.

Tests begin with `begin_anew` or another file, or with the mark `of_a_stranger`, since they share one page."""

import re
from pathlib import Path
from typing import Any

import pytest

from kohya_gui.form.configuration import open_file as open_settings
from kohya_gui.form.controls import shown
from kohya_gui.tabs import TABS
from sd_scripts.families.cards.registry import component_options
from sd_scripts.families.flux.card.options import RECOMMENDED
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.compile_bundles import BUNDLES, CUSTOM, CUSTOM_HELP
from sd_scripts.runs.folder import RunFolder
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from tests.browser.page_help import (
    BREAKS,
    ROOT,
    TELLS,
    TRAINING,
    ask_for,
    choose,
    expect,
    field,
    settled,
    unfold,
    variant,
)
from tests.support.data import make_folder
from tests.support.gui import SIX, settings_in
from tests.support.scripts import FLUX_FULL, FLUX_LORA, SDXL_FULL, SDXL_LORA

playwright = pytest.importorskip("playwright.sync_api")
Page = playwright.Page


of_a_stranger = pytest.mark.usefixtures("stranger")


def begin_anew(page: Page, folder: Path, **settings: object) -> None:
    """Open a file of SDXL with these settings: everything else in the form is as by default."""
    file = folder / f"{folder.name}.toml"  # a name of its own: the page shows that this one is open
    write_toml(file, {**SDXL_LORA.identity, **settings})
    open_file(page, file)


def open_file(page: Page, path: Path, tab: str = "lora") -> None:
    ask_for(page, path, tab)
    expect(page.locator(f"#{tab}-message")).to_contain_text(f"Opened {path.name}")


def go_to(page: Page, tab: str) -> None:
    page.locator(f"#{tab}-button").click()
    expect(page.locator(f"#{tab}-start")).to_be_visible()
    settled(page, f"#{tab}")


def family(page: Page, title: str, tab: str = "lora") -> None:
    page.locator(f"#{tab}-family").get_by_text(title, exact=True).click()


def test_a_field_that_changes_fast_leaves_the_page_quiet(page: Page, tmp_path: Path) -> None:
    begin_anew(page, tmp_path)
    asked: list[str] = []

    def note(request: Any) -> None:
        if request.url.endswith("/predict"):
            asked.append(request.url)

    page.on("request", note)
    for number in range(20):
        field(page, "pretrained_model_name_or_path").fill(f"/models/{number}.safetensors")
    expect(page.locator("#lora-pretrained_model_name_or_path-hint")).to_contain_text("not found")
    page.wait_for_timeout(1500)
    assert asked
    asked.clear()
    page.wait_for_timeout(500)
    page.remove_listener("request", note)
    assert asked == []


def set_the_six(page: Page) -> None:
    unfold(page, "advanced-training", "torch-compile-settings")
    field(page, "compile").check()
    expect(page.locator("#lora-compile_mode")).to_be_visible()
    choose(page, "compile_backend", "inductor")
    choose(page, "compile_mode", "reduce-overhead")
    choose(page, "compile_dynamic", "false")
    field(page, "compile_fullgraph").check()
    field(page, "compile_cache_size_limit").fill("64")


def expect_the_six(page: Page) -> None:
    unfold(page, "advanced-training", "torch-compile-settings")
    for name in ("compile", "compile_fullgraph"):
        expect(field(page, name)).to_be_checked()
    for name in ("compile_backend", "compile_mode", "compile_dynamic", "compile_cache_size_limit"):
        expect(field(page, name)).to_have_value(str(SIX[name]))


def test_the_network_type_shows_its_own_settings_and_hides_other_types_settings(page, tmp_path):
    begin_anew(page, tmp_path)
    for name in ("factor", "conv_dim", "constraint", "dora_wd"):
        expect(page.locator(f"#lora-{name}")).to_be_hidden()
    choose(page, "network_type", "lokr")
    expect(page.locator("#lora-factor")).to_be_visible()
    expect(page.locator("#lora-dora_wd")).to_be_visible()
    field(page, "factor").fill("8")
    choose(page, "network_type", "oft")
    expect(page.locator("#lora-constraint")).to_be_visible()
    expect(page.locator("#lora-dora_wd")).to_be_hidden()
    expect(page.locator("#lora-conv_dim")).to_be_visible()
    expect(page.locator("#lora-factor")).to_be_visible()  # it is set
    family(page, "FLUX.1")
    expect(page.locator("#lora-conv_dim")).to_be_hidden()  # it has no convolutions


def save_as(page: Page, path: Path) -> None:
    page.locator("#lora-save-as").click()
    field(page, "new-name").fill(str(path))
    page.locator("#lora-save-new").click()


@of_a_stranger
def test_a_new_page_starts_with_safe_defaults_and_a_reload_restores_each_tab(page, tmp_path):
    expect_safe_start(page)
    expect(page.locator("#lora-others")).to_be_hidden()  # there is nothing to copy yet
    expect_a_family_to_bring_its_safe_start_while_nothing_is_changed(page)
    expect_another_family_to_have_its_own_settings(page)
    expect_the_safe_start_to_be_chosen_again(page)
    expect_a_preset_to_be_marked_while_it_is_applied(page)
    expect_secrets_in_no_file(page, tmp_path)
    take_over_from_another_tab(page)
    go_to(page, "dreambooth")
    field(page, "output_name", "dreambooth").press_sequentially("of_dreambooth")
    change_an_open_file(page, tmp_path / "fine.toml")
    go_to(page, "lora")
    set_the_six(page)
    field(page, "output_name").fill("")
    field(page, "output_name").press_sequentially("kitten")

    reload_and_act_before_the_form_is_restored(page)
    expect_lora_restored(page, tmp_path)
    expect_the_file_still_open(page, tmp_path / "fine.toml")
    go_to(page, "dreambooth")
    expect(field(page, "output_name", "dreambooth")).to_have_value("of_dreambooth")
    expect(page.locator("#dreambooth-clip_l")).to_be_hidden()
    expect(page.locator("#dreambooth-train_text_encoder")).to_be_visible()
    go_to(page, "lora")
    expect_a_preset_to_be_offered_and_undone(page)

    (tmp_path / "a.toml").write_text("seed = 1\n")
    open_file(page, tmp_path / "a.toml")
    expect(field(page, "preset")).to_have_value("")
    expect(field(page, "learning_rate")).to_have_value("2e-06")  # a file is laid over the defaults
    expect(field(page, "output_dir")).to_have_value("")
    expect(page.locator("#lora-compile-switch input")).not_to_be_checked()
    expect_unsaved(page, False)


def change_an_open_file(page: Page, file: Path) -> None:
    """In the tab Fine-tune, without saving it."""
    write_toml(file, {**FLUX_FULL.identity, "seed": 1})
    go_to(page, "finetune")
    open_file(page, file, "finetune")
    expect(page.locator("#finetune-blockwise_fused_optimizers")).to_be_visible()
    expect_unsaved(page, False, "finetune")
    unfold(page, "advanced-training", "torch-compile-settings", tab="finetune")
    choose(page, "compile-bundle", "Triton", "finetune")
    field(page, "output_name", "finetune").press_sequentially("cat")
    expect_unsaved(page, True, "finetune")


def expect_the_file_still_open(page: Page, file: Path) -> None:
    """With its changes, which Save writes without a question."""
    go_to(page, "finetune")
    expect(field(page, "output_name", "finetune")).to_have_value("cat")
    expect(page.locator("#finetune-clip_l")).to_be_visible()
    expect_unsaved(page, True, "finetune")
    unfold(page, "advanced-training", "torch-compile-settings", tab="finetune")
    expect_bundle(page, "Triton", "finetune")
    page.locator("#finetune-save").click()
    expect(page.locator("#finetune-message")).to_contain_text("Saved to")
    expect_unsaved(page, False, "finetune")
    assert read_toml(file)["output_name"] == "cat"


def expect_safe_start(page: Page) -> None:
    expect(field(page, "preset")).to_have_value("SDXL safe start")
    expect(field(page, "learning_rate")).to_have_value("0.0001")
    expect(field(page, "caption_extension")).to_have_value(".txt")
    expect(field(page, "mixed_precision")).to_have_value("bf16")
    expect(field(page, "output_dir")).to_have_value("outputs")


def expect_a_family_to_bring_its_safe_start_while_nothing_is_changed(page: Page) -> None:
    family(page, "FLUX.1")
    expect(field(page, "preset")).to_have_value("FLUX.1 safe start")
    expect(page.locator("#lora-advice-flux")).to_be_hidden()  # its values are the recommended ones
    family(page, "SDXL")
    expect_safe_start(page)


def expect_the_safe_start_to_be_chosen_again(page: Page) -> None:
    """And its family with it."""
    field(page, "network_dim").fill("77")
    choose(page, "preset", "SDXL safe start")
    expect(page.locator("#lora-message")).to_contain_text("SDXL safe start applied")
    expect(field(page, "network_dim")).to_have_value("16")
    expect(page.locator("#lora-clip_skip")).to_be_visible()


def expect_another_family_to_have_its_own_settings(page: Page) -> None:
    """And to keep what both have."""
    field(page, "output_name").fill("kätzchen")
    expect(page.locator("#lora-clip_l")).to_be_hidden()
    noted = page.locator("#lora-pretrained_model_name_or_path strong:visible")
    expect(noted).to_contain_text("SDXL's ID is")
    family(page, "FLUX.1")
    expect(noted).to_contain_text("FLUX.1's IDs are")
    expect(page.locator("#lora-message")).to_contain_text("The preset FLUX.1 safe start sets recommended values")
    for name in ("clip_l", "t5xxl", "ae", "guidance_scale", "blocks_to_swap", "fp8_base"):
        expect(page.locator(f"#lora-{name}")).to_be_visible()
    for name in ("vae", "clip_skip", "v_parameterization", "max_token_length"):
        expect(page.locator(f"#lora-{name}")).to_be_hidden()
    expect(field(page, "output_name")).to_have_value("kätzchen")
    expect(field(page, "preset")).to_have_value("")
    advice = page.locator("#lora-advice-flux")
    field(page, "discrete_flow_shift").fill("1")
    advice.get_by_role("button").click()
    expect(advice).to_be_hidden()


def expect_a_preset_to_be_marked_while_it_is_applied(page: Page) -> None:
    held: list[Any] = []
    held_back = True
    page.route("**/gradio_api/**", lambda route: held.append(route) if held_back else route.continue_())
    choose(page, "preset", "FLUX.1 low memory 8 GB")
    expect(page.locator("#lora-preset[data-busy]")).to_be_visible()
    held_back = False
    for route in held:
        route.continue_()
    expect(page.locator("#lora-message")).to_contain_text("FLUX.1 low memory 8 GB applied")
    expect(page.locator("[data-busy]")).to_have_count(0)
    page.unroute_all()
    expect(field(page, "blocks_to_swap")).to_have_value("28")
    expect(field(page, "fp8_base")).to_be_checked()


def expect_secrets_in_no_file(page: Page, folder: Path) -> None:
    """Neither saved file contains the key; one has compile, turned on by the switch next to the presets."""
    switch = page.locator("#lora-compile-switch input")
    switch.check()  # the panel of the six is folded, and has never been opened
    save_as(page, folder / "on.toml")
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    assert read_toml(folder / "on.toml")["compile"] is True
    unfold(page, "advanced-training", "logging")
    field(page, "wandb_api_key").fill("s3cret")
    save_as(page, folder / "secret.toml")
    expect(page.locator("#lora-message")).to_contain_text("(wandb_api_key): is a secret")
    assert "s3cret" not in (folder / "secret.toml").read_text()


def take_over_from_another_tab(page: Page) -> None:
    """Model, images and family, until Undo; nothing from a tab in which nothing is set."""
    field(page, "train_data_dir").fill("/images/cats")
    for tab in FULL:
        go_to(page, tab)
        expect(field(page, "preset", tab)).to_have_value("SDXL safe start")
        expect(field(page, "learning_rate", tab)).to_have_value("1e-05")
    go_to(page, "dreambooth")
    field(page, "output_name", "dreambooth").fill("mine")
    page.locator("#dreambooth-others").get_by_role("button", name="Fine-tune").click()
    told = page.locator("#dreambooth-message")
    expect(told).to_contain_text("No model, images or folders are set in the Fine-tune tab yet")
    page.locator("#dreambooth-others").get_by_role("button", name="LoRA").click()
    expect(field(page, "train_data_dir", "dreambooth")).to_have_value("/images/cats")
    expect(field(page, "output_name", "dreambooth")).to_have_value("mine")
    expect(page.locator("#dreambooth-clip_l")).to_be_visible()
    told.get_by_role("button", name="Undo").click()
    expect(field(page, "train_data_dir", "dreambooth")).to_have_value("")
    expect(page.locator("#dreambooth-clip_l")).to_be_hidden()
    field(page, "output_name", "dreambooth").fill("")


def reload_and_act_before_the_form_is_restored(page: Page) -> None:
    """Nothing acts on it, although the page was left in the middle of a word."""
    held: list[Any] = []
    held_back = True

    def answer(route: Any) -> None:
        held.append(route) if held_back and route.request.method == "POST" else route.continue_()

    page.route("**/gradio_api/**", answer)
    page.reload()
    expect(page.locator("#studio-restoring")).to_be_visible()
    expect(page.locator("#lora[role=tabpanel]")).to_have_attribute("inert", "")
    settled(page, "#lora")
    field(page, "output_name").focus()  # which it must not take
    page.keyboard.type("x")
    page.locator("#lora-start").click(force=True)
    page.evaluate("() => new Promise((done) => setTimeout(done, 400))")  # after the timer that would keep a draft
    held_back = False
    for route in held:
        route.continue_()
    expect(field(page, "output_name")).to_have_value("kitten")
    expect(page.locator("#studio-restoring")).to_be_hidden()
    expect(page.locator("#lora-message .message")).to_have_count(0)  # Start was not pressed
    page.unroute_all()


def expect_lora_restored(page: Page, folder: Path) -> None:
    """All but the secret."""
    switch = page.locator("#lora-compile-switch input")
    expect(field(page, "preset")).to_have_value("FLUX.1 low memory 8 GB")
    expect(page.locator("#lora-clip_l")).to_be_visible()
    expect(field(page, "train_data_dir")).to_have_value("/images/cats")
    expect(field(page, "discrete_flow_shift")).to_have_value("3.1582")
    expect(page.locator("#lora-advice-flux")).to_be_hidden()
    expect(switch).to_be_checked()
    expect_the_six(page)
    unfold(page, "logging")
    expect(field(page, "wandb_api_key")).to_have_value("")
    field(page, "file").click()  # the saved file is among the recent ones
    expect(page.get_by_role("option", name=str(folder / "secret.toml"))).to_be_visible()
    field(page, "compile").uncheck()
    expect(switch).not_to_be_checked()
    switch.check()
    expect(page.locator("#lora-compile_mode")).to_be_visible()
    expect(field(page, "compile")).to_be_checked()


def expect_a_preset_to_be_offered_and_undone(page: Page) -> None:
    """For another family; and a key that starts."""
    family(page, "SDXL")
    expect(page.locator("#lora-clip_skip")).to_be_visible()
    expect(page.locator("#lora-panel-timesteps")).to_be_hidden()
    field(page, "network_dim").fill("77")
    family(page, "FLUX.1")
    told = page.locator("#lora-message")
    told.get_by_role("button", name="Use FLUX.1 safe start").click()
    expect(field(page, "preset")).to_have_value("FLUX.1 safe start")
    expect(field(page, "network_dim")).not_to_have_value("77")
    expect_unsaved(page, False)
    told.get_by_role("button", name="Undo").click()
    expect(field(page, "network_dim")).to_have_value("77")
    expect_unsaved(page, True)
    field(page, "max_train_steps").fill("-3")
    field(page, "max_train_steps").press("Control+Enter")  # starts
    expect(told).to_contain_text("(max_train_steps): -3 is outside")


def test_a_preset_and_the_six_controls_are_saved_and_restored(page, tmp_path):
    begin_anew(page, tmp_path, output_dir="outputs")
    choose(page, "preset", "SDXL safe start")
    expect(page.locator("#lora-message")).to_contain_text("SDXL safe start applied")
    set_the_six(page)
    page.locator("#lora-save-as").click()
    field(page, "new-name").fill(str(tmp_path / "my cat"))
    page.locator("#lora-save-new").click()
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    saved = read_toml(tmp_path / "my cat.toml")
    preset = read_toml(ROOT / "presets" / "lora" / "sdxl_safe_start.toml")
    six = {name: value for name, value in SIX.items() if name != "compile_backend"}  # inductor is the default
    assert saved == {**SDXL_LORA.identity, **preset, **six, "output_dir": "outputs"}
    choose(page, "preset", "SDXL low memory 12 GB")
    expect(page.locator("#lora-message")).to_contain_text("SDXL low memory 12 GB")
    open_file(page, tmp_path / "my cat.toml")
    expect_the_six(page)


def expect_bundle(page: Page, title: str, tab: str = "lora") -> None:
    """The list shows the bundle and its effect, and the switch next to the presets whether it compiles."""
    helps = {bundle.title: bundle.help for bundle in BUNDLES} | {CUSTOM: CUSTOM_HELP}
    expect(field(page, "compile-bundle", tab)).to_have_value(title)
    expect(page.locator(f"#{tab}-compile-bundle")).to_contain_text(helps[title])
    expect(page.locator(f"#{tab}-compile-switch input")).to_be_checked(checked=title != "None")


def test_the_browser_alone_updates_the_page_after_a_click(page, tmp_path):
    """The server does not answer in the meantime."""
    begin_anew(page, tmp_path)
    unfold(page, "advanced-training", "torch-compile-settings")
    held: list[Any] = []
    page.route("**/gradio_api/**", lambda route: held.append(route))
    expect_compile_controls_only_where_they_count(page)
    expect_modes_only_for_the_backend_that_takes_one(page)
    expect_bundles_to_set_the_controls_and_to_show_what_they_hold(page)
    page.locator("#lora-compile-switch input").uncheck()
    family(page, "FLUX.1")
    expect(page.locator("#lora-clip_l")).to_be_visible()
    expect(page.locator("#lora-panel-timesteps")).to_be_visible()
    expect(page.locator("#lora-clip_skip")).to_be_hidden()
    expect(page.locator("#lora-vae")).to_be_hidden()
    for route in held:
        route.continue_()
    page.unroute_all()


def expect_compile_controls_only_where_they_count(page: Page) -> None:
    expect(page.locator("#lora-panel-torch-compile-settings")).to_contain_text("PyTorch 2.1")
    expect(page.locator("#lora-compile_mode")).to_be_hidden()
    expect(page.locator("#lora-compile_vae")).to_be_hidden()
    expect(page.locator("#lora-compile-bundle")).to_be_visible()
    field(page, "compile").check()
    for name in SIX:
        expect(page.locator(f"#lora-{name}")).to_be_visible()
    field(page, "compile_vae").check()
    field(page, "compile").uncheck()
    expect(page.locator("#lora-compile_vae")).to_be_visible()  # it is on, and reads what follows
    expect(page.locator("#lora-compile_mode")).to_be_visible()
    field(page, "compile_vae").uncheck()
    expect(page.locator("#lora-compile_mode")).to_be_hidden()


def expect_modes_only_for_the_backend_that_takes_one(page: Page) -> None:
    field(page, "compile").check()
    mode = page.locator("#lora-compile_mode")
    choose(page, "compile_backend", "cudagraphs")
    expect(mode).to_have_css("pointer-events", "none")
    choose(page, "compile_backend", "inductor")
    choose(page, "compile_mode", "max-autotune")
    choose(page, "compile_backend", "eager")
    expect(mode).to_have_css("pointer-events", "auto")  # the problem there can be fixed


def expect_bundles_to_set_the_controls_and_to_show_what_they_hold(page: Page) -> None:
    for bundle in reversed(BUNDLES):
        choose(page, "compile-bundle", bundle.title)
        for o in each_option(CompileOptions):
            value = getattr(bundle.options, o.name)
            if o.type is bool and (o.name == "compile" or bundle.options.compile):
                expect(field(page, o.name)).to_be_checked(checked=value)
            elif bundle.options.compile:
                expect(field(page, o.name)).to_have_value(str(shown(o, value)))
        expect_bundle(page, bundle.title)
    choose(page, "compile-bundle", CUSTOM)
    expect(field(page, "compile")).to_be_checked()
    expect_bundle(page, CUSTOM)  # until the values match a bundle again
    field(page, "compile_fullgraph").check()
    field(page, "compile_fullgraph").uncheck()
    expect_bundle(page, "Default")
    field(page, "compile_options").fill("shape_padding=True")
    expect_bundle(page, CUSTOM)
    choose(page, "compile_mode", "max-autotune")
    expect_bundle(page, "Triton")
    page.locator("#lora-compile-switch input").uncheck()
    expect_bundle(page, "None")
    page.locator("#lora-compile-switch input").check()
    expect_bundle(page, "Triton")


def test_the_bundle_follows_files_and_presets(page, tmp_path):
    begin_anew(page, tmp_path, compile=True, compile_mode="max-autotune-no-cudagraphs")
    unfold(page, "advanced-training", "torch-compile-settings")
    expect_bundle(page, "Inductor")
    choose(page, "preset", "SDXL fast compiled")
    expect_bundle(page, CUSTOM)
    choose(page, "preset", "SDXL safe start")
    expect_bundle(page, "None")
    choose(page, "compile-bundle", "Triton")
    expect_unsaved(page, True)
    save_as(page, tmp_path / "triton.toml")
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    saved = read_toml(tmp_path / "triton.toml")
    (triton,) = (bundle for bundle in BUNDLES if bundle.title == "Triton")
    assert {name: value for name, value in saved.items() if name.startswith("compile")} == triton.changes


MARKED = """([is, tab]) => is === getComputedStyle(
  document.querySelector(`#${tab}-file [data-testid="block-info"]`), '::after').content.includes("Unsaved changes")"""


def expect_unsaved(page: Page, is_unsaved: bool, tab: str = "lora") -> None:
    page.wait_for_function(MARKED, arg=[is_unsaved, tab])


def test_a_different_file_is_overwritten_only_after_a_second_click(page, tmp_path):
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    write_toml(mine, {**SDXL_LORA.identity, "seed": 1})
    other.write_text("seed = 2\n")
    open_file(page, mine)
    expect_unsaved(page, False)
    field(page, "output_name").fill("cat")
    expect_unsaved(page, True)
    page.locator("#lora-save").click()  # the open file: no question
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    expect_unsaved(page, False)
    assert read_toml(mine) == {**SDXL_LORA.identity, "seed": 1, "output_name": "cat"}
    page.locator("#lora-save-as").click()
    field(page, "new-name").fill(str(other))
    page.locator("#lora-save-new").click()
    expect(page.locator("#lora-message")).to_contain_text("other.toml already exists")
    assert read_toml(other) == {"seed": 2}
    field(page, "new-name").press_sequentially("x")  # a different name is a different question
    expect(page.locator("#lora-save-new")).to_have_text("Save")
    field(page, "new-name").fill(str(other))
    page.locator("#lora-save-new").click()
    expect(page.locator("#lora-save-new")).to_have_text("Replace")
    page.locator("#lora-save-new").click()
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    assert read_toml(other) == {**SDXL_LORA.identity, "seed": 1, "output_name": "cat"}
    field(page, "file").fill(str(mine))  # a name typed above is not an open file
    field(page, "file").press("Enter")
    page.locator("#lora-save").click()
    expect(page.locator("#lora-save-new")).to_have_text("Replace")
    page.locator("#lora-cancel").click()
    expect(page.locator("#lora-new-name")).to_be_hidden()


def test_start_focuses_the_invalid_field_in_its_folded_panel_and_marks_it_until_changed(page, tmp_path):
    begin_anew(page, tmp_path)
    field(page, "max_train_steps").fill("-3")
    field(page, "max_train_steps").press("Tab")
    beside = page.locator("#lora-max_train_steps")
    expect(beside).to_have_css("outline-style", "solid")
    assert "-3 is outside" in beside.evaluate("field => getComputedStyle(field, '::after').content")
    page.locator("#lora-start").click()
    expect(page.locator("#lora-message")).to_contain_text("Max train steps (max_train_steps): -3 is outside")
    field(page, "max_train_steps").fill("10")
    unfold(page, "advanced-training", "loss")
    field(page, "min_snr_gamma").fill("-1")
    page.locator("#lora-panel-advanced-training > .label-wrap").click()
    expect(field(page, "min_snr_gamma")).to_be_hidden()
    page.locator("#lora-start").click()
    expect(field(page, "min_snr_gamma")).to_be_focused()
    expect(page.locator("#lora-message")).to_contain_text("pretrained_model_name_or_path")
    expect(page.locator("#lora-run [data-action=stop]")).to_be_hidden()
    assert outline(page, "min_snr_gamma") == "solid"
    beside = page.locator("#lora-min_snr_gamma")
    assert "-1.0 is outside" in beside.evaluate("field => getComputedStyle(field, '::after').content")
    field(page, "min_snr_gamma").fill("5")
    assert outline(page, "min_snr_gamma") == "none"
    expect(page.locator("#lora-message li.stale")).to_have_count(1)  # the other problems stand
    field(page, "max_train_steps").fill("-3")
    page.locator("#lora-save-as").click()
    field(page, "new-name").fill(str(tmp_path / "bad"))
    page.locator("#lora-save-new").click()
    expect(page.locator("#lora-message")).to_contain_text("(max_train_steps)")
    expect(field(page, "max_train_steps")).not_to_be_focused()  # only Start takes one elsewhere
    page.locator("#lora-message .field-link", has_text="Max train steps").click()
    expect(field(page, "max_train_steps")).to_be_focused()


def outline(page: Page, name: str) -> str:
    return page.locator(f"#lora-{name}").evaluate("field => getComputedStyle(field).outlineStyle")


def test_start_is_answered_while_the_answer_to_print_is_on_its_way(page, tmp_path):
    """Gradio's queue closes the stream of its answers after Print's; one that comes to it then is lost."""
    begin_anew(page, tmp_path)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#lora-print").click()
    page.locator("#lora-start").click()
    expect(page.locator("#lora-message .message[data-go]")).to_be_visible()
    expect(field(page, "pretrained_model_name_or_path")).to_be_focused()
    assert [url for url in asked if "/queue/" in url] == []
    assert len([url for url in asked if "/run/predict" in url]) >= 2


def test_a_missing_file_is_reported_in_the_page(page, tmp_path):
    field(page, "file").fill(str(tmp_path / "gone.toml"))
    field(page, "file").press("Enter")
    page.locator("#lora-open").click()
    expect(page.locator("#lora-message [role=alert]")).to_contain_text("gone.toml")


def test_recommended_values_are_applied_with_one_click(page, tmp_path):
    (tmp_path / "field.toml").write_text('clip_l = "clip_l.safetensors"\n')
    open_file(page, tmp_path / "field.toml")
    advice = page.locator("#lora-advice-flux")
    expect(advice).to_contain_text("discrete_flow_shift = 3.1582")
    advice.get_by_role("button").click()
    expect(advice).to_be_hidden()
    page.locator("#lora-save").click()
    expect(page.locator("#lora-message")).to_contain_text("Saved to")
    assert read_toml(tmp_path / "field.toml") == {**FLUX_LORA.identity, "clip_l": "clip_l.safetensors", **RECOMMENDED}
    expect(field(page, "discrete_flow_shift")).to_have_value("3.1582")
    field(page, "guidance_scale").fill("3.5")
    expect(advice).to_be_visible()


def test_the_command_is_shown_to_copy_with_all_settings_and_nothing_is_written(page, demo):
    output = demo.parent / "printed only"
    settings = variant(demo, "printed", output_dir=str(output))
    open_file(page, settings)
    unfold(page, "saving-more", "network-more", "advanced-training", "noise")  # what comes into view stays unset
    expect(page.locator("#lora-pretrained_model_name_or_path-hint")).to_contain_text("SDXL checkpoint")
    expect(page.locator("#lora-train_data_dir-hint")).to_contain_text("12 images")
    page.locator("#lora-print").click()
    command = page.locator("#lora-command")
    expect(command).to_contain_text("sdxl_train_network.py")
    expect(command).to_contain_text("--compile_backend eager")
    expect(command.get_by_role("button", name=re.compile("copy", re.I))).to_be_visible()
    assert settings_in(command.locator("pre").inner_text()) == from_values(SDXL_LORA, read_toml(settings)).changed()
    assert not output.exists()
    field(page, "seed").fill("8")
    expect(command).to_have_attribute("data-stale", "")
    page.locator("#lora-print").click()
    expect(command).not_to_have_attribute("data-stale", "")
    expect(command).to_contain_text("--seed 8")


def test_an_answer_to_the_whole_form_does_not_make_later_ones_slow(page, tmp_path):
    begin_anew(page, tmp_path)
    page.locator("#lora-print").click()
    expect(page.locator("#lora-message")).to_contain_text("problems to fix")
    settled(page, "#lora")  # the message is there before the rest of the answer
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.startPreciseCoverage", {"callCount": True})
    field(page, "pretrained_model_name_or_path").fill(str(tmp_path))
    expect(page.locator("#lora-pretrained_model_name_or_path-hint")).to_contain_text("folder")
    scripts = profiler.send("Profiler.takePreciseCoverage")["result"]
    profiler.detach()
    called = [each for script in scripts for each in script["functions"] if each["functionName"] == "update_state"]
    most = 16 * (1 + len(component_options()))  # the hint of the model reads the fields of all components
    assert 0 < sum(each["ranges"][0]["count"] for each in called) < most, "Gradio updates what did not change"


def test_a_model_of_the_other_family_is_named_and_offers_to_switch(page, demo, flux_demo, tmp_path):
    begin_anew(page, tmp_path)
    model = read_toml(flux_demo)["pretrained_model_name_or_path"]
    found = page.locator("#lora-pretrained_model_name_or_path-hint")
    field(page, "pretrained_model_name_or_path").fill(model)
    expect(found).to_contain_text("FLUX.1 dev")
    expect(found).to_contain_text("not a base model for SDXL")
    found.get_by_role("button", name="Switch to FLUX.1").click()
    expect(page.locator("#lora-clip_l")).to_be_visible()
    expect(found).not_to_contain_text("not a base model")
    field(page, "t5xxl").fill(read_toml(demo)["pretrained_model_name_or_path"])
    expect(page.locator("#lora-t5xxl-hint")).to_contain_text("SDXL checkpoint")
    expect(page.locator("#lora-t5xxl-hint")).to_contain_text("not the T5-XXL text encoder")


def test_flux_is_printed_and_trained_compiled_and_swapped_and_then_with_both_turned_off(page, flux_demo, tmp_path):
    """Two runs from one form, in which only these values change in between; the second needs no trainer.

    The first has secrets, which are in no file and no command, and a network that cannot be compiled as a whole.
    """
    make_folder(tmp_path / "data" / "1_cat", [(128, 128), (128, 64)])
    sizes = {"train_data_dir": str(tmp_path / "data"), "resolution": "128,128", "enable_bucket": True}
    buckets = {"min_bucket_reso": 64, "max_bucket_reso": 128, "bucket_reso_steps": 32}
    settings = variant(flux_demo, "flux", max_train_steps=4, blocks_to_swap=2, **sizes, **buckets, **BREAKS)
    asked = from_values(FLUX_LORA, read_toml(settings)).changed()
    open_file(page, settings)
    for name, found in (("clip_l", "CLIP text encoder"), ("t5xxl", "T5 text encoder"), ("ae", "FLUX.1 autoencoder")):
        expect(page.locator(f"#lora-{name}-hint")).to_contain_text(found)
    unfold(page, "advanced-training", "logging", "hugging-face")
    field(page, "wandb_api_key").fill("s3cret-of-wandb")
    field(page, "huggingface_token").fill("hf_s3cret")
    page.locator("#lora-save").click()
    expect(page.locator("#lora-message")).to_contain_text("(huggingface_token): is a secret")
    page.locator("#lora-print").click()
    expect(page.locator("#lora-command")).to_contain_text("flux_train_network.py")
    line = page.locator("#lora-command pre").inner_text()
    assert "s3cret" not in line
    assert settings_in(line, FLUX_LORA) == asked
    page.locator("#lora-start").click()
    run = page.locator("#lora-run")
    expect(run.locator(".run-name")).to_contain_text("flux")
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    expect(run).to_contain_text("step 4 of 4")
    expect_recompiles_and_graph_breaks_with_their_reasons(page, run)
    output = flux_demo.parent / "output"
    expect(run.locator(".result code")).to_have_text(str(output / "flux.safetensors"))
    run.locator(".result button").click()
    expect(run.locator(".result button")).to_have_text("Copied")
    assert (output / "flux.safetensors").is_file()
    expect_no_secret(flux_demo.parent)

    unfold(page, "torch-compile-settings", "metadata")
    field(page, "output_name").fill("eager")
    field(page, "compile").uncheck()
    field(page, "blocks_to_swap").fill("")
    field(page, "training_comment").fill(TELLS["training_comment"])
    page.locator("#lora-start").click()
    expect(run.locator(".run-name")).to_contain_text("eager")
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    expect(page.locator("#lora-start")).to_be_visible()
    both, eager = (of_the_run(output, name) for name in ("flux", "eager"))
    assert (both["compile"], both["blocks_to_swap"]) == (True, 2)
    differ = {name for name in both.keys() | eager.keys() if both.get(name) != eager.get(name)}
    assert differ == {"compile", "blocks_to_swap", "output_name", *TELLS}
    assert not eager.keys() & {"compile", "blocks_to_swap"}


def expect_recompiles_and_graph_breaks_with_their_reasons(page: Page, run: Any) -> None:
    section = run.locator("[data-section=compile]")
    expect(section).to_contain_text("torch.compile")
    expect(section).to_contain_text(re.compile(r"[1-9]\d* graphs · [1-9]\d* recompiles · [1-9]\d* graph breaks"))
    expect(section).to_contain_text(re.compile(r"Graph breaks at breaking_network\.py:\d+"))
    expect(run.locator("[data-section=warnings]")).to_contain_text("the code there runs uncompiled")
    section.get_by_text("Every graph").click()
    reasons = section.locator("tbody tr", has_text=re.compile(r"size of .+ is \d+ instead of \d+"))
    assert reasons.count() > 0
    expect(run.locator(".studio-chart canvas").first).to_be_visible()
    plot, marked = run.locator(".curves-plot"), run.locator(".curves-readout p span")
    plot.focus()
    page.keyboard.press("Home")
    expect(marked.filter(has_text="graph break at")).not_to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(marked.filter(has_text=re.compile("size of .+ instead of"))).not_to_have_count(0)


def expect_no_secret(folder: Path) -> None:
    """A run wrote all its files below this folder, and no secret into any of them."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert {"console.log", "events.jsonl", "config.toml"} <= {path.name for path in written}
    assert [path for path in written if b"s3cret" in path.read_bytes()] == []


def of_the_run(output: Path, name: str) -> dict[str, Any]:
    """The settings that the newest run of this name was started with."""
    folder = max((output / "runs").glob(f"*-{name}"))
    return open_settings(RunFolder(folder).config, TABS["lora"]).values


def test_start_refuses_fields_marked_red_and_focuses_the_first(page, demo, tmp_path):
    open_file(
        page, variant(demo, "red", train_data_dir=str(tmp_path), pretrained_model_name_or_path="D:/none.safetensors")
    )
    page.locator("#lora-start").click()
    told = page.locator("#lora-message")
    expect(told).to_contain_text("2 problems to fix")
    expect(told).to_contain_text("Base model (pretrained_model_name_or_path): ")
    expect(told).to_contain_text("Training images (train_data_dir): ")
    expect(field(page, "pretrained_model_name_or_path")).to_be_focused()
    assert [outline(page, name) for name in ("pretrained_model_name_or_path", "train_data_dir")] == ["solid"] * 2
    assert not (demo.parent / "output" / "runs").exists() or not list((demo.parent / "output" / "runs").glob("*red"))


def test_a_flat_folder_is_used_unchanged_with_one_click(page, demo, tmp_path):
    begin_anew(page, tmp_path, caption_extension=".txt")
    (flat,) = Path(read_toml(demo)["train_data_dir"]).iterdir()
    (demo.parent / "flat").mkdir()
    for image in flat.iterdir():
        (demo.parent / "flat" / image.name).write_bytes(image.read_bytes())
    field(page, "train_data_dir").fill(str(demo.parent / "flat"))
    found = page.locator("#lora-train_data_dir-hint")
    expect(found).to_contain_text("12 images in the folder itself")
    found.get_by_role("button", name="Use this folder as is").click()
    expect(field(page, "num_repeats")).to_have_value("1")
    expect(found.locator(".hint-good")).to_contain_text("12 images, all captioned, 12 per epoch")
    choose_or_type(page, "caption_extension", ".caption", "lora")
    found.get_by_role("button", name="Use .txt instead").click()
    expect(field(page, "caption_extension")).to_have_value(".txt")
    expect(found.locator(".hint-good")).to_contain_text("12 images, all captioned")


def test_a_path_is_chosen_in_a_dialog_with_the_keyboard_alone(page, demo, tmp_path):
    begin_anew(page, tmp_path)
    field(page, "train_data_dir").fill(str(demo.parent))
    page.locator("#lora-train_data_dir").get_by_role("link", name="Browse").focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog.browse[open]")
    expect(dialog.locator(".where")).to_have_value(str(demo.parent))
    wanted = Path(read_toml(demo)["train_data_dir"])
    dialog.get_by_role("button", name=wanted.name, exact=False).press("Enter")
    expect(dialog.locator(".where")).to_have_value(str(wanted))
    dialog.get_by_role("button", name="Use this folder").press("Enter")
    expect(field(page, "train_data_dir")).to_have_value(str(wanted))
    expect(page.locator("#lora-train_data_dir-hint")).to_contain_text("12 images")
    field(page, "file").fill(str(demo.parent / "x"))
    page.locator("#lora-browse").click()
    dialog.get_by_role("button", name=demo.name).click()
    expect(page.locator("#lora-message")).to_contain_text(f"Opened {demo.name}")


def test_a_settings_file_that_is_dropped_on_the_page_is_opened_and_the_page_stays(page):
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.items.add(new File(["seed = 77\\n"], "mine.toml"));
      const over = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
      document.querySelector("#lora-seed, #lora").dispatchEvent(over);
      window.stayed = over.defaultPrevented;
    }""")
    expect(page.locator("#lora-message")).to_contain_text("Opened mine.toml")
    expect(field(page, "seed")).to_have_value("77")
    assert page.evaluate("stayed")
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(4.1e6)], "large.json"));
      document.querySelector("#lora").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    }""")
    expect(page.locator("#studio-toasts")).to_contain_text("large.json is not opened")


def test_a_second_browser_tab_with_the_same_settings_is_reported(page):
    said = "(kind) => new BroadcastChannel(`studio-drafts ${location.host}`).postMessage({ from: 'other', kind })"
    page.evaluate(said, "opened")
    expect(page.locator("#studio-twin")).to_contain_text("also open in another tab")
    page.evaluate(said, "gone")
    expect(page.locator("#studio-twin")).to_have_count(0)


def test_no_list_stays_open_when_tabbing_through_a_form(page, tmp_path):
    begin_anew(page, tmp_path)
    for tab in ("lora", "dreambooth"):
        go_to(page, tab)
        page.locator(f"#{tab}-output_name input, #{tab}-output_name textarea").first.focus()
        lists = set()
        for _ in range(45):
            page.keyboard.press("Tab")
            lists.add(
                page.evaluate(
                    "document.activeElement.matches('[role=combobox]') && document.activeElement.closest('.option')?.id"
                )
            )
        assert len(lists) > 5, lists
        page.locator(f"#{tab}-start").focus()
        expect(page.locator(".options")).to_have_count(0)
    go_to(page, "lora")
    field(page, "optimizer_type").fill("torch.optim.RAdam")
    field(page, "optimizer_type").press("Tab")
    expect(page.locator(".options")).to_have_count(1)  # of the next field, which has one
    expect(field(page, "optimizer_type")).to_have_value("torch.optim.RAdam")


def test_a_name_in_use_causes_a_question_before_the_start(page, gui, demo):
    gui.ask("queue", {"paused": True})
    output = demo.parent / "output"
    (output / "asked-state").mkdir(parents=True)
    open_file(page, variant(demo, "asked"))
    told = page.locator("#lora-message")
    page.locator("#lora-start").click()
    expect(told).to_contain_text("The output name 'asked' is already in use: 'asked-state' in")
    expect(told.get_by_role("button", name="Continue that run")).to_be_visible()
    expect(told.get_by_role("button", name="Use 'asked-2'")).to_be_focused()
    page.keyboard.press("Enter")
    expect(told).to_contain_text("asked-2 is queued: the queue is paused")
    expect(field(page, "output_name")).to_have_value("asked-2")
    page.locator("#lora-start").click()  # a run that waits will write that name
    expect(told).to_contain_text("a run that is queued")
    told.get_by_role("button", name="Use 'asked-3'").click()
    expect(told).to_contain_text("asked-3 is queued")
    for run in gui.ask("board")["runs"]:
        if run["state"] == "queued":
            gui.ask(f"run/{run['id']}/remove", {})
    gui.ask("queue", {"paused": False})


FULL = ("dreambooth", "finetune")


def test_a_file_for_a_different_tab_names_it(page, tmp_path):
    (tmp_path / "cat.toml").write_text("network_dim = 8\n")
    go_to(page, "dreambooth")
    ask_for(page, tmp_path / "cat.toml", "dreambooth")
    told = page.locator("#dreambooth-message [role=alert]")
    expect(told).to_contain_text("cat.toml is a LoRA configuration; open it in the LoRA tab")


def expect_presets_that_fit(page: Page, tab: str) -> None:
    """Presets of whole models, by the card that they name."""
    choose(page, "preset", "FLUX.1 low memory 12 GB", tab)
    expect(page.locator(f"#{tab}-message")).to_contain_text("FLUX.1 low memory 12 GB applied")
    expect(field(page, "blocks_to_swap", tab)).to_have_value("35")
    for name in ("full_bf16", "fused_backward_pass", "gradient_checkpointing"):
        expect(field(page, name, tab)).to_be_checked()
    expect(page.locator(f"#{tab}-fp8_base")).to_have_count(0)
    unfold(page, "advanced-training", "torch-compile-settings", tab=tab)
    field(page, "compile", tab).check()
    expect(page.locator(f"#{tab}-compile_vae")).to_be_visible()


def fill_in(page: Page, tab: str, settings: dict[str, object]) -> None:
    """Type settings into the form, as far as they are texts."""
    for name, value in settings.items():
        field(page, name, tab).fill(str(value))


def test_whole_models_go_from_an_empty_form_to_a_finished_run_in_either_tab(page, demo, flux_demo, tmp_path):
    for tab in FULL:
        write_toml(tmp_path / f"{tab}.toml", SDXL_FULL.identity)
        go_to(page, tab)
        open_file(page, tmp_path / f"{tab}.toml", tab)
    go_to(page, "dreambooth")
    choose(page, "preset", "SDXL safe start", "dreambooth")
    expect(page.locator("#dreambooth-message")).to_contain_text("SDXL safe start applied")
    train_sdxl_by_dreambooth(page, demo)
    expect_presets_that_fit(page, "dreambooth")
    go_to(page, "finetune")
    expect_presets_that_fit(page, "finetune")
    fine_tune_flux(page, flux_demo)


def train_sdxl_by_dreambooth(page: Page, demo: Path) -> None:
    tab, made = "dreambooth", read_toml(demo)
    go_to(page, tab)
    output = demo.parent / "whole output"
    fill_in(page, tab, {name: made[name] for name in ("pretrained_model_name_or_path", "train_data_dir")})
    expect(page.locator(f"#{tab}-train_data_dir-hint")).to_contain_text("12 images")
    fill_in(page, tab, {"output_dir": output, "output_name": "kind", "max_train_epochs": "", "max_train_steps": 3})
    choose_or_type(page, "resolution", "128,128", tab)
    field(page, "enable_bucket", tab).uncheck()
    field(page, "fused_backward_pass", tab).check()
    unfold(page, "metadata", tab=tab)
    field(page, "training_comment", tab).fill(TELLS["training_comment"])
    page.locator(f"#{tab}-print").click()
    expect(page.locator(f"#{tab}-command")).to_contain_text("sdxl_train.py")
    page.locator(f"#{tab}-start").click()
    run = page.locator(f"#{tab}-run")
    expect(run.locator(".run-name")).to_contain_text("kind")
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    expect(run).to_contain_text("step 3 of 3")
    expect(run.locator(".result code")).to_have_text(str(output / "kind.safetensors"))
    expect(run.locator(".result")).to_contain_text("models/checkpoints")
    (config,) = (output / "runs").glob("*-kind/config.toml")
    started = read_toml(config)
    typed = {"fused_backward_pass": True, "max_train_steps": 3, "resolution": "128,128", **SDXL_FULL.identity}
    assert {name: started.get(name) for name in typed} == typed
    assert "enable_bucket" not in started  # the preset turns it on, and off is the default


def choose_or_type(page: Page, name: str, value: str, tab: str) -> None:
    field(page, name, tab).fill(value)
    field(page, name, tab).press("Enter")


def fine_tune_flux(page: Page, flux_demo: Path) -> None:
    """With a metadata file that is made there."""
    tab, made = "finetune", read_toml(flux_demo)
    field(page, "compile", tab).uncheck()
    choose(page, "preset", "FLUX.1 low memory 24 GB", tab)
    expect(page.locator(f"#{tab}-message")).to_contain_text("applied")
    (images,) = Path(made["train_data_dir"]).iterdir()
    unfold(page, "dataset-preparation", tab=tab)
    field(page, "image_folder", tab).fill(str(images))
    page.locator(f"#{tab}-gather").click()
    expect(page.locator(f"#{tab}-gathered")).to_contain_text("12")
    page.locator(f"#{tab}-use-metadata").click()
    expect(field(page, "in_json", tab)).to_have_value(str(images / "meta_cap.json"))
    expect(page.locator(f"#{tab}-in_json-hint")).to_contain_text("12 images")
    said = "12 images; the metadata file decides which are trained"
    expect(page.locator(f"#{tab}-train_data_dir-hint")).to_contain_text(said)
    files = ("pretrained_model_name_or_path", "clip_l", "t5xxl", "ae", "t5xxl_max_token_length")
    output = flux_demo.parent / "whole output"
    fill_in(page, tab, {name: made[name] for name in files})
    fill_in(page, tab, {"output_dir": output, "output_name": "fine", "max_train_epochs": "", "max_train_steps": 3})
    fill_in(page, tab, {"blocks_to_swap": 2})
    choose_or_type(page, "resolution", "64,64", tab)
    field(page, "enable_bucket", tab).uncheck()
    unfold(page, "metadata", tab=tab)
    field(page, "training_comment", tab).fill(TELLS["training_comment"])
    page.locator(f"#{tab}-start").click()
    run = page.locator(f"#{tab}-run")
    expect(run.locator(".run-name")).to_contain_text("fine")
    expect(run.locator(".badge")).to_have_text("Finished", timeout=TRAINING)
    expect(run.locator(".result code")).to_have_text(str(output / "fine.safetensors"))
    (config,) = (output / "runs").glob("*-fine/config.toml")
    preset = read_toml(ROOT / "presets" / tab / "flux_low_memory_24gb.toml")
    told = {"train_data_dir": str(images), "in_json": str(images / "meta_cap.json"), "output_dir": str(output)}
    changed = {"output_name": "fine", "max_train_steps": 3, "blocks_to_swap": 2, "resolution": "64,64", **TELLS}
    wanted = {**preset, **{name: made[name] for name in files}, **told, **changed, **FLUX_FULL.identity}
    assert read_toml(config) == {n: v for n, v in wanted.items() if n not in ("enable_bucket", "max_train_epochs")}
