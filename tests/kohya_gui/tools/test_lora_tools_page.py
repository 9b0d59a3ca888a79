"""The tab LoRA tools without a browser: its fields, hints, names for results, and refusals."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.tools.lora_tools import (
    TOOLS,
    LoraToolJob,
    command,
    described_tools,
    merged_rows,
    options_of,
    read_values,
)
from kohya_gui.tools.lora_tools_routes import _shown, routes
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.tools.lora_tools import read_block_weights
from sd_scripts.tools import merge_lora
from tests.support.networks.lora_tools import write_lora
from tests.support.runs import wait_for


@pytest.fixture
def lora(any_miniature: Any, tmp_path: Path) -> Path:
    write_lora(any_miniature, tmp_path / "lora.safetensors", ss_network_alpha="2.0", ss_steps="80")
    return tmp_path / "lora.safetensors"


def page(tmp_path: Path, allowed: AllowedPaths = EVERYWHERE) -> TestClient:
    return TestClient(Starlette(routes=routes(RunQueue(RunStore(tmp_path / "runs.sqlite")), allowed)))


def look(client: TestClient, tool: str, **values: Any) -> Any:
    return client.post("/studio/lora-tools/look", json={"tool": tool, "values": values}).json()


def refusal(client: TestClient, tool: str, **values: Any) -> str:
    answer = client.post("/studio/lora-tools/start", json={"tool": tool, "values": values})
    assert answer.status_code == 400
    return text_of(answer.json().get("html") or answer.json()["error"])


def text_of(html: str) -> str:
    """Return the text of a message, without its sign."""
    return re.sub("<.*?>", "", html).removeprefix("✕")


def test_every_option_of_a_tool_has_a_field_unless_it_is_named_as_hidden() -> None:
    for told in described_tools():
        tool = TOOLS[told["name"]]
        assert {field["name"] for field in told["fields"]} | {*tool.hidden} == {o.name for o in options_of(tool)}
        assert all(field["label"] and field["help"] for field in told["fields"])
    flags = {o.name for group in merge_lora.COMMAND.groups for o in each_option(group)}
    assert {o.name for o in options_of(TOOLS["merge-model"])} <= flags


def test_hints_describe_files_and_a_free_name_is_suggested(any_miniature: Any, lora: Path, tmp_path: Path) -> None:
    client = page(tmp_path)
    values = {"base_model": str(any_miniature.checkpoint), "rows": [{"path": str(lora)}, {"path": "no.safetensors"}]}
    told = look(client, "merge-model", **values)
    assert told["hints"]["base_model"][0]["text"].startswith("FLUX.1 dev, fp32, ")
    first, second = told["hints"]["models"]
    assert first["text"].startswith("FLUX.1 LoRA, rank 4, alpha 2, 34 layers, fp32, trained 80 steps, ")
    assert (first["good"], second["good"], second["text"]) == (True, False, "There is no such file")
    assert told["output"] == str(any_miniature.checkpoint.with_name("miniature_flux-merged.safetensors"))
    (tmp_path / "lora-rank8.safetensors").touch()
    assert look(client, "resize", model=str(lora), new_rank=8)["output"] == str(tmp_path / "lora-rank8-2.safetensors")
    assert look(client, "resize", model=str(any_miniature.checkpoint))["hints"]["model"][0]["good"] is False
    told = look(client, "resize", model=str(lora))
    assert (told["suggested"], told["output"]) == ({"new_rank": 2}, str(tmp_path / "lora-rank2.safetensors"))
    assert look(client, "merge-svd", rows=[{"path": str(lora)}])["suggested"] == {"new_rank": 4}
    assert look(client, "merge-svd", rows=[{"path": str(lora)}], new_rank=1)["suggested"] == {}


@pytest.mark.run
def test_a_job_is_started_and_followed_to_its_file(lora: Path, tmp_path: Path) -> None:
    client, out = page(tmp_path), tmp_path / "small.safetensors"
    values = {"model": str(lora), "new_rank": "2", "new_conv_rank": "", "save_to": str(out)}
    assert client.post("/studio/lora-tools/start", json={"tool": "resize", "values": values}).json() == {"ok": True}
    assert "Another LoRA tool is still running" in refusal(client, "resize", **values)
    wait_for(lambda: client.get("/studio/lora-tools/job").json()["over"])
    told = client.get("/studio/lora-tools/job").json()
    assert (told["state"], told["error"], told["title"]) == ("finished", "", "Resize")
    assert told["saved"][0]["path"] == str(out)
    assert told["report"]["note"].startswith("Rank 2, before 4; ")
    assert client.get("/studio/lora-tools/file").content == out.read_bytes()
    assert client.get(f"/studio/lora-tools/job?known={told['known']}").status_code == 204
    assert {len(each) for key, each in load_file(out).items() if key.endswith("lora_down.weight")} == {2}


def test_metadata_is_read_without_a_job(lora: Path, tmp_path: Path) -> None:
    told = page(tmp_path).post("/studio/lora-tools/metadata", json={"path": str(lora)}).json()
    assert told["entries"]["ss_steps"] == "80"


def test_mistakes_are_reported_with_labels_before_anything_starts(lora: Path, tmp_path: Path) -> None:
    client = page(tmp_path)
    assert refusal(client, "resize", model=str(lora)) == "Save to (save_to): not set; name the file to write"
    assert refusal(client, "merge-model", rows=[{"path": str(lora)}], save_to="x.safetensors").startswith(
        "Model (base_model): "
    )
    wrong = refusal(client, "resize", model=str(lora), new_rank="many", save_to=str(tmp_path / "x.safetensors"))
    assert wrong == "Rank (new_rank): &#x27;many&#x27; is not a whole number"
    assert client.get("/studio/lora-tools/job").json()["tool"] == ""


def test_nothing_outside_the_allowed_folders_is_read_or_written(lora: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    inside = tmp_path / "inside" / "lora.safetensors"
    inside.write_bytes(lora.read_bytes())
    client = page(tmp_path, AllowedPaths.within([tmp_path / "inside"]))
    assert "outside the allowed folders" in look(client, "resize", model=str(lora))["hints"]["model"][0]["text"]
    assert "outside the allowed folders" in refusal(
        client, "resize", model=str(lora), save_to=str(inside) + "x.safetensors"
    )
    assert "outside the allowed folders" in refusal(client, "resize", model=str(inside), save_to=str(lora))
    assert client.post("/studio/lora-tools/metadata", json={"path": str(lora)}).status_code == 400
    smuggled = {"set": [f"--save_to={lora}"], "model": str(inside), "save_to": str(inside)}
    assert "begins with a -, like a flag" in refusal(client, "metadata", **smuggled)
    assert lora.exists()


def test_a_tool_that_reported_nothing_is_described_by_its_last_line(lora: Path, tmp_path: Path) -> None:
    job = LoraToolJob(RunQueue(RunStore(tmp_path / "runs.sqlite")))
    job.begin([sys.executable, "-c", "print(chr(49)); exit('model: it is gone')"])
    assert job.watched
    wait_for(lambda: job.watched.refresh().over)
    told = _shown(TOOLS["resize"], job.watched.run_state)
    assert (told["state"], text_of(told["html"])) == ("lost", "LoRA (model): it is gone")


def test_rows_with_and_without_block_weights_can_be_mixed() -> None:
    rows = [{"path": "a", "ratio": 1}, {"path": " "}, {"path": "b", "ratio": "0.5", "lbw": "OUT=0"}]
    assert merged_rows(rows) == {"models": ["a", "b"], "ratios": [1, "0.5"], "lbws": ["[]", "OUT=0"]}
    assert merged_rows(rows[:1])["lbws"] == []
    assert read_block_weights("[]") == {}


def test_the_command_line_matches_the_form() -> None:
    tool = TOOLS["merge-svd"]
    values = read_values(tool, {"models": ["a", "b"], "ratios": ["0.5", "-1"], "new_rank": "8", "save_to": "o"})
    expected = ["--models", "a", "b", "--ratios", "0.5", "-1.0", "--new_rank", "8", "--save_to", "o.safetensors"]
    assert command(tool, values)[3:] == expected
