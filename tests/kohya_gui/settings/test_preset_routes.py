"""Presets: what is known of the product's, and the user's own, each a settings file that opens anywhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.form.configuration import open_file
from kohya_gui.form.presets import PRESETS, measured, own_presets, preset_words
from kohya_gui.settings.preset_routes import LARGEST, routes
from kohya_gui.tabs import TABS
from sd_scripts.formats.toml_files import read_toml

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FORM = {"tab": "lora", "family": "flux", "values": {"learning_rate": "2e-4", "network_dim": "32"}}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TestClient:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    return TestClient(Starlette(routes=routes()))


def sent(client: TestClient, action: str, **body: Any) -> Any:
    return client.post(f"/studio/presets/{action}", json=body)


def refused(client: TestClient, action: str, **body: Any) -> str:
    answer = sent(client, action, **body)
    assert answer.status_code in (400, 404), answer.text
    sentence: str = answer.json()["error"]
    return sentence


def own(client: TestClient, tab: str = "lora") -> list[dict[str, Any]]:
    return [each for each in client.get("/studio/presets", params={"tab": tab}).json()["presets"] if each["own"]]


@pytest.mark.parametrize("tab", TABS)
def test_every_preset_is_listed_the_safe_start_of_a_family_first(client: TestClient, tab: str) -> None:
    listed = client.get("/studio/presets", params={"tab": tab}).json()["presets"]
    assert {each["name"] for each in listed} == {path.stem for path in (PRESETS / tab).glob("*.toml")}
    for family in {each["family"] for each in listed}:
        of_family = [each for each in listed if each["family"] == family]
        assert of_family[0]["name"].endswith("_safe_start")
        sizes = [each["gb"] for each in of_family if each["gb"]]
        assert sizes == sorted(sizes)
    assert all(each["about"] for each in listed)


def test_measured_values_equal_the_tables_of_the_benchmark() -> None:
    tables = [file.read_text(encoding="utf-8") for file in RESULTS.glob("*_preset*.md")]
    rows = [line for table in tables for line in table.splitlines() if line.startswith("| `")]
    known = {(preset, *cells) for line in rows for preset, *cells in [[cell.strip() for cell in line.split("|")[1:-1]]]}
    for preset, values in measured().items():
        assert (PRESETS / f"{preset}.toml").is_file()
        of_preset = [row for row in known if row[0].startswith(f"`{preset}`")]
        assert [row for row in of_preset if f"{values['gib']:.2f}" in row and values["ms"] in row], preset


def test_an_own_preset_keeps_how_to_train_and_leaves_paths_names_and_secrets_out(client: TestClient) -> None:
    values = {
        **FORM["values"],
        **{"output_name": "cat", "train_data_dir": "/photos", "pretrained_model_name_or_path": "/m.safetensors"},
        **{"ae": "/ae.safetensors", "huggingface_token": "hf_secretsecretsecret", "sample_prompts": "/p.txt"},
    }
    about = 'for cats # = "and"\n[dogs]'
    assert sent(client, "save", **{**FORM, "values": values}, name="My Cat!", about=about).json() == {"name": "my_cat"}
    file = own_presets("lora") / "my_cat.toml"
    saved = {"family": "flux", "method": "lora", "learning_rate": 2e-4, "network_dim": 32}
    assert read_toml(file) == saved
    assert preset_words(file) == 'for cats # = "and" [dogs]'
    assert own(client) == [
        {"name": "my_cat", "title": "my cat", "family": "flux", "about": 'for cats # = "and" [dogs]', "own": True}
    ]
    assert own(client, "finetune") == []
    assert open_file(file, TABS["lora"], "sdxl").family == "flux"


def test_a_preset_is_shared_as_one_file_that_others_add(client: TestClient) -> None:
    sent(client, "save", **FORM, name="cat", about="for cats")
    shared = client.get("/studio/presets/file", params={"tab": "lora", "name": "cat"})
    assert shared.headers["content-disposition"].endswith('filename="cat.toml"')
    text = sent(client, "remove", tab="lora", name="cat").json()["text"]
    assert text == shared.text
    assert own(client) == []
    assert sent(client, "add", tab="lora", name="cat", text=text).json() == {"name": "cat"}
    assert own(client)[0]["about"] == "for cats"
    shipped = client.get("/studio/presets/file", params={"tab": "lora", "name": "flux_safe_start"})
    assert shipped.text == (PRESETS / "lora" / "flux_safe_start.toml").read_text(encoding="utf-8")


def test_a_preset_is_replaced_only_where_that_is_asked_for(client: TestClient) -> None:
    sent(client, "save", **FORM, name="cat", about="first")
    assert "already" in refused(client, "save", **FORM, name="Cat", about="second")
    assert own(client)[0]["about"] == "first"
    assert sent(client, "save", **FORM, name="Cat", about="second", replace=True).status_code == 200
    assert own(client)[0]["about"] == "second"


def test_broken_presets_are_refused_in_a_sentence_and_change_nothing(client: TestClient, tmp_path: Path) -> None:
    for name in ("", "../../x", "...", "学", None, 3.5, "a" * 5000):
        answer = sent(client, "save", **FORM, name=name, about="x" * 5000)
        assert answer.status_code in (200, 400)
    assert {path.parent for path in tmp_path.rglob("*.toml")} <= {own_presets("lora")}
    assert all(len(each["name"]) <= 80 and len(each["about"]) <= 300 for each in own(client))
    before = own(client)
    for text in ("[", "a = ", "x" * (LARGEST + 1), 7, None, 'learning_rate = "quick"', "[[datasets]]\na = 1"):
        assert refused(client, "add", tab="lora", name="bad", text=text)
    assert "learning_rate" in refused(client, "save", **{**FORM, "values": {"learning_rate": "quick"}}, name="bad")
    assert "does not name a tab" in refused(client, "save", **{**FORM, "tab": "runs"}, name="bad")
    assert "form" in refused(client, "save", tab="lora", family="x", values={}, name="bad")
    for name in ("../../../etc/passwd", "flux_safe_start/../cat", "", "none"):
        assert client.get("/studio/presets/file", params={"tab": "lora", "name": name}).status_code == 404
        assert "no longer there" in refused(client, "remove", tab="lora", name=name)
    assert own(client) == before


def test_a_file_that_somebody_broke_does_not_hide_the_others(client: TestClient) -> None:
    sent(client, "save", **FORM, name="cat", about="for cats")
    (own_presets("lora") / "broken.toml").write_bytes(b"\xff\xfe = [")
    (own_presets("lora") / "folder.toml").mkdir()
    assert [each["name"] for each in own(client)] == ["cat"]
    assert json.loads(json.dumps(own(client)))


def test_a_folder_that_cannot_be_written_is_reported(client: TestClient, tmp_path: Path) -> None:
    own_presets("lora").parent.mkdir(parents=True)
    own_presets("lora").write_text("")  # a file where the folder should be
    assert re.search(r"cannot be written: \w+", refused(client, "save", **FORM, name="cat", about=""))
