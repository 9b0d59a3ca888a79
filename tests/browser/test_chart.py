"""The loss chart alone in real Chromium: its scripts and styles in an empty page."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from kohya_gui.theme import asset
from tests.browser.page_help import expect

playwright = pytest.importorskip("playwright.sync_api")
Page = playwright.Page

ADDRESS = "http://chart.test/"  # answered by the test; localStorage needs an address
STYLES, SCRIPTS = (
    "".join(f"<{tag}>{asset(name)}</{tag}>" for name in names)
    for tag, names in (
        ("style", ("vendor/uplot.min.css", "runs/chart.css")),
        ("script", ("studio.js", "vendor/uplot.min.js", "runs/chart.js")),
    )
)
HTML = f"<!doctype html><meta charset=utf-8>{STYLES}{SCRIPTS}<div id=place></div>"
MAKE = """(title) => {
  window.zooms = [];
  window.drawn = 0;
  class Counted extends StudioChart {
    draw() {
      super.draw();
      drawn += 1;
    }
  }
  window.chart = new Counted(document.querySelector("#place"), {title, onZoom: (...view) => zooms.push(view)});
}"""
TURN_THRICE = """([clientX, clientY]) => {  // at once: how soon a busy browser hears a real wheel again is not known
  const turn = { clientX, clientY, deltaY: -100, ctrlKey: true, bubbles: true, cancelable: true };
  for (let i = 0; i < 3; i += 1) document.querySelector(".curves-plot").dispatchEvent(new WheelEvent("wheel", turn));
}"""


@pytest.fixture(scope="module")
def window(chromium: Any) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 800, "height": 400})
    page = context.new_page()
    page.route(ADDRESS, lambda route: route.fulfill(body=HTML, content_type="text/html"))
    yield page
    context.close()


@pytest.fixture
def page(window: Page) -> Iterator[Page]:
    """An empty page with an empty chart in it, in which no script fails."""
    faults: list[str] = []

    def note(fault: Any) -> None:
        faults.append(str(fault))

    window.on("pageerror", note)
    window.goto(ADDRESS)
    window.evaluate("localStorage.clear()")
    window.evaluate(MAKE, "Loss")
    yield window
    window.remove_listener("pageerror", note)
    assert faults == []


def run(name: str = "cat", steps: int = 100, level: int = 0, **facts: Any) -> dict[str, Any]:
    """A run whose loss falls from 1 towards 0.2 and swings by a tenth around it."""
    losses = [0.2 + 0.8 * math.exp(-i / 30) + (0.1 if i % 2 else -0.1) for i in range(steps)]
    width = 2**level
    spread = 0.05 if level else 0.0
    bins = [[1 + i * width, loss - spread, loss + spread, loss] for i, loss in enumerate(losses)]
    rates = {"unet": [[1 + i * width, 1e-4] for i in range(steps)]}
    return {"name": name, "level": level, "bins": bins, "validation": [], "rates": rates, **facts}


def show(page: Page, *runs: dict[str, Any], steps: int = 0) -> None:
    """Gives the chart these runs and waits until it has drawn."""
    page.evaluate("([runs, maxSteps]) => chart.set(runs, {maxSteps})", [list(runs), steps])
    synchronize(page)


def synchronize(page: Page) -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def drawn(page: Page) -> int:
    synchronize(page)
    return page.evaluate("drawn")


def pixel(page: Page, step: float) -> tuple[float, float]:
    """Where a step stands in the window, in the middle of the chart's height."""
    box = page.locator(".curves-plot").bounding_box()
    across = page.evaluate("(step) => chart.uplot.over.offsetLeft + chart.uplot.valToPos(step, 'x')", step)
    return box["x"] + across, box["y"] + box["height"] / 2


def drag(page: Page, first: float, last: float) -> None:
    begin, end = pixel(page, first), pixel(page, last)
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move((begin[0] + end[0]) / 2, begin[1])
    page.mouse.move(*end)
    page.mouse.up()
    synchronize(page)


def series(page: Page, name: str) -> Any:
    return page.locator(f".curves-legend [data-series={name}]")


def inked(page: Page, colour: str) -> int:
    """How many pixels of the canvas have nearly the colour of this property."""
    return page.evaluate(
        """(name) => {
          if (!chart.uplot) return 0;
          const {canvas} = chart.uplot.ctx;
          const pen = document.createElement("canvas").getContext("2d");
          pen.fillStyle = chart.colour(name);
          pen.fillRect(0, 0, 1, 1);
          const wanted = pen.getImageData(0, 0, 1, 1).data;
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200 && [0, 1, 2].every((c) => Math.abs(data[i + c] - wanted[c]) < 12)) count++;
          return count;
        }""",
        colour,
    )


def flags(page: Page) -> list[str]:
    """The colours of the compiler's marks."""
    colours = "(marks) => marks.map((mark) => mark.style.getPropertyValue('--key'))"
    return page.locator(".curves-mark").evaluate_all(colours)


def test_a_mark_shows_what_the_compiler_did(page):
    marks = [
        {"step": 40, "kind": "recompiled", "lines": ["2 graphs", "size of <b>x</b>"]},
        {"step": 60, "kind": "graph break", "lines": ["block.py:3"]},
    ]
    show(page, run(marks=marks))
    expect(series(page, "marks")).to_have_text("compiler")
    assert flags(page) == ["var(--chart-recompile)", "var(--chart-break)"]
    across, down = pixel(page, 40)
    page.mouse.move(across + 5, down)  # nearer to step 41
    readout = page.locator(".curves-readout")
    expect(readout.locator("strong")).to_have_text("step 40")
    expect(readout.locator("p span")).to_have_text(["2 graphs", "size of <b>x</b>"])
    page.mouse.move(*pixel(page, 50))
    expect(readout.locator("p")).to_have_count(0)
    page.locator(".curves-plot").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(readout.locator("p span")).to_have_text(["block.py:3"])
    series(page, "marks").click()
    synchronize(page)
    assert flags(page) == []
    series(page, "marks").click()
    show(page, run(marks=marks), run("dog", marks=marks))
    assert flags(page) == []


def test_step_times_have_the_right_axis_in_turn_with_learning_rates(page):
    seconds = [[step, 60 if step == 1 else 0.14] for step in range(1, 101)]
    show(page, run(seconds=seconds))
    assert inked(page, "--chart-seconds") == 0
    series(page, "seconds").click()
    synchronize(page)
    assert inked(page, "--chart-seconds") > 200
    assert page.evaluate("chart.right[1]") < 1  # the first step, which compiled, does not flatten the others
    series(page, "rate").click()
    expect(series(page, "seconds")).to_have_attribute("aria-pressed", "false")
    expect(series(page, "rate")).to_have_attribute("aria-pressed", "true")
    page.mouse.move(*pixel(page, 1))
    expect(page.locator(".curves-readout")).to_contain_text("step time60 s")


@pytest.mark.parametrize("way", [(20, 60), (60, 20)])
def test_dragging_zooms_to_the_steps_under_the_mouse(page, way):
    show(page, run())
    drag(page, *way)
    assert page.evaluate("zooms") == [[20, 60]]
    assert page.evaluate("chart.view") == [20, 60]


def test_a_click_does_not_zoom_and_a_double_click_shows_the_whole_run(page):
    show(page, run())
    page.mouse.click(*pixel(page, 50))
    assert page.evaluate("zooms") == []
    expect(page.locator(".curves-reset")).to_be_hidden()
    drag(page, 20, 60)
    expect(page.locator(".curves-reset")).to_be_visible()
    page.mouse.dblclick(*pixel(page, 40))
    synchronize(page)
    assert page.evaluate("zooms") == [[20, 60], [None, None]]
    drag(page, 30, 50)
    page.get_by_role("button", name="Whole run").click()
    assert page.evaluate("zooms.slice(2)") == [[30, 50], [None, None]]
    assert page.evaluate("chart.zoom") is None


def test_zoom_and_cursor_stay_while_finer_bins_and_new_steps_arrive(page):
    show(page, run(steps=100, level=3))
    drag(page, 200, 400)
    page.mouse.move(*pixel(page, 300))
    fine = {**run(steps=800), "bins": run(steps=800)["bins"][199:400]}
    show(page, fine)
    assert page.evaluate("chart.view") == [200, 400]
    expect(page.locator(".curves-readout")).to_contain_text("step 297")  # where the bin of eight steps was
    page.keyboard.press("Escape")  # nothing has the focus
    page.locator(".curves-plot").focus()
    page.keyboard.press("Escape")
    assert page.evaluate("zooms.at(-1)") == [None, None]
    assert page.evaluate("chart.extent[1]") >= 793  # the finer bins were not the whole run


def test_the_wheel_zooms_only_with_ctrl_and_reports_once_when_it_rests(page):
    show(page, run())
    page.mouse.move(*pixel(page, 50))
    page.mouse.wheel(0, -100)
    synchronize(page)
    assert page.evaluate("chart.zoom") is None
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("zooms.length === 1")
    page.evaluate(TURN_THRICE, list(pixel(page, 50)))
    page.wait_for_function("zooms.length > 1")
    [[first, last], [closer, further]] = page.evaluate("zooms")
    assert 1 < first < closer < 50 < further < last < 100
    assert last - first == pytest.approx(99 * 0.8, abs=1)
    assert further - closer == pytest.approx(99 * 0.8**4, abs=3)


def test_arrows_move_the_cursor_and_plus_and_minus_zoom(page):
    show(page, run(steps=40))
    readout = page.locator(".curves-readout")
    page.locator(".curves-plot").focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("step 1")
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("step 2")
    page.keyboard.press("Shift+ArrowRight")
    expect(readout).to_contain_text("step 12")
    page.keyboard.press("End")
    expect(readout).to_contain_text("step 40")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("+")
    page.wait_for_function("zooms.length === 1")
    [first, last] = page.evaluate("zooms[0]")
    assert first <= 11 <= last
    assert last - first == pytest.approx(19.5, abs=1)
    page.keyboard.press("-")
    page.wait_for_function("zooms.length === 2")
    assert page.evaluate("zooms[1]") == [None, None]


def test_the_cursor_reads_raw_smoothed_validation_and_rate_of_the_nearest_step(page):
    validation = [[10, 0.5], [20, 0.25]]
    bins = [[step, step / 100, step / 100, step / 100] for step in range(1, 31)]
    show(page, run(steps=30, bins=bins, validation=validation))
    page.locator(".curves-smoothing").fill("0")
    synchronize(page)
    x, y = pixel(page, 15)
    page.mouse.move(x + 2, y)
    told = page.locator(".curves-readout").inner_text().replace("\n", " ")
    assert told == "step 15 raw 0.15 smoothed 0.15 validation at 10 0.5 rate unet 1e-4"
    page.mouse.move(x, 395)
    expect(page.locator(".curves-readout")).to_be_hidden()


def test_smoothing_is_a_debiased_moving_mean_and_is_kept(page):
    bins = [[step, 1.0, 1.0, 1.0] for step in range(1, 50)] + [[50, 3.0, 3.0, 3.0]]
    show(page, run(steps=50, bins=bins))
    page.locator(".curves-smoothing").fill("50")
    synchronize(page)
    reach = 0.5**2 * 0.2 * 49
    weights = [math.exp((step - 50) / reach) for step in range(1, 51)]
    expected = 1.0 + 2.0 * weights[-1] / sum(weights)
    means = page.evaluate("chart.runs[0].mean.map(([, mean]) => mean)")
    assert means[:49] == pytest.approx([1.0] * 49)  # no pull towards zero at the beginning
    assert means[49] == pytest.approx(expected)
    page.reload()
    page.evaluate(MAKE, "Loss")
    expect(page.locator(".curves-smoothing")).to_have_value("50")


def test_the_log_scale_puts_equal_ratios_at_equal_distances(page):
    bins = [[step, value, value, value] for step, value in enumerate([0.01, 0.1, 1.0, 10.0] * 5, 1)]
    show(page, run(bins=bins))
    page.get_by_label("Log scale").check()
    synchronize(page)
    first, second, third = page.evaluate("[0.01, 0.1, 1].map((value) => chart.uplot.valToPos(value, 'y'))")
    assert first - second == pytest.approx(second - third)
    page.get_by_label("Log scale").uncheck()
    synchronize(page)
    first, second, third = page.evaluate("[0, 1, 2].map((value) => chart.uplot.valToPos(value, 'y'))")
    assert first - second == pytest.approx(second - third)


def test_a_learning_rate_of_zero_is_drawn_next_to_losses_on_a_log_scale(page):
    page.evaluate("chart.choose('log', true)")
    show(page, run(rates={"unet": [[step, 0] for step in range(1, 101)]}))
    series(page, "rate").click()
    synchronize(page)
    assert inked(page, "--chart-rate") > 200


@pytest.mark.parametrize("log", [False, True])
def test_missing_zero_and_negative_values_are_gaps_and_break_nothing(page, log):
    holes = [[21, None, None, None], [22, 0, 0, 0], [23, -1, -1, -1], [24, -1, 0.5, 0.2]]
    bins = [*run(steps=20)["bins"], *holes, *[[s, 0.3, 0.3, 0.3] for s in range(25, 50)]]
    page.evaluate("(log) => chart.choose('log', log)", log)
    validation = [[10, None], [20, 0.4], [30, None]]
    show(page, run(bins=bins, level=1, validation=validation))
    means = page.evaluate("chart.runs[0].mean.map(([, mean]) => mean)")
    assert math.isnan(means[20])
    assert math.isfinite(means[21])
    assert means[-1] == pytest.approx(0.3, abs=0.1)
    assert inked(page, "--chart-mean") > 200
    page.evaluate("(nan) => chart.set([{name: 'nan', level: 0, bins: [[1, NaN, NaN, NaN], [2, NaN, NaN, NaN]]}])")
    synchronize(page)
    assert inked(page, "--chart-mean") == 0
    page.evaluate("chart.set([{name: 'gone', level: 0, bins: []}])")
    synchronize(page)
    expect(page.locator(".curves-plot")).to_have_attribute("aria-label", "Loss: no data yet")


def test_one_spike_does_not_flatten_the_curve(page):
    tame = run(steps=300)
    show(page, tame)
    calm = page.evaluate("chart.losses")
    tame["bins"][150][1:] = [1e6, 1e6, 1e6]
    show(page, tame | {"name": "spiked"})
    assert page.evaluate("chart.losses") == pytest.approx(calm, rel=0.1)


def test_the_legend_hides_and_shows_lines_and_keeps_the_choice(page):
    show(page, run(validation=[[50, 0.4], [100, 0.3]]))
    assert inked(page, "--chart-rate") == 0  # learning rates wait for a click
    for name, colour in (("mean", "--chart-mean"), ("validation", "--chart-validation"), ("rate", "--chart-rate")):
        before = series(page, name).get_attribute("aria-pressed") == "true"
        series(page, name).click()
        synchronize(page)
        assert (inked(page, colour) > 0) is not before
        expect(series(page, name)).to_have_attribute("aria-pressed", str(not before).lower())
    show(page, run(steps=110, validation=[[50, 0.4], [100, 0.3]]))
    expect(series(page, "mean")).to_have_attribute("aria-pressed", "false")
    assert inked(page, "--chart-mean") == 0


def test_several_runs_have_colours_of_their_own_and_can_be_hidden_by_name(page):
    show(page, run("cat", id=7), run("dog <b>", id=8, steps=50))
    expect(page.locator(".curves-legend")).to_contain_text("dog <b>")  # a name is words, never HTML
    assert inked(page, "--chart-1") > 0
    assert inked(page, "--chart-2") > 0
    page.mouse.move(*pixel(page, 40))
    expect(page.locator(".curves-readout")).to_contain_text("dog <b>")
    page.mouse.move(*pixel(page, 80))  # the second has no steps there
    expect(page.locator(".curves-readout")).not_to_contain_text("dog")
    series(page, "run-8").click()
    synchronize(page)
    assert inked(page, "--chart-1") > 0
    assert inked(page, "--chart-2") == 0


def test_the_axis_spans_the_part_of_the_run_that_has_data(page):
    show(page, run(steps=100), steps=1000)
    assert page.evaluate("chart.extent") == [1, 125]
    show(page, run(steps=130), steps=1000)
    assert page.evaluate("chart.extent") == [1, 250]


def test_the_cursor_is_not_part_of_the_drawing_and_many_changes_are_drawn_once(page):
    show(page, run(), steps=100)
    before = drawn(page)
    page.mouse.move(*pixel(page, 30))
    page.mouse.move(*pixel(page, 60))
    assert drawn(page) == before
    page.evaluate(
        "(runs) => { for (const run of runs) chart.set([run]); }", [run(steps=steps) for steps in (110, 120, 130)]
    )
    assert drawn(page) == before + 1  # what comes before the next frame is one drawing
    assert page.evaluate("chart.extent[1]") == 130


def test_the_dark_page_and_a_sharp_screen_are_followed(chromium):
    context = chromium.new_context(viewport={"width": 800, "height": 400}, device_scale_factor=2)
    page = context.new_page()
    page.route(ADDRESS, lambda route: route.fulfill(body=HTML, content_type="text/html"))
    page.goto(ADDRESS)
    page.evaluate(MAKE, "Loss")
    show(page, run())
    assert page.evaluate("chart.uplot.ctx.canvas.width === 2 * chart.plot.clientWidth")
    light = page.evaluate("chart.colour('--chart-mean')")
    assert inked(page, "--chart-mean") > 0
    page.evaluate("document.body.classList.add('dark')")
    synchronize(page)
    assert page.evaluate("chart.colour('--chart-mean')") != light
    assert inked(page, "--chart-mean") > 0  # drawn again, in the new colour
    page.set_viewport_size({"width": 500, "height": 400})
    synchronize(page)
    assert page.evaluate("chart.uplot.ctx.canvas.width === 2 * chart.plot.clientWidth")
    context.close()


def test_a_removed_chart_leaves_nothing_behind(page):
    show(page, run())
    page.evaluate("() => { chart.redraw(); chart.destroy(); document.body.classList.add('dark'); }")
    before = page.evaluate("drawn")
    assert drawn(page) == before
    assert page.evaluate("document.querySelector('#place').childElementCount") == 0


def test_six_runs_of_1200_bins_are_drawn_quickly(page):
    show(page, *(run(f"run {i}", steps=1200, level=3, id=i) for i in range(6)))
    times = page.evaluate(
        """() => Array.from({length: 30}, () => {
          const began = performance.now();
          chart.draw();
          return performance.now() - began;
        }).sort((a, b) => a - b)"""
    )
    print(f"six runs of 1,200 bins: {times[15]:.1f} ms a drawing, {times[-1]:.1f} at worst")
    assert inked(page, "--chart-1") + inked(page, "--chart-6") > 0
