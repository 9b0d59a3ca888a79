"""The tab LoRA tools in real Chromium, from files to files: merged into a model, inspected, described, stopped."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from tests.browser.page_help import expect
from tests.browser.test_page_width import too_wide
from tests.support.networks.lora_tools import deltas, write_lora

pytest.importorskip("playwright.sync_api")


@pytest.fixture
def tools(page: Any) -> Any:
    page.locator("#loratools-button").click()
    shown = page.locator("#lora-tools .lora-tools")
    expect(shown.locator("[data-tool=inspect]")).to_be_visible()
    return shown


def start(tools: Any, name: str, **values: str) -> None:
    tools.locator(f"[data-tool={name}]").click()
    for field, text in values.items():
        tools.locator(f"#tool-{field}").fill(text)


def test_a_lora_is_merged_inspected_and_described(page: Any, tools: Any, any_miniature: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(any_miniature.checkpoint.read_bytes())
    write_lora(any_miniature, tmp_path / "lora.safetensors", ss_network_alpha="2.0")
    result = tools.locator(".result-panel")

    start(tools, "merge-model", base_model=str(model))
    expect(tools.locator("[data-hint=base_model]")).to_contain_text("FLUX.1 dev, fp32")
    tools.locator(".lora-row button", has_text="Browse").click()  # the dialog lists the files of the folder
    page.locator("dialog.browse[open] .where").fill(str(tmp_path))
    page.locator("dialog.browse[open] .where").press("Enter")
    page.locator("dialog.browse[open] .entry", has_text="lora.safetensors").click()
    expect(tools.locator("[data-hint=models]")).to_contain_text("FLUX.1 LoRA, rank 4, alpha 2, 34 layers")
    tools.locator("[aria-label='Strength of LoRA 1']").fill("0.5")
    expect(tools.locator("#tool-save_to")).to_have_value(str(tmp_path / "model-merged.safetensors"))
    tools.locator("[data-action=start-tool]").click()
    expect(result.locator(".result-file")).to_contain_text("model-merged.safetensors")
    name = "double_blocks.0.img_attn.proj"
    change = load_file(tmp_path / "model-merged.safetensors")[f"{name}.weight"] - load_file(model)[f"{name}.weight"]
    expected = 0.5 * deltas(tmp_path / "lora.safetensors")["lora_unet_double_blocks_0_img_attn_proj"]
    assert float((change - expected).abs().max()) < 1e-5

    start(tools, "inspect", model=str(tmp_path / "lora.safetensors"))
    tools.locator("[data-action=start-tool]").click()
    expect(result.locator("rect[data-block=D00] title")).to_contain_text("10 layers")
    expect(result.locator("svg[aria-label='Singular values'] polyline")).to_have_count(1)
    assert too_wide(page) == set()

    start(tools, "resize", model=str(tmp_path / "lora.safetensors"), new_rank="2")
    expect(tools.locator("#tool-save_to")).to_have_value(str(tmp_path / "lora-rank2.safetensors"))

    start(tools, "metadata", model=str(tmp_path / "lora.safetensors"))
    tools.locator("[aria-label='Trigger phrase']").fill("sks style")
    expect(tools.locator("#tool-save_to")).to_have_value(str(tmp_path / "lora-edited.safetensors"))
    tools.locator("[data-action=start-tool]").click()
    expect(result.locator(".result-file")).to_contain_text("lora-edited.safetensors")
    with safe_open(tmp_path / "lora-edited.safetensors", "pt") as opened:
        assert opened.metadata()["modelspec.trigger_phrase"] == "sks style"


def test_a_job_whose_start_is_answered_too_late_is_followed_without_an_error(tools: Any) -> None:
    late = "const usual = AbortSignal.timeout;"
    late += " AbortSignal.timeout = () => AbortSignal.abort(new DOMException('', 'TimeoutError'))"
    usual = "AbortSignal.timeout = usual"  # the next tests have this page, too
    outcome = ".then(() => 'followed', (error) => error.name)"
    sent = [f"await Studio.{how}('lora-tools/start'){outcome}" for how in ("sendStart", "send")]
    answers = tools.page.evaluate(
        f"async () => {{ {late}; try {{ return [{', '.join(sent)}]; }} finally {{ {usual} }} }}"
    )
    assert answers == ["followed", "TimeoutError"]


def test_mistakes_are_shown_immediately_and_a_stop_leaves_no_file(
    tools: Any, any_miniature: Any, tmp_path: Path
) -> None:
    write_lora(any_miniature, tmp_path / "lora.safetensors")
    start(tools, "convert", src_path="no such file")
    expect(tools.locator("[data-hint=src_path]")).to_have_text("There is no such file")
    tools.locator("[data-action=start-tool]").click()
    expect(tools.locator(".message-error")).to_contain_text("Save to (dst_path): not set")
    tools.locator(".message-error .field-link").click()
    expect(tools.get_by_label("Save to")).to_be_focused()
    start(tools, "convert", src_path=str(tmp_path / "lora.safetensors"))
    expect(tools.locator("#tool-dst_path")).to_have_value(str(tmp_path / "lora-sd-scripts.safetensors"))
    tools.locator("[data-action=start-tool]").click()
    tools.locator("[data-action=stop-tool]").click()
    expect(tools.locator("[data-action=start-tool]")).to_be_enabled()
    stopped = "Stopped" in tools.locator(".result-panel").inner_text()
    assert (tmp_path / "lora-sd-scripts.safetensors").exists() is not stopped
