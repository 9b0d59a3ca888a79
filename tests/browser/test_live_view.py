"""The live view and the tab Runs in real Chromium, with stand-in trainers that only report: long histories, samples,
consoles."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.library.diffusion.media import Media
from sd_scripts.runs.events import EventLog
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.runs.queue import PlannedRun, RunQueue
from sd_scripts.runs.run_state import ENDED
from sd_scripts.runs.store import RunStore
from tests.browser.page_help import SLOW, Gui, expect, field
from tests.support.runs import TELLING, wait_for

playwright = pytest.importorskip("playwright.sync_api")
REPO = Path(__file__).parents[2]
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
"""The smallest PNG."""
ANSWERS = 16
"""Looked at where little is to be sent."""


@pytest.fixture(scope="module")
def queue(gui: Gui) -> Iterator[RunQueue]:
    """Another GUI of the same user, without a page."""
    made = RunQueue(RunStore(gui.runs), every=0.1)
    made.open()
    yield made
    made.close()


@pytest.fixture(scope="module")
def over(queue: RunQueue, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A run of the past with samples of two prompts at three steps, and an error."""
    place = tmp_path_factory.mktemp("past")
    folder = new_run_folder(place, "past")
    folder.config.write_text('output_name = "past"\nnetwork_dim = 8\n')
    log = folder.log()
    tell_past(log, place)
    log.close()
    folder.console.write_text("".join(f"line {n}\n" for n in range(1000)))
    return queue.store.add(folder, name="past", tab="lora", family="sdxl", state="failed").id


def tell_past(log: EventLog, place: Path) -> None:
    log("started", max_steps=30, epochs=1)
    for step in range(1, 31):
        log("step", step=step, epoch=1, loss=1 / step, seconds=0.1)
        if step % 10:
            continue
        for number, prompt in enumerate(("a cat", "a <b>dog</b>")):
            media = Media(frames=torch.full((1 + number, 1, 1, 3), step, dtype=torch.uint8))
            path = place / f"{step}-{number}{media.suffix}"
            media.write(path)
            log("sample", path=str(path), step=step, prompt=prompt, seed=number, number=number, **media.facts)
    log("failed", error="the loss is NaN", remedy="lower learning_rate", details="Traceback")


@pytest.fixture(autouse=True)
def _forgotten(queue: RunQueue) -> Iterator[None]:
    """Only the runs that tests share outlive a test: a later test may look for the newest of the list."""
    known = {row.id for row in queue.store.rows()}
    yield
    for row in queue.store.rows():
        if row.id not in known and row.name not in ("past", "long") and row.state in ENDED:
            queue.forget(row.id)


@pytest.fixture
def idle(queue: RunQueue) -> None:
    """Nothing is training, so that the next run starts immediately, whatever earlier tests left running."""
    for row in queue.store.living():
        if queue.watch(row.id).alive:  # the test before may have ended it
            queue.end_now(row.id)
    wait_for(lambda: not queue.store.living())


@pytest.fixture
def long(queue: RunQueue, tmp_path: Path) -> int:
    """A run that continues after 100,000 steps, shared by tests until one of them stops it."""
    for row in queue.store.rows():
        if row.name == "long" and queue.watch(row.id).alive:
            return row.id
    return queue.add(plan(new_run_folder(tmp_path, "long"), "long", TELLING, "120000", "100000", "0.05"))


def look_at(page: Any, run: int) -> Any:
    """Choose a run in the tab Runs; its live view."""
    page.locator("#runs-button").click()
    page.locator(f".history [data-run='{run}'] .run-link").click()
    view = page.locator("#runs-run .run")
    expect(view).to_have_attribute("data-run", str(run))
    return view


LEAVES_SLOWLY = """
import sys, time
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
log = RunFolder(Path(sys.argv[1])).log()
log("started", max_steps=1, epochs=1)
log("step", step=1, epoch=1, loss=0.5)
log("finished", step=1)
time.sleep(600)
"""
"""A training that is over while its process still leaves."""


def plan(folder: RunFolder, name: str, program: str, *words: str) -> PlannedRun:
    argv = [sys.executable, "-c", program, str(folder.path), *words]
    return PlannedRun(folder=folder, argv=argv, environment={"PYTHONPATH": str(REPO)}, name=name, tab="lora")


def test_the_panel_stays_with_a_run_that_ends(page, queue, idle, over, tmp_path):
    run = queue.add(plan(new_run_folder(tmp_path, "leaving"), "leaving", LEAVES_SLOWLY))
    view = page.locator("#lora-run .run")
    expect(view.locator(".run-name")).to_have_text("leaving")
    expect(view.locator(".badge")).to_have_text("Finished")
    asked = page.evaluate("Studio.board.known")
    queue.store.update(over, ended=1.0)  # the page asks for the whole board again
    page.wait_for_function("known => Studio.board.known !== known", arg=asked)
    page.evaluate("Studio.beat()")
    expect(view.locator(".run-name")).to_have_text("leaving")
    assert page.evaluate("Studio.shown()") == run
    queue.end_now(run)


COMPILES = """
import sys, time
from pathlib import Path
from sd_scripts.runs.folder import RunFolder
RunFolder(Path(sys.argv[1])).log()("phase", name="compiling", note="3 graphs so far")
time.sleep(600)
"""


def test_the_compile_time_keeps_counting_without_events(page, queue, idle, tmp_path):
    run = queue.add(plan(new_run_folder(tmp_path, "compiling"), "compiling", COMPILES))
    view = page.locator("#lora-run .run")
    expect(view.locator(".run-phase")).to_contain_text("Compiling · 3 graphs so far")
    ticks = view.locator(".run-phase .ticks")
    expect(ticks).not_to_be_empty()
    expect(ticks).not_to_have_text(ticks.inner_text())
    queue.end_now(run)


def test_an_error_is_shown_with_its_remedy_and_its_details_folded(page, over):
    view = look_at(page, over)
    expect(view.locator(".badge")).to_have_text("Failed")
    alert = view.locator("[role=alert]")
    expect(alert).to_contain_text("the loss is NaN")
    expect(alert).to_contain_text("lower learning_rate")
    expect(alert.locator("pre")).to_be_hidden()
    alert.locator("summary").click()
    expect(alert.locator("pre")).to_have_text("Traceback")


def test_a_sample_opens_large_and_keys_move_through_steps_and_prompts(page, over):
    view = look_at(page, over)
    expect(view.locator(".sample-group")).to_have_count(3)
    expect(view.locator(".sample-group").first).to_contain_text("Step 30")
    view.locator(".sample").first.click()
    large = page.locator("dialog.sample-large[open]")
    expect(large).to_contain_text("a cat")
    expect(large).to_contain_text("Step 30 · seed 0 · 1 × 1 · sample 3 of 3")
    page.keyboard.press("ArrowLeft")
    expect(large).to_contain_text("Step 20 · seed 0")
    page.keyboard.press("ArrowDown")
    expect(large).to_contain_text("a <b>dog</b>")
    expect(large).to_contain_text("1 × 1 · 2 frames, 0.1 s · sample 2 of 3")
    page.wait_for_function("document.querySelector('dialog.sample-large[open] video').poster")
    large.locator("input[type=range]").fill("0")
    expect(large).to_contain_text("Step 10 · seed 1")
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()


def test_a_zoomed_curve_is_smoothed_by_the_steps_before_it_too(page, over):
    view = look_at(page, over)
    plot = view.locator(".curves-plot")
    plot.focus()
    page.keyboard.press("End")
    with page.expect_request(lambda request: "/curves?first=" in request.url) as asked:
        page.keyboard.press("+")
    first, last = (int(number) for number in re.findall(r"(?:first|last)=(\d+)", asked.value.url))
    expect(view.locator(".curves-reset")).to_be_visible()
    assert (first, last) == (2, 30)  # steps 16 to 30 are shown


def test_the_whole_console_can_be_searched_and_shows_its_end_by_default(page, over):
    view = look_at(page, over)
    view.locator(".console-box summary").click()
    expect(view.locator("pre.console")).to_contain_text("line 999")
    assert view.locator("pre.console").evaluate("text => text.scrollTop + text.clientHeight > text.scrollHeight - 30")
    view.get_by_label("Search the console").fill("LINE 17")
    expect(view.locator("pre.console mark")).to_have_count(11)  # 17, and 170 to 179
    expect(view.locator("pre.console")).to_contain_text("18 line 17")


def test_redrawing_a_long_run_keeps_the_users_view(page, long):
    view = look_at(page, long)
    expect(view.locator(".run-where")).to_contain_text("step 100", timeout=SLOW)
    expect(view.locator(".studio-chart canvas").first).to_be_visible()
    view.locator(".menu summary").click()
    view.locator("[data-action=save]").focus()
    page.evaluate("window.before = document.querySelector('#runs-run [data-section=warnings] li')")
    was = view.locator(".run-where").inner_text()
    expect(view.locator(".run-where")).not_to_have_text(was)
    expect(view.locator(".menu [data-action=end]")).to_be_visible()
    assert page.evaluate("document.activeElement.dataset.action") == "save"
    assert page.evaluate("window.before.isConnected"), "a section that did not change was replaced"


def test_watching_a_long_run_transfers_little(page, long):
    view = look_at(page, long)
    expect(view.locator(".run-where")).to_contain_text("step 10", timeout=SLOW)
    expect(view.locator(".studio-chart canvas").first).to_be_visible()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    began = time.monotonic()
    while len(sizes) < ANSWERS:
        page.wait_for_event("response", timeout=SLOW)
    assert len(sizes) < 10 * (time.monotonic() - began) + ANSWERS / 2, "it asks a few times a second at most"
    assert sum(sizes) < ANSWERS * 15_000, "a hundred thousand steps are drawn, and only the new ones are sent"


def test_a_running_run_shows_in_every_training_tab(page, long):
    for tab in ("dreambooth", "finetune", "textual_inversion", "lora"):
        page.locator(f"#{tab}-button").click()
        expect(page.locator(f"#{tab}-run .run-name")).to_have_text("long")
        expect(page.locator(f"#{tab}-run .badge")).to_have_text("Running")
        expect(page.locator(f"#{tab}-start")).to_have_text("Add to queue")


def test_a_run_acknowledges_a_stop_and_ends_on_every_open_page(page, queue, long):
    page.locator("#lora-button").click()
    view = page.locator("#lora-run .run")
    expect(view.locator(".run-name")).to_have_text("long")
    expect(page.locator("#lora-start")).to_have_text("Add to queue")
    view.locator("[data-action=save]").click()
    expect(view.locator(".run-actions .done")).to_contain_text("Saved at step")
    view.locator("[data-action=stop]").click()
    expect(view.locator(".badge")).to_have_text("Stopped")
    expect(page.locator(".live [role=status]")).to_have_text("long: Stopped")
    expect(page.locator("#lora-start")).to_have_text("Start training")
    assert not queue.watch(long).alive


def test_a_run_removed_elsewhere_is_shown_as_gone_and_leaves_the_list(page, queue, tmp_path):
    folder = RunFolder(tmp_path / "brief")
    folder.log()("finished", step=1)
    run = queue.store.add(folder, name="brief", tab="lora", state="finished").id
    look_at(page, run)
    queue.forget(run)
    expect(page.locator("#runs-run .run-none")).to_contain_text("Run not found")
    expect(page.locator(".history .run-link", has_text="brief")).to_have_count(0)


def ended(queue: RunQueue, place: Path, name: str, began: float, last: int = 10, **row: Any) -> int:
    """A past run that reported its steps and saved a state and a sample."""
    folder = new_run_folder(place, name)
    folder.config.write_text(f'output_name = "{name}"\nnetwork_dim = {last}\n')
    first, resumed = row.pop("first", 1), row.pop("resumed", "")
    log = folder.log()
    log("started", max_steps=last, epochs=1, **({"resumed_from": resumed} if resumed else {}))
    for step in range(first, last + 1):
        log("step", step=step, epoch=1, loss=1 / step, seconds=0.1)
    image = place / f"{name}-{last}.png"
    image.write_bytes(PIXEL)
    log("sample", path=str(image), step=last, prompt="a cat", seed=1, number=0, width=1, height=1)
    log("saved", path=str(place / f"{name}-{last}-state"), step=last)
    log("finished", step=last)
    log.close()
    id = queue.store.add(folder, name=name, tab="lora", family="sdxl", state="running").id
    queue.store.update(id, started=began, step=last, max_steps=last)
    queue.store.end(id, row.pop("state", "finished"), began + 1, **row)
    return id


def test_a_training_tab_shows_its_own_last_run(page, queue, idle, tmp_path):
    last = ended(queue, tmp_path, "adapter", 9e9)
    page.locator("#lora-button").click()
    expect(page.locator("#lora-run .run")).to_have_attribute("data-run", str(last))
    page.locator("#textual_inversion-button").click()
    expect(page.locator("#textual_inversion-run .run-none")).to_be_visible()


def test_all_samples_are_a_matrix_and_one_can_be_downloaded(page, over):
    view = look_at(page, over)
    view.locator(".samples .section-head button").click()
    matrix = page.locator("dialog.sample-matrix .matrix")
    expect(matrix.locator(".matrix-head")).to_have_text(["Step 10", "Step 20", "Step 30"])
    expect(matrix.locator(".matrix-prompt")).to_have_text(["a cat", "a <b>dog</b>"])
    expect(matrix.locator(".sample")).to_have_count(6)
    matrix.locator(".sample").nth(4).click()
    large = page.locator("dialog.sample-large[open]")
    expect(large).to_contain_text("Step 20 · seed 1 · 1 × 1 · 2 frames, 0.1 s · sample 2 of 3, prompt 2 of 2")
    with page.expect_download() as download:
        large.get_by_text("Download").click()
    assert download.value.suggested_filename == "step20-prompt2.mp4"


def test_the_list_is_in_start_order_with_reasons_and_missing_files(page, queue, tmp_path):
    late = ended(queue, tmp_path, "late", 9e9, state="failed", error="network_dim: 0 is too small")
    early = ended(queue, tmp_path, "early", 8e9)
    page.locator("#runs-button").click()
    rows = page.locator(".history tbody tr")
    expect(rows.first).to_have_attribute("data-run", str(late))
    expect(rows.nth(1)).to_have_attribute("data-run", str(early))
    expect(rows.first).to_contain_text("Rank: 0 is too small")
    page.get_by_label("Search runs").fill("no such run")
    expect(page.get_by_text('No runs match "no such run".')).to_be_visible()
    page.get_by_label("Search runs").fill("")
    for id in (late, early):
        page.locator(f".history [data-run='{id}'] input").check()
    page.locator("[data-action=remove-runs]").click()
    page.locator("[data-action=confirm-remove]").click()
    expect(page.locator(f".history [data-run='{late}']")).to_have_count(0)
    assert queue.store.row(early) is None


def test_a_run_gets_a_name_and_a_note_in_the_page(page, queue, tmp_path):
    id = ended(queue, tmp_path, "nameless", 7e9)
    view = look_at(page, id)
    view.locator("[data-describe]").click()
    view.get_by_label("Run name").fill("the good one")
    view.get_by_label("Note").fill("rank 8")
    view.get_by_text("Save", exact=True).click()
    expect(view.locator(".run-name")).to_have_text("the good one")
    expect(view.locator(".run-note")).to_have_text("rank 8")
    expect(page.locator(f".history [data-run='{id}']")).to_contain_text("the good one")
    queue.forget(id)


def test_a_continued_run_is_drawn_with_the_steps_before_it_and_compared_by_its_samples(page, queue, tmp_path):
    before = ended(queue, tmp_path, "cat", 6e9)
    id = ended(queue, tmp_path, "cat", 7e9, last=20, first=11, resumed=str(tmp_path / "cat-10-state"))
    page.locator("#runs-button").click()
    page.locator(f".history [data-run='{id}'] .run-link").click()
    view = page.locator("#runs-run .run")
    expect(view.locator(".run-joined")).to_contain_text("Include the previous run")
    plot = view.locator(".curves-plot")
    plot.focus()
    page.keyboard.press("Home")
    expect(view.locator(".curves-readout strong")).to_have_text("step 1")
    view.locator(".run-joined input").uncheck()
    expect(view.locator(".curves-readout strong")).to_have_count(0)  # another chart
    plot.focus()
    page.keyboard.press("Home")
    expect(view.locator(".curves-readout strong")).to_have_text("step 11")
    view.locator(".run-joined input").check()
    for each in (before, id):
        page.locator(f".history [data-run='{each}'] input").check()
    page.locator("[data-action=compare]").click()
    comparison = page.locator(".comparison")
    expect(comparison.locator(".curves-legend [data-series^=run-]")).to_have_text(
        ["cat (Rank (network_dim): 10)", "cat (Rank (network_dim): 20)"]
    )
    settings = comparison.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.innerText.split(/\\s*\\t/))")
    assert [values for name, *values in settings if "network_dim" in name] == [["10", "20"]]
    assert all(len(set(values)) == 2 for _, *values in settings)
    expect(comparison.locator(".matrix .sample")).to_have_count(2)
    comparison.get_by_label("All steps").check()
    expect(comparison.locator(".matrix-head")).to_have_text(["Step 10", "Step 20"])
    for each in (before, id):
        queue.forget(each)


def test_the_settings_of_a_run_are_loaded_into_the_form_and_its_file_stays(page, queue, tmp_path):
    run = ended(queue, tmp_path, "second", 5e9)
    config = queue.store.row(run).folder / "config.toml"
    before = config.read_bytes()
    look_at(page, run).locator("[data-action=load]").click()
    expect(page.locator("#lora-start")).to_be_visible()
    expect(field(page, "output_name")).to_have_value("second")
    expect(field(page, "network_dim")).to_have_value("10")
    field(page, "network_dim").fill("16")
    page.locator("#lora-save").click()  # asks for a name: the run's own file is not the open one
    expect(page.locator("#lora-new-name")).to_be_visible()
    assert config.read_bytes() == before


def test_the_title_shows_progress_and_a_notification_the_end_and_polling_slows_down(page, queue, idle, tmp_path):
    page.locator("#runs-button").click()
    page.evaluate("""() => {
      window.told = [];
      window.Notification = class {
        static permission = "granted";
        constructor(title) { window.told.push(title); }
      };
      const wait = window.setTimeout;
      window.pauses = new Set();
      window.setTimeout = (act, pause, ...more) => {
        window.pauses.add(pause);
        return wait(act, pause, ...more);
      };
    }""")
    page.locator("[data-switch=notify]").check()
    words = ["10000", "5000", "0.5"]
    run = queue.add(plan(new_run_folder(tmp_path, "far"), "far", TELLING, *words))
    page.wait_for_function("() => document.title === '50 % far - SD Scripts Studio'")
    page.evaluate("window.pauses.clear()")
    page.wait_for_function("() => window.pauses.has(1000)")
    assert not page.evaluate("window.pauses.has(3000)")
    queue.end_now(run)
    page.wait_for_function("() => window.told.length === 1")
    assert page.evaluate("window.told") == ["Stopped: far"]
    page.wait_for_function("() => document.title === 'SD Scripts Studio'")
    page.evaluate("Studio.beat()")
    page.wait_for_function("() => window.pauses.has(3000)")  # the server is asked less often while nothing runs


def test_a_run_removed_from_the_queue_is_restored_with_one_click(page, queue, gui, tmp_path):
    queue.store.paused = True
    try:
        run = queue.add(plan(new_run_folder(tmp_path, "waits"), "waits", TELLING))
        page.locator("#runs-button").click()
        row = page.locator(f".queue [data-run='{run}']")
        row.locator("[data-action=remove]").click()
        expect(row).to_have_count(0)
        page.locator("#studio-toasts").get_by_text("Undo").click()
        expect(row).to_be_visible()
        queue.remove(run)
    finally:
        queue.store.paused = False
