"""The page: its head, its tabs, its look. Nothing here trains; nothing here imports torch."""

import secrets
from pathlib import Path

import gradio as gr

from kohya_gui.lora_gui import LORA
from kohya_gui.training_tab import TrainingTab
from sd_scripts.runs.book import RunBook
from sd_scripts.runs.store import RunStore

TITLE = "SD Scripts Studio"
HEAD = f"""
<header class="page-head">
  <h1>{TITLE}</h1><p>LoRA training for SDXL and FLUX.1</p>
  <button id="theme-switch" type="button" title="Light or dark">◐</button>
</header>
"""


def build(store: RunStore, config: Path | None = None) -> gr.Blocks:
    """The whole page; `config` is opened in it once."""
    book, launch = RunBook(store), secrets.token_hex(4)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(HEAD)
        with gr.Tab("LoRA", id="lora"):
            TrainingTab(LORA, book, launch).on_load(page, config)
    return page
