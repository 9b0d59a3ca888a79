"""A run as the page shows it: its story turned into HTML. Pure functions; colours come from the theme's style sheet."""

import math
import time
from collections.abc import Iterable
from html import escape
from pathlib import Path

from kohya_gui.messages import message
from kohya_gui.recognise import size
from sd_scripts.runs.events import END
from sd_scripts.runs.outputs import STATE_ENDING
from sd_scripts.runs.store import RunRow
from sd_scripts.runs.story import ENDED, LIVING, Made, RunStory, State

WORDS = {
    "queued": "Waiting",
    "starting": "Starting",
    "running": "Running",
    "stopping": "Stopping",
    "stopped": "Stopped",
    "finished": "Finished",
    "failed": "Failed",
    "lost": "Crashed",
}
FIRST_FILES = 6
"""Saved files that are not folded away."""
MOST_FILES = 60
"""Saved files that are named at all; the folder has the others."""
AVERAGE = "-ema"
"""How the name of a file of moving averages ends."""
REPLACED = '<span class="warn">replaced by a later run</span>'
PLACES = {
    "lora": "Your LoRA is in this file. Put it into <b>models/loras</b> of ComfyUI or <b>models/Lora</b> of WebUI to "
    "use it.",
    "full": "This is your model. Put it into <b>models/checkpoints</b> of ComfyUI or <b>models/Stable-diffusion</b> of "
    "WebUI to use it.",
    "full flux": "This is your model. Put it into <b>models/diffusion_models</b> of ComfyUI or "
    "<b>models/Stable-diffusion</b> of WebUI Forge to use it.",
}
"""What to do with the result, by method, or by method and family."""
COMMANDS = (
    ("save", "Save now", "Save the model as it is after this step; the training goes on"),
    ("sample", "Sample now", "Draw the sample prompts after this step; the training goes on"),
    ("stop", "Stop after this step", "Save the state and leave: the run can be continued"),
)
"""What a run can be asked for: command, words, what it does."""
AVERAGED = "of the last 100 steps; the chart shows each step"
DOING = {"save": "saving", "sample": "sampling"}
"""The phase in which a run does what it was asked."""
DONE = {"save": "Saved", "sample": "Sampled", "stop": "Stopping"}
UNTRAINED = "waiting for the end of the first step; nothing is trained yet, so Stop now loses nothing"


def sections(story: RunStory, row: RunRow, now: float | None = None) -> dict[str, str]:
    """The parts of the view by name; the page replaces only those whose HTML is another than before."""
    folder = row.folder
    waiting = row.state == "queued"
    return {
        "head": head(story, row),
        "progress": "" if waiting else progress(story, row),
        "controls": controls(story, row),
        "failure": failure(story) if not waiting else hold(row.error),
        "result": result(story, row.family),
        "tiles": "" if waiting or (story.over and not len(story.losses)) else tiles(story, row, now),
        "files": files(story, row.id),
        "warnings": warnings(story),
        "compile": compile_facts(story),
        "where": f'<p class="where">All of this run is in {copied(str(folder))}</p>',
    }


def head(story: RunStory, row: RunRow) -> str:
    where = f"step {story.step} of {story.max_steps}" if story.max_steps else ""
    if story.epochs and story.epoch:
        where += f" · epoch {story.epoch} of {story.epochs}"
    note = f'<p class="run-note">{escape(row.note)}</p>' if row.note else ""
    if row.state == "queued" and row.place:
        where = "next in the queue" if row.place == 1 else f"number {row.place} in the queue"
    return (
        f'<div class="run-head"><span class="badge">{WORDS[shown_state(story, row)]}</span>'
        f'<span class="run-name" title="{escape(str(row.folder))}">{escape(row.name)}</span>'
        f'<button type="button" class="link" data-describe title="Rename this run or write a note">Edit</button>'
        f'<span class="run-where">{where}</span></div>{note}'
    )


def shown_state(story: RunStory, row: RunRow) -> State:
    """The story is newer than the store; of a run that never began, the store alone knows."""
    return row.state if row.state == "queued" or (story.state == "starting" and row.state in ENDED) else story.state


def progress(story: RunStory, row: RunRow) -> str:
    doing = "" if story.over or not story.phase else story.phase
    waiting = story.state in LIVING and story.phase != "training"
    if waiting and story.total:
        fraction, doing = story.done / story.total, f"{doing} {story.done} of {story.total}"
    else:
        fraction = story.fraction
    unknown = waiting and not story.total
    since = story.phase_since if waiting else None
    if doing and story.phase_note:
        doing += f" · {story.phase_note}"
    if story.state == "stopping":
        doing = "finishing the step, then saving and exiting" if story.step else UNTRAINED
        since = next((asked.time for asked in story.asked if asked.kind in ("stop", END)), None)
    if story.state == "starting":
        doing, since = "starting Python and PyTorch", row.started
    percent = f"{100 * fraction:.1f}"
    now = "" if unknown else f' aria-valuenow="{percent}"'
    bar = (
        f'<div class="bar{" bar-unknown" if unknown else ""}" role="progressbar" aria-label="Progress"{now}>'
        f'<i style="width:{percent}%"></i></div>'
    )
    if not doing:
        return bar
    ticks = f' · <span class="ticks" {ticking(since)}></span>' if since else ""
    return f'{bar}<div class="run-phase">{escape(doing[:1].upper() + doing[1:])}{ticks}</div>'


def ticking(since: float) -> str:
    """The attribute by which the page writes, every second, how long ago that was."""
    return f'data-since="{since:.1f}"'


def controls(story: RunStory, row: RunRow) -> str:
    """What can be asked of the run as it is; what it was asked says so until the run answers."""
    state = shown_state(story, row)
    if state == "queued":
        return actions([("first", "Start next", ""), ("remove", "Remove from the queue", "")])
    if state in LIVING:
        return living_controls(story)
    again = [("continue", "Continue", "Start a new run with these settings from the newest state")]
    buttons = [
        *(again if newest_state(story) else []),
        ("load", "Load settings", "Fill in the form of its tab with what this run was started with"),
        ("forget", "Remove from list", "Its folder and files stay"),
    ]
    return actions(buttons)


def living_controls(story: RunStory) -> str:
    buttons = []
    for command, words, why in COMMANDS:
        asked = command in story.waiting_for or story.state == "stopping"
        said = "Asked…" if command in story.waiting_for else words
        face = f'data-action="{command}" title="{escape(why)}"{" disabled" if asked else ""}'
        buttons.append(f'<button type="button" {face}>{said}</button>')
    menu = (
        '<details class="menu"><summary aria-label="More" title="More">⋯</summary><div>'
        f'<p>{what_is_lost(story)}</p><button type="button" class="stop" data-action="end">Stop now</button>'
        "</div></details>"
    )
    heard = {asked.kind: asked.heard for asked in story.asked if asked.heard is not None}
    heard = {kind: step for kind, step in heard.items() if DOING.get(kind) != story.phase}
    done = " · ".join(f"{DONE[kind]} at step {step}" for kind, step in heard.items() if kind not in story.waiting_for)
    told = f'<span class="done">✓ {done}</span>' if done else ""
    return f'<div class="run-actions">{"".join(buttons)}{menu}{told}</div>'


def what_is_lost(story: RunStory) -> str:
    """What ending the processes at once would cost."""
    begun = story.facts.get("step") or 0
    if story.step <= begun:
        return "Ends the run at once. Nothing is trained yet, so nothing is lost."
    states = [made.step for made in story.saved if made.path.name.endswith(STATE_ENDING)]
    if states:
        return f"Ends the run at once, without saving: what it learned after step {states[-1]} is lost."
    if story.saved:
        return (
            f"Ends the run at once, without saving: its files up to step {story.saved[-1].step} stay, what it learned "
            "after that is lost, and it cannot be continued."
        )
    if begun:
        return f"Ends the run at once, without saving: what it learned after step {begun} is lost."
    return "Ends the run at once, without saving: everything it learned is lost."


def actions(buttons: Iterable[tuple[str, str, str]]) -> str:
    made = (
        f'<button type="button" data-action="{a}" title="{escape(why)}">{words}</button>' for a, words, why in buttons
    )
    return f'<div class="run-actions">{"".join(made)}</div>'


def hold(why: str) -> str:
    """Why a run that waits cannot start."""
    return message("warning", why) if why else ""


def newest_state(story: RunStory) -> Path | None:
    """The newest whole state that is still there: a run goes on from it."""
    states = (made.find() for made in reversed(story.saved) if made.path.name.endswith(STATE_ENDING))
    return next((path for path in states if path and (path / "progress.json").is_file()), None)


def copied(path: str) -> str:
    """A path with a button that copies it."""
    path = escape(path)
    return f'<code>{path}</code> <button type="button" class="link" data-copy="{path}">Copy</button>'


def failure(story: RunStory) -> str:
    if not story.failure:
        return ""
    if story.state == "stopped":
        return message("note", story.failure.get("error", ""))
    why = escape(story.failure.get("error", ""))
    remedy = f"<p>{escape(story.failure['remedy'])}</p>" if story.failure.get("remedy") else ""
    details = story.failure.get("details")
    more = f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
    return (
        f'<div class="message message-error" role="alert"><span class="sign">✕</span>'
        f"<div><p>{why}</p>{remedy}{more}</div></div>"
    )


def result(story: RunStory, family: str) -> str:
    """The file that a finished run was for, to copy, and where it goes."""
    made = [made for made in story.saved if not made.path.name.endswith(STATE_ENDING)]
    if story.state != "finished" or not made:
        return ""
    plain = [each for each in made if not each.path.stem.endswith(AVERAGE)] or made
    found, last = plain[-1].find(), made[-1].find()
    if found is None:
        return message("warning", f"{plain[-1].path}: a later run wrote its own file under this name")
    path = escape(str(found))
    average = f"<p>Its moving average is in <b>{escape(last.name)}</b>.</p>" if last and last != found else ""
    method = story.facts.get("method", "")
    where = PLACES.get(f"{method} {family}") or PLACES.get(method, PLACES["lora"])
    return (
        f'<div class="result"><code>{path}</code><button type="button" data-copy="{path}">Copy</button>'
        f"<p>{where}</p>{average}</div>"
    )


def tiles(story: RunStory, row: RunRow, now: float | None = None) -> str:
    began, ended = row.started or story.started, row.ended or story.ended
    took = (ended or now or time.time()) - began if began else None
    left, took_words = story.seconds_left, "Took" if story.over else "So far"
    ticks = "" if story.over or not began else f" {ticking(began)}"
    shown = [
        ("Loss, mean", number(story.average if story.average is not None else story.loss), AVERAGED),
        ("Speed", speed(story.seconds_per_step), "without warm-up and compiling"),
        ("Time left", duration(left), "at this speed") if left is not None else (took_words, duration(took), "in all"),
        ("Images", per_second(story.images_per_second), "images trained on per second"),
        ("VRAM", memory(story.vram), f"at the peak; {memory(story.vram_now)} when last asked"),
        ("RAM", memory(story.ram), "of the training process"),
        ("Learning rate", *rates(story.learning_rates)),
    ]
    cells = "".join(
        f'<div class="tile" title="{escape(hint)}"><b{ticks if word == "So far" else ""}>{value}</b>'
        f"<span>{word}</span></div>"
        for word, value, hint in shown
        if value != "–" or word in ("Loss, mean", "Speed")
    )
    return f'<div class="tiles">{cells}</div>'


def rates(learning_rates: dict[str, float]) -> tuple[str, str]:
    """The highest of the groups' rates, and all of them."""
    if not learning_rates:
        return "–", "of this step"
    return f"{max(learning_rates.values()):.3g}", " · ".join(f"{g} {rate:.3g}" for g, rate in learning_rates.items())


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def memory(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB" if bytes else "–"


def per_second(images: float | None) -> str:
    return "–" if images is None else f"{images:.3g}/s"


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


def files(story: RunStory, run: int) -> str:
    if not story.saved:
        return ""
    rows = [file_row(run, number, made) for number, made in reversed(list(enumerate(story.saved))[-MOST_FILES:])]
    first, more = rows[:FIRST_FILES], rows[FIRST_FILES:]
    rest = (
        f"<details><summary>{len(more)} more</summary><ul class='files'>{''.join(more)}</ul></details>" if more else ""
    )
    return (
        f'<div class="section"><h4>Saved files</h4><ul class="files">{"".join(first)}</ul>{rest}'
        f'<p class="where">in {copied(str(story.saved[-1].path.parent))}</p></div>'
    )


def file_row(run: int, number: int, made: Made) -> str:
    """A file's name, step, size, and the ways to have it; a state is a folder and only its path is of use."""
    found = made.find()
    told = f"step {made.step}{f' · {size(made.bytes)}' if made.bytes else ''}"
    if found is None:
        name = f'<code title="{escape(str(made.path))}">{escape(made.path.name)}</code>'
        return f"<li>{name}<span>{told}</span>{REPLACED}</li>"
    path, name = escape(str(found)), escape(found.name)
    is_state = made.path.name.endswith(STATE_ENDING)
    link = f'<a href="studio/run/{run}/file/{number}" download="{name}">Download</a>'
    return (
        f'<li><code title="{path}">{name}</code><span>{told}</span>'
        f'<span class="ways"><button type="button" class="link" data-copy="{path}">Copy path</button>'
        f"{'' if is_state else link}</span></li>"
    )


def warnings(story: RunStory) -> str:
    if not story.warnings:
        return ""
    rows = "".join(f"<li>{escape(text)}</li>" for text in list(dict.fromkeys(story.warnings))[-8:])
    return f'<div class="section section-warning"><h4>Warnings</h4><ul>{rows}</ul></div>'


def section(title: str, lines: Iterable[str], small: Iterable[str]) -> str:
    body = "".join(f"<p>{escape(line)}</p>" for line in lines)
    body += "".join(f'<p class="small">{escape(line)}</p>' for line in small)
    return f'<div class="section"><h4>{escape(title)}</h4>{body}</div>'
