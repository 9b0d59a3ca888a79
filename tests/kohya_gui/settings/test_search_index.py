"""The index that the page's search reads has every setting of a form, where it is and what it is called."""

import json

import gradio as gr
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.form.controls import Form
from kohya_gui.form.training_tab import TrainingTab
from kohya_gui.kohya.labels import LABELS
from kohya_gui.lora_gui import LORA
from kohya_gui.settings.search_index import TOPICS, SettingsIndex, contents, settings_index
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Form:
    queue = RunQueue(RunStore(tmp_path_factory.mktemp("state") / "runs.sqlite"))
    with gr.Blocks():
        return TrainingTab(LORA, queue, "launch").form


def test_every_control_of_a_form_is_in_one_section(form: Form) -> None:
    names = [name for section in form.sections() for name in section["names"]]
    assert sorted(names) == sorted(form.controls)
    assert {name for section in form.sections() for name in section["more"]} <= set(names)


def test_a_section_names_the_panels_to_unfold(form: Form) -> None:
    loss = next(section for section in form.sections() if section["title"] == "Loss")
    assert loss["panels"] == ["lora-panel-advanced-training", "lora-panel-loss"]
    assert loss["group"] == "Advanced Training"
    assert "min_snr_gamma" in loss["names"]


def test_each_entry_has_what_the_search_shows(form: Form) -> None:
    index = settings_index([(LORA.tab, form)])
    entry = index["settings"]["lr_warmup_steps"]
    assert entry["label"] == "Warm-up"
    assert entry["kohya"] == ["LR warmup (% of total steps)", "LR warmup steps (override)"]
    assert index["settings"]["optimizer_type"]["kohya"] == ["optimizer"]
    assert index["settings"]["network_dim"]["topics"] == ["memory", "quality"]
    assert index["settings"]["huggingface_token"]["kind"] == "secret"
    assert index["settings"]["mixed_precision"]["choices"] == ["no", "fp16", "bf16"]
    assert index["settings"]["sample_model"]["aliases"] == ["turbo_dit"]
    assert {"sdpa", "num_timestep_buckets"} <= index["without_effect"].keys()
    assert json.loads(json.dumps(index))["tabs"]["lora"]["method"] == "lora"


def test_names_of_the_filters_and_of_kohya_ss_belong_to_options() -> None:
    options = {option.name for script in SCRIPTS for group in script.groups for option in each_option(group)}
    named = {name for _, names in TOPICS.values() for name in names}
    assert named | LABELS.keys() <= options


def test_a_browser_with_the_current_index_is_not_sent_it_again(form: Form) -> None:
    index = SettingsIndex()
    index.fill([(LORA.tab, form)])
    client = TestClient(Starlette(routes=index.routes()))
    first = client.get("/studio/settings")
    assert first.json()["settings"].keys() == form.controls.keys()
    again = client.get("/studio/settings", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/studio/settings", headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_list_of_sections_has_one_stop_for_the_tab_key(form: Form) -> None:
    listed = contents("LoRA", form.sections())
    assert listed.count('tabindex="0"') == 1
    assert listed.count("<button") == len(form.sections())
    assert listed.count('class="group"') == 1
