"""The login page, and what stands behind it: prompts that are edited in the page, and TensorBoard."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.page_help import CHROMIUM, Gui, expect, field, settled, unfold

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium"),
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gui]:
    gui = Gui(tmp_path_factory.mktemp("locked"), "--username", "me", "--password", "open sesame")
    gui.start()
    yield gui
    gui.kill()


def test_the_right_password_opens_the_page_and_the_log_out_closes_it(chromium: Any, locked: Gui) -> None:
    context = chromium.new_context(base_url=locked.url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Username").fill("me")
    page.get_by_label("Password").fill("open barley")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("Wrong username or password")
    page.get_by_label("Password").fill("open sesame")
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    page.keyboard.press("Enter")
    expect(page.locator("#lora-start")).to_be_visible()
    settled(page, "#lora")
    page.locator("#lora-print").click()
    expect(page.locator("#lora-message")).to_contain_text("problems to fix")
    assert refused == []
    page.goto("/logout")
    expect(page.get_by_label("Password")).to_be_visible()
    context.close()


@pytest.mark.usefixtures("stranger")
def test_prompts_are_written_checked_and_filled_in(page: Any, tmp_path: Path) -> None:
    field(page, "output_dir").fill(str(tmp_path))
    unfold(page, "samples")
    page.locator("#lora-edit-prompts").click()
    text, check = page.locator("#lora-prompts textarea"), page.locator("#lora-prompts-check")
    text.fill("a cat\na dog --q 3")
    expect(check).to_contain_text("--q: unknown option")
    text.press("Control+Home")
    page.locator("#lora-prompt-options [data-insert=d]").click()
    expect(text).to_have_value("a cat --d 1\na dog --q 3")
    expect(check).to_contain_text("seed 1")
    page.locator("#lora-family").get_by_text("FLUX.1", exact=True).click()
    expect(check).to_contain_text("guidance 3.5")
    page.locator("#lora-save-prompts").click()
    expect(page.locator("#lora-prompts-message")).to_contain_text("Saved to")
    place = tmp_path / "last-prompts.txt"
    expect(field(page, "sample_prompts")).to_have_value(str(place))
    assert place.read_text() == "a cat --d 1\na dog --q 3\n"


def test_tensorboard_opens_on_the_log_folder(page: Any, tmp_path: Path) -> None:
    unfold(page, "advanced-training", "logging")
    field(page, "logging_dir").fill(str(tmp_path))
    page.locator("#lora-tensorboard").click()
    link = page.locator("#lora-tensorboard-told a")
    expect(link).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/$"), timeout=90_000)
    page.locator("#lora-stop-tensorboard").click()
    expect(page.locator("#lora-tensorboard-told")).to_contain_text("TensorBoard stopped")


def test_the_printed_address_opens_a_page_that_runs_no_script_of_a_text_and_others_are_strangers(
    chromium: Any, gui: Gui
) -> None:
    context = chromium.new_context(base_url=gui.url)
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("heading")).to_have_text("Token required")
    page.get_by_label("Token").fill("an older one")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")
    page.goto(gui.address)
    expect(page.locator("#lora-start")).to_be_visible()
    assert page.url == f"{gui.url}/"
    assert "Token required" not in page.request.get("/").text()  # the cookie is enough
    expect_no_script_runs(page)
    context.close()


def expect_no_script_runs(page: Any) -> None:
    """Not even one in a text that reached the page as HTML."""
    refused: list[str] = []
    page.on("console", lambda line: refused.append(line.text) if "Content Security Policy" in line.text else None)
    page.evaluate("""() => {
      const hole = document.createElement("div");
      const frame = `<iframe srcdoc="<script>top.hit = 1</script>"></iframe>`;
      hole.innerHTML = `<img src="data:," onerror="window.hit = 1">${frame}`;
      document.body.append(hole);
      const script = document.createElement("script");
      script.textContent = "window.hit = 1";
      document.body.append(script);
    }""")
    page.wait_for_function("() => document.querySelector('iframe').contentDocument.readyState === 'complete'")
    page.wait_for_timeout(200)
    assert page.evaluate("() => window.hit") is None
    assert len(refused) == 3
