"""The login page, and what stands behind it: prompts that are edited in the page, and TensorBoard."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from kohya_gui import command
from tests.browser.page_help import Gui, expect, field, unfold
from tests.browser.test_page import begin_anew

playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a small page behind the GUI's password, which costs less than the whole page."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    flags = command.parser().parse_args(["--username", "me", "--password", "open sesame"])
    policy = command.access(flags, command.credential(flags))
    behind = [Route("/", lambda request: HTMLResponse("<h1>Behind the door</h1>"))]
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=behind, middleware=[policy.middleware()]), log_level="error")
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def visitor(chromium: Any) -> Iterator[Any]:
    """A page of a browser that was never here, in which Gradio does not start."""
    context = chromium.new_context()
    context.route("**/*.js", lambda route: route.abort())
    yield context.new_page()
    context.close()


def test_the_right_password_opens_the_page_and_the_log_out_closes_it(visitor: Any, locked: str) -> None:
    visitor.goto(locked)
    visitor.get_by_label("Username").fill("me")
    visitor.get_by_label("Password").fill("open barley")
    visitor.get_by_role("button", name="Log in").click()
    expect(visitor.get_by_role("alert")).to_have_text("Wrong username or password")
    visitor.get_by_label("Password").fill("open sesame")
    visitor.keyboard.press("Enter")
    expect(visitor.get_by_role("heading")).to_have_text("Behind the door")
    visitor.goto(f"{locked}/logout")
    expect(visitor.get_by_label("Password")).to_be_visible()


def test_prompts_are_written_checked_and_filled_in(page: Any, tmp_path: Path) -> None:
    begin_anew(page, tmp_path)
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
    page.locator("#lora-family").get_by_text("Krea 2", exact=True).click()
    expect(check).to_contain_text("28 steps")
    field(page, "sample_model").fill("/models/krea2_turbo.safetensors")
    field(page, "sample_model").press("Tab")
    expect(check).to_contain_text("8 steps, seed 1, CFG 1, shift 3.16")
    page.locator("#lora-save-prompts").click()
    expect(page.locator("#lora-prompts-message")).to_contain_text("Saved to")
    place = tmp_path / "last-prompts.txt"
    expect(field(page, "sample_prompts")).to_have_value(str(place))
    assert place.read_text() == "a cat --d 1\na dog --q 3\n"


def test_tensorboard_opens_on_the_log_folder(page: Any, tmp_path: Path) -> None:
    unfold(page, "advanced-training", "logging")
    field(page, "logging_dir").fill(str(tmp_path))
    page.locator("#lora-tensorboard").click()
    link = page.locator("#lora-tensorboard-status a")
    expect(link).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/$"), timeout=90_000)
    page.locator("#lora-stop-tensorboard").click()
    expect(page.locator("#lora-tensorboard-status")).to_contain_text("TensorBoard stopped")


def test_the_printed_address_opens_a_page_that_runs_no_injected_script_and_others_must_log_in(
    visitor: Any, gui: Gui
) -> None:
    visitor.goto(gui.url)
    expect(visitor.get_by_role("heading")).to_have_text("Token required")
    visitor.get_by_label("Token").fill("an older one")
    visitor.keyboard.press("Enter")
    expect(visitor.get_by_role("alert")).to_contain_text("Wrong token")
    visitor.goto(gui.address)
    assert visitor.url == f"{gui.url}/"
    assert "gradio_config" in visitor.request.get(gui.url).text()  # the cookie is enough
    expect_no_script_runs(visitor)


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
    while len(refused) < 3:
        page.wait_for_event("console")
    assert page.evaluate("() => window.hit") is None
    assert len(refused) == 3
