"""The page: its header, tabs and theme. Nothing here trains or imports torch."""

import secrets
from pathlib import Path

import gradio as gr

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.dreambooth_gui import DREAMBOOTH
from kohya_gui.finetune_gui import FINETUNE
from kohya_gui.form.configuration import tab_for
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.form.training_tab import TrainingTab
from kohya_gui.form.visibility import as_element
from kohya_gui.lora_gui import LORA
from kohya_gui.runs.runs_gui import (
    captions_tab,
    dataset_tab,
    generate_tab,
    image_tools_tab,
    lora_tools_tab,
    machine_tab,
    models_tab,
    runs_tab,
)
from kohya_gui.server.lean_blocks import LeanBlocks
from kohya_gui.settings.search_index import SettingsIndex
from kohya_gui.textual_inversion_gui import TEXTUAL_INVERSION
from sd_scripts.formats.words import listed
from sd_scripts.runs.queue import RunQueue
from sd_scripts.settings.catalog import FAMILY_TITLES

TITLE = "SD Scripts Studio"
HEAD = f"""
<header class="page-head" data-launch="LAUNCH" data-opens="OPENS">
  <h1>{TITLE}</h1><p>LoRA, DreamBooth and fine-tuning for {listed(FAMILY_TITLES.values())}</p>
  <div id="gpus" hidden></div>
  <button id="search-settings" type="button" title="All settings, by any of their names: / or Ctrl+K"
    aria-keyshortcuts="/ Control+K"><span class="wide">Search settings</span><span class="narrow">Search</span>
    <kbd>/</kbd></button>
  <button id="language-switch" type="button" title="Language" translate="no">
    <span lang="zh-CN">中文</span><span lang="en">English</span>
  </button>
  <button id="theme-switch" type="button" title="Light or dark">◐</button>
</header>
"""
TRAININGS = (LORA, DREAMBOOTH, FINETUNE, TEXTUAL_INVERSION)
OTHER_TABS = {
    "models": ("Models", models_tab),
    "dataset": ("Dataset", dataset_tab),
    "captions": ("Captions", captions_tab),
    "imagetools": ("Image tools", image_tools_tab),
    "generate": ("Generate", generate_tab),
    "loratools": ("LoRA tools", lora_tools_tab),
    "runs": ("Runs", runs_tab),
    "machine": ("Machine", machine_tab),
}
"""Element id -> title and layout."""


def build(
    queue: RunQueue,
    config: Path | None = None,
    name: str | None = None,
    allowed_paths: AllowedPaths = EVERYWHERE,
    links: dict[str, FieldLinks] | None = None,
    index: SettingsIndex | None = None,
) -> gr.Blocks:
    """Build the page; `config` is opened once, in the named tab or the one the file is for. `links` is filled with
    those to the fields of the training tabs, by tab, and `index` with their settings."""
    launch = secrets.token_hex(4)
    shown = name or (_tab_for(config) if config else LORA.tab.name)
    page: gr.Blocks
    with LeanBlocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        head = gr.HTML(HEAD.replace("LAUNCH", launch).replace("OPENS", shown if config else ""))
        tabs: list[TrainingTab] = []
        with gr.Tabs(selected=shown, elem_id="tabs"):
            for training in TRAININGS:
                with gr.Tab(training.tab.title, id=training.tab.name, elem_id=training.tab.name):
                    tabs.append(TrainingTab(training, queue, launch, allowed_paths))
                    if links is not None:
                        links[training.tab.name] = tabs[-1].form.links
            for name, (title, lay_out) in OTHER_TABS.items():
                with gr.Tab(title, id=name, elem_id=name):
                    lay_out()
        head.value = f"{head.value}{as_element({tab.name: tab.form.rules for tab in tabs})}"
        if index is not None:
            index.fill((tab.training.tab, tab.form) for tab in tabs)
        for tab in tabs:
            tab.connect_others(tabs)
        for tab in tabs:
            tab.on_load(page, config if tab.name == shown else None)
    return page


def _tab_for(config: Path) -> str:
    try:
        return tab_for(config).name
    except ValueError:  # the page will show the error
        return LORA.tab.name
