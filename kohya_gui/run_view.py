"""A run as the page shows it: its story turned into HTML. Pure functions; colours come from the theme's style sheet."""

import math
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from kohya_gui.recognise import size
from sd_scripts.runs.story import RunStory

WORDS = {
    "starting": "Starting",
    "running": "Running",
    "stopping": "Stopping",
    "stopped": "Stopped",
    "finished": "Finished",
    "failed": "Failed",
    "lost": "Ended without a word",
}
STATE = "-state"
"""How the name of a folder ends that a run can go on from."""
AVERAGE = "-ema"
"""How the name of a file of moving averages ends."""
PLACES = {
    "lora": "Your LoRA is in this file. Put it into <b>models/loras</b> of ComfyUI or <b>models/Lora</b> of WebUI, "
    "and choose it there.",
    "full": "This is your model. An SDXL file goes into <b>models/checkpoints</b> of ComfyUI or "
    "<b>models/Stable-diffusion</b> of WebUI, one of FLUX.1 into <b>models/diffusion_models</b>; choose it there.",
}
"""What to do with the result, by method."""
UNTRAINED = "waiting for the end of the first step; nothing is trained yet, so End at once loses nothing"
Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 24


def empty_view() -> str:
    return (
        '<div class="run run-none"><p class="run-title">No run yet</p>'
        "<p>Choose a model and a folder of pictures, then press Start. "
        "The loss, samples and files of the run appear here.</p></div>"
    )


def run_view(story: RunStory, folder: Path, now: float | None = None) -> str:
    parts = [head(story, folder.name), progress(story), failure(story), result(story)]
    if story.losses.points or not story.over:
        parts += [tiles(story, now), chart(story)]
    parts += [compile_facts(story), files(story), warnings(story)]
    parts.append(f'<p class="where">All of this run is in {escape(str(folder))}</p>')
    return f'<div class="run run-{story.state}">{"".join(parts)}</div>'


def head(story: RunStory, name: str) -> str:
    where = f"step {story.step} of {story.max_steps}" if story.max_steps else ""
    if story.epochs and story.epoch:
        where += f" · epoch {story.epoch} of {story.epochs}"
    return (
        f'<div class="run-head"><span class="badge">{WORDS[story.state]}</span>'
        f'<span class="run-name" title="{escape(name)}">{escape(name)}</span>'
        f'<span class="run-where">{where}</span></div>'
    )


def progress(story: RunStory) -> str:
    doing = "" if story.over or not story.phase else story.phase
    waiting = story.state in ("starting", "running", "stopping") and story.phase != "training"
    if waiting and story.total:
        fraction, doing = story.done / story.total, f"{doing} {story.done} of {story.total}"
    else:
        fraction = story.fraction
    unknown = waiting and not story.total
    if story.state == "stopping":
        doing = "ending the step, saving, leaving" if story.step else UNTRAINED
    if story.state == "starting":
        doing = "starting Python and PyTorch"
    bar = f'<div class="bar{" bar-unknown" if unknown else ""}"><i style="width:{100 * fraction:.1f}%"></i></div>'
    return f'{bar}<div class="run-phase">{escape(doing[:1].upper() + doing[1:])}</div>' if doing else bar


def failure(story: RunStory) -> str:
    if not story.failure:
        return ""
    why = escape(story.failure.get("error", ""))
    remedy = f"<p>{escape(story.failure['remedy'])}</p>" if story.failure.get("remedy") else ""
    details = story.failure.get("details")
    more = f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
    return (
        f'<div class="message message-error" role="alert"><span class="sign">✕</span>'
        f"<div><p>{why}</p>{remedy}{more}</div></div>"
    )


def result(story: RunStory) -> str:
    """The file that a finished run was for, to copy, and where it goes."""
    made = [made.path for made in story.saved if not made.path.name.endswith(STATE)]
    if story.state != "finished" or not made:
        return ""
    plain = [path for path in made if not path.stem.endswith(AVERAGE)] or made
    path = escape(str(plain[-1]))
    average = f"<p>Its moving average is in <b>{escape(made[-1].name)}</b>.</p>" if made[-1] != plain[-1] else ""
    return (
        f'<div class="result"><code>{path}</code><button type="button" data-copy="{path}">Copy</button>'
        f"<p>{PLACES[story.facts.get('method', 'lora')]}</p>{average}</div>"
    )


def tiles(story: RunStory, now: float | None = None) -> str:
    took = (story.ended or now or time.time()) - story.started if story.started else None
    pace, left = story.seconds_per_step, story.seconds_left
    shown = [
        ("Loss", f"{story.average:.4f}" if story.average is not None else number(story.loss), "mean of the epoch"),
        ("Speed", speed(pace), "without warm-up and compiling"),
        ("Time left", duration(left), "at this speed") if left is not None else ("Took", duration(took), "in all"),
        ("VRAM", f"{story.vram / 2**30:.1f} GiB" if story.vram else "–", "at the peak"),
        ("Learning rate", *rates(story.learning_rates)),
    ]
    cells = "".join(
        f'<div class="tile" title="{hint}"><b>{value}</b><span>{word}</span></div>' for word, value, hint in shown
    )
    return f'<div class="tiles">{cells}</div>'


def rates(learning_rates: dict[str, float]) -> tuple[str, str]:
    """The highest of the groups' rates, and all of them."""
    if not learning_rates:
        return "–", "of this step"
    return f"{max(learning_rates.values()):.3g}", " · ".join(f"{g} {rate:.3g}" for g, rate in learning_rates.items())


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def speed(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms/it"
    return f"{seconds:.2f} s/it" if seconds < 10 else f"{seconds:.0f} s/it"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"


def chart(story: RunStory) -> str:
    """The loss: each step faint, the running mean strong, validation as dots."""
    raw, kept = story.losses.points, story.validation.points
    if len(raw) < 2:
        return '<div class="chart chart-empty">The loss curve begins with the second step</div>'
    mean = story.losses.smooth()
    right = max(story.max_steps, raw[-1][0])
    low, high = loss_range(raw, [*mean, *kept])
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / right
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (min(max(point[1], low), high) - low) / (high - low))
        return round(x, 1), round(y, 1)

    def path(points: Points) -> str:
        return "M" + "L".join(f"{x} {y}" for x, y in map(at, points))

    grid = "".join(f'<path class="grid" d="M{LEFT} {at((0, t))[1]}H{WIDTH - RIGHT}"/>' for t in ticks)
    beside = "".join(f'<text class="y" x="{LEFT - 6}" y="{at((0, t))[1] + 3.5}">{t:g}</text>' for t in ticks)
    below = "".join(
        f'<text class="x" x="{at((t, 0))[0]}" y="{HEIGHT - 7}">{t:g}</text>' for t in nice_ticks(0, right, 6)
    )
    dots = "".join(f'<circle class="val" cx="{x}" cy="{y}" r="2.5"/>' for x, y in map(at, kept))
    legend = '<span class="key raw">each step</span><span class="key mean">running mean</span>'
    legend += '<span class="key val">validation</span>' if kept else ""
    data = ";".join(f"{at(m)[0]},{at(m)[1]},{round(x)},{y:.4g},{m[1]:.4g}" for (x, y), m in zip(raw, mean, strict=True))
    return (
        f'<figure class="chart" data-points="{data}"><figcaption><b>Loss</b>{legend}<output></output></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Loss by step">{grid}{beside}{below}'
        f'<path class="raw" d="{path(raw)}"/><path class="mean" d="{path(mean)}"/>{dots}'
        f'<path class="cursor" d=""/></svg></figure>'
    )


def loss_range(raw: Points, strong: Points) -> tuple[float, float]:
    """Low and high of the chart: all of the mean, and of the raw loss all but its highest and lowest hundredth."""
    ranked = sorted(y for _, y in raw)
    cut = len(ranked) // 100
    low = min(ranked[cut], *(y for _, y in strong))
    high = max(ranked[-1 - cut], *(y for _, y in strong))
    return (low, high) if high > low else (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within low..high, at most about `most`."""
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    first = math.ceil(low / step)
    return [round((first + i) * step, 10) for i in range(int(high / step + 1e-9) - first + 1)] or [low, high]


def compile_facts(story: RunStory) -> str:
    facts = story.compile
    if not facts and not story.compile_lines:
        return ""
    words = [
        f"{facts[key]} {one if facts[key] == 1 else many}"
        for key, one, many in (
            ("graphs", "graph", "graphs"),
            ("recompiles", "recompile", "recompiles"),
            ("breaks", "graph break", "graph breaks"),
        )
        if facts.get(key) is not None
    ]
    if facts.get("seconds"):
        words.append(f"{facts['seconds']:.0f} s to compile")
    return section("torch.compile", [" · ".join(words)] if words else [], story.compile_lines[-3:])


def files(story: RunStory) -> str:
    if not story.saved:
        return ""
    rows = [
        f'<li><code title="{escape(str(f.path))}">{escape(f.path.name)}</code>'
        f"<span>step {f.step}{f' · {size(f.bytes)}' if f.bytes else ''}</span></li>"
        for f in reversed(story.saved[-6:])
    ]
    return (
        f'<div class="section"><h4>Saved files</h4><ul class="files">{"".join(rows)}</ul>'
        f'<p class="where">in {escape(str(story.saved[-1].path.parent))}</p>{resume_hint(story)}</div>'
    )


def resume_hint(story: RunStory) -> str:
    """How to go on from a run that ended early."""
    states = [str(made.path) for made in story.saved if made.path.name.endswith(STATE)]
    if not states or story.state not in ("stopped", "failed", "lost"):
        return ""
    return f"<p>To go on from there, set <b>resume</b> to <code>{escape(states[-1])}</code></p>"


def warnings(story: RunStory) -> str:
    if not story.warnings:
        return ""
    rows = "".join(f"<li>{escape(text)}</li>" for text in list(dict.fromkeys(story.warnings))[-8:])
    return f'<div class="section section-warning"><h4>Warnings</h4><ul>{rows}</ul></div>'


def section(title: str, lines: Iterable[str], small: Iterable[str]) -> str:
    body = "".join(f"<p>{escape(line)}</p>" for line in lines)
    body += "".join(f'<p class="small">{escape(line)}</p>' for line in small)
    return f'<div class="section"><h4>{escape(title)}</h4>{body}</div>'
