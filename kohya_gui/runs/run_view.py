"""Render a run's state as HTML. Pure functions; colours come from the theme's style sheet."""

import math
import os
import time
from collections.abc import Iterable
from html import escape
from pathlib import Path

from kohya_gui.form.field_links import NO_LINKS, FieldLinks
from kohya_gui.form.recognise import size
from kohya_gui.runs.before_after import before_after
from kohya_gui.server.messages import Html, message
from sd_scripts.families.cards.registry import card_of, names
from sd_scripts.formats.words import some
from sd_scripts.options.generating.generate import GENERATE
from sd_scripts.runs.outputs import DIFFUSERS_ENDING, EMA_ENDING, EMBEDDING_ENDING, STATE_ENDING
from sd_scripts.runs.process import TERM_GRACE
from sd_scripts.runs.run_state import ENDED, LIVING, CompileChecks, OutputFile, RunState, State
from sd_scripts.runs.store import SLURM, RunRow

STATE_LABELS = {
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
"""Saved files shown before the rest is folded away."""
MOST_FILES = 60
"""Saved files listed at most; the folder has the others."""
REPLACED = '<span class="warn">overwritten by a later run</span>'
LORA_HINT = "Your LoRA. To use it, put it into <b>models/loras</b> (ComfyUI) or <b>models/Lora</b> (WebUI)."
"""Where a LoRA of any family goes."""
COMMANDS = (
    ("save", "Save now", "Save the model after the current step; training continues"),
    ("sample", "Sample now", "Generate the sample images after the current step; training continues"),
    ("stop", "Stop after this step", "Save the state and exit; the run can be continued later"),
)
"""Commands to a run: name, label, tooltip."""
FIX = "Load its settings and go to the field"
COMPARE_HINT = "Images of the saved files side by side, and the validation loss of each"
LOSS_HINT = "mean of the last 100 steps; the chart shows every step"
PHASE_OF = {"save": "saving", "sample": "sampling"}
"""The phase in which a run carries out a command."""
CACHE_WORDS = {"hit": "found", "kernels": "kernels found", "miss": "new", "bypass": "not cacheable"}
"""What inductor's cache gave for a graph."""
COMPILE_COUNTS = {
    "cache_hits": "from the cache",
    "cache_misses": "new",
    "cache_bypasses": "not cacheable",
    "cuda_graph_skips": "without CUDA graphs",
}
"""Counts of graphs that are shown unless they are 0."""
MOST_BREAKS = 5
"""Graph breaks that are listed."""
DONE = {"save": "Saved", "sample": "Sampled", "stop": "Stopping"}
UNTRAINED = "waiting for the first step to finish; nothing is trained yet, so Stop now loses nothing"


def sections(
    run_state: RunState, row: RunRow, now: float | None = None, links: FieldLinks = NO_LINKS
) -> dict[str, str]:
    """Return the sections of the view by name; the page replaces only those whose HTML changed."""
    folder = row.folder
    waiting = row.state == "queued"
    no_steps = not len(run_state.losses)
    return {
        "head": head(run_state, row),
        "progress": "" if waiting else progress(run_state, row),
        "controls": controls(run_state, row),
        "failure": failure(run_state, row, links),
        "result": result(run_state, row.family),
        "before_after": before_after(row),
        "tiles": "" if waiting or (no_steps and (run_state.over or run_state.waits)) else tiles(run_state, row, now),
        "files": files(run_state, row.id),
        "warnings": warnings(run_state, links),
        "compile": compile_section(run_state),
        "where": run_folder(run_state, folder),
    }


def head(run_state: RunState, row: RunRow) -> str:
    where = f"step {run_state.step} of {run_state.max_steps}" if run_state.max_steps else ""
    if run_state.epochs and run_state.epoch:
        where = f"{where} · " + f"epoch {run_state.epoch} of {run_state.epochs}"
    note = f'<p class="run-note">{escape(row.note)}</p>' if row.note else ""
    if row.state == "queued" and row.place:
        where = "next in the queue" if row.place == 1 else f"position {row.place} in the queue"
    return (
        f'<div class="run-head"><span class="badge">{state_label(run_state, row)}</span>'
        f'<span class="run-name" title="{escape(str(row.folder))}">{escape(row.name)}</span>'
        f'<button type="button" class="link" data-describe title="Rename this run or add a note">Edit</button>'
        f'<span class="run-where">{where}</span></div>{note}'
    )


def run_folder(run_state: RunState, folder: Path) -> str:
    job = "" if run_state.over or run_state.waits or not run_state.scheduler else f" · {escape(run_state.scheduler)}"
    return f'<p class="where">Run folder: {with_copy_button(str(folder))}{job}</p>'


def shown_state(run_state: RunState, row: RunRow) -> State:
    """Return the state to show: the event log's, or the store's for a run that never began."""
    never_began = run_state.state == "starting" and row.state in ENDED
    return row.state if row.state == "queued" or never_began else run_state.state


def state_label(run_state: RunState, row: RunRow) -> str:
    return STATE_LABELS["queued" if run_state.waits and not run_state.over else shown_state(run_state, row)]


def progress(run_state: RunState, row: RunRow) -> str:
    doing = "" if run_state.over else run_state.phase
    waiting = run_state.state in LIVING and run_state.phase != "training"
    fraction: float | None = run_state.fraction
    if waiting:
        fraction = run_state.done / run_state.total if run_state.total else None
        doing += f" {run_state.done} of {run_state.total}" if run_state.total else ""
    since = run_state.phase_since if waiting else None
    if doing and run_state.phase_note:
        doing += f" · {run_state.phase_note}"
    if run_state.state == "stopping":
        doing = "finishing the current step, then saving and exiting" if run_state.step else UNTRAINED
        since = run_state.stop_sent.time if run_state.stop_sent else None
    if run_state.state == "starting":
        doing, since = "starting Python and PyTorch", row.started
    if run_state.waits:
        doing = run_state.scheduler
    return progress_bar(fraction, doing, f' · <span class="ticks" {ticking(since)}></span>' if since else "")


def progress_bar(fraction: float | None, doing: str, more: str = "") -> str:
    """Return a bar, filled to the fraction if it is known, and below it the current activity; `more` is HTML."""
    percent = f"{100 * (fraction or 0):.1f}"
    now = "" if fraction is None else f' aria-valuenow="{percent}"'
    phase = f'<div class="run-phase">{escape(doing[:1].upper() + doing[1:])}{more}</div>' if doing else ""
    return (
        f'<div class="bar{" bar-unknown" if fraction is None else ""}" role="progressbar" aria-label="Progress"{now}>'
        f'<i style="width:{percent}%"></i></div>{phase}'
    )


def ticking(since: float) -> str:
    """Return the attribute by which the page shows, every second, how long ago that was."""
    return f'data-since="{since:.1f}"'


def generates(family: str) -> bool:
    """Return whether a script generates images of this family."""
    return family in names() and GENERATE in card_of(family).scripts


def controls(run_state: RunState, row: RunRow) -> str:
    """Return the buttons of the run; a pending command's button shows it until the run answers."""
    state = shown_state(run_state, row)
    if state == "queued":
        return actions([("first", "Start next", ""), ("remove", "Remove from the queue", "")])
    saved = any(not made.path.name.endswith(STATE_ENDING) for made in run_state.saved)
    compares = run_state.facts.get("method") in ("lora", "full") and generates(row.family)
    compare = [("checkpoints", "Compare checkpoints…", COMPARE_HINT)] if saved and compares else []
    if state in LIVING and run_state.waits:
        return actions([("end", "Cancel the job", "Remove the job from Slurm's queue")])
    if state in LIVING:
        return living_controls(run_state) + (actions(compare) if compare else "")
    again = [("continue", "Continue", "Start a new run with these settings from the latest state")]
    tries = [("try", "Try it", "Generate images with the trained file")]
    buttons = [
        *(tries if saved and generates(row.family) else []),
        *compare,
        *(again if newest_state(run_state) else []),
        ("load", "Load settings", "Load the settings this run was started with into its tab"),
        *([("publish", "Publish…", "Edit the model card, then upload the file or pack a zip")] if saved else []),
        ("forget", "Remove from list", "The run's folder and files stay"),
    ]
    return actions(buttons)


def living_controls(run_state: RunState) -> str:
    buttons = []
    for command, words, why in COMMANDS:
        asked = command in run_state.pending_commands or run_state.state == "stopping"
        said = "Requested…" if command in run_state.pending_commands else words
        face = f'data-action="{command}" title="{escape(why)}"{" disabled" if asked else ""}'
        buttons.append(f'<button type="button" {face}>{said}</button>')
    menu = (
        '<details class="menu"><summary aria-label="More" title="More">⋯</summary><div>'
        f'<p>{what_is_lost(run_state)}</p><button type="button" class="stop" data-action="end">Stop now</button>'
        "</div></details>"
    )
    heard = {asked.kind: asked.handled_step for asked in run_state.commands if asked.handled_step is not None}
    heard = {kind: step for kind, step in heard.items() if PHASE_OF.get(kind) != run_state.phase}
    done = " · ".join(
        f"{words} at step {heard[kind]}"
        for kind, words in DONE.items()
        if kind in heard and kind not in run_state.pending_commands
    )
    told = f'<span class="done">✓ {done}</span>' if done else ""
    return f'<div class="run-actions">{"".join(buttons)}{menu}{told}</div>'


def what_is_lost(run_state: RunState) -> str:
    """Return the progress that ending the processes immediately would lose."""
    begun = run_state.facts.get("step") or 0
    if run_state.step <= begun:
        return "Ends the run immediately. Nothing is trained yet, so nothing is lost."
    states = [made.step for made in run_state.saved if made.path.name.endswith(STATE_ENDING)]
    lost = "all training is lost"
    if states:
        lost = f"training after step {states[-1]} is lost"
    elif run_state.saved:
        step = run_state.saved[-1].step
        lost = f"files up to step {step} stay, later training is lost, and the run cannot be continued"
    elif begun:
        lost = f"training after step {begun} is lost"
    if os.name == "nt":  # which has no signal that a process can answer
        return f"Ends the run immediately without saving: {lost}."
    seconds = f"{TERM_GRACE:.0f}"
    return f"Ends the run within {seconds} seconds. It saves first if the current step ends by then; if not, {lost}."


def actions(buttons: Iterable[tuple[str, str, str]]) -> str:
    made = (
        f'<button type="button" data-action="{a}" title="{escape(why)}">{words}</button>' for a, words, why in buttons
    )
    return f'<div class="run-actions">{"".join(made)}</div>'


def newest_state(run_state: RunState) -> Path | None:
    """Return the newest complete state that still exists; a continued run resumes from it."""
    states = (made.find() for made in reversed(run_state.saved) if made.path.name.endswith(STATE_ENDING))
    return next((path for path in states if path and (path / "progress.json").is_file()), None)


def with_copy_button(path: str) -> str:
    """Return a path with a Copy button."""
    path = escape(path)
    return f'<code>{path}</code> <button type="button" class="link" data-copy="{path}">Copy</button>'


def failure(run_state: RunState, row: RunRow, links: FieldLinks = NO_LINKS) -> str:
    """Return why a run failed, or why a queued one cannot start, with a button that leads to the field to change."""
    if row.state == "queued":
        return message("warning", links.sentence(row.error)) if row.error else ""
    if not run_state.failure:
        return ""
    if run_state.state == "stopped":
        return message("note", run_state.failure.get("error", ""))
    error, remedy, details = (run_state.failure.get(name, "") for name in ("error", "remedy", "details"))
    more = f"<p>{links.sentence(remedy)}</p>" if remedy else ""
    if field := links.target(error):
        more += f'<div class="ways"><button type="button" data-action="load" {field}>{FIX}</button></div>'
    more += f"<details><summary>Details</summary><pre>{escape(details)}</pre></details>" if details else ""
    return message("error", links.sentence(error), more=Html(more))


def result(run_state: RunState, family: str) -> str:
    """Return the final file of a finished run, with a Copy button and where to put it."""
    made = [made for made in run_state.saved if not made.path.name.endswith(STATE_ENDING)]
    if run_state.state != "finished" or not made:
        return ""
    beside = [each for each in made if each.path.stem.endswith(EMBEDDING_ENDING)]
    made = [each for each in made if each not in beside] or made
    plain = [each for each in made if not each.path.stem.endswith((EMA_ENDING, DIFFUSERS_ENDING))] or made
    averages = [each for each in made if each.path.stem.endswith(EMA_ENDING) and each.step == plain[-1].step]
    found, last = plain[-1].find(), averages[-1].find() if averages else None
    if found is None:
        return message("warning", f"{plain[-1].path}: overwritten by a later run")
    path = escape(str(found))
    average = f"<p>The EMA weights are in <b>{escape(last.name)}</b>.</p>" if last and last != found else ""
    if beside and (embedding := beside[-1].find()):
        average += f"<p>The embeddings of the new token are in <b>{escape(embedding.name)}</b>.</p>"
    method = run_state.facts.get("method", "")
    hints = card_of(family).page.use_hints if family in names() else {}
    where = hints.get(method, "Your model." if method == "full" else LORA_HINT)
    return (
        f'<div class="result"><code>{path}</code><button type="button" data-copy="{path}">Copy</button>'
        f"<p>{where}</p>{average}</div>"
    )


def tiles(run_state: RunState, row: RunRow, now: float | None = None) -> str:
    began, ended = row.started or run_state.started, row.ended or run_state.ended
    if row.gpus == SLURM:  # in whose queue it waited since row.started
        began = run_state.started
    took = (ended or now or time.time()) - began if began else None
    time_tile = ("Took" if run_state.over else "So far", duration(took), "total time")
    if run_state.seconds_left is not None:
        time_tile = ("Time left", duration(run_state.seconds_left), "at the current speed")
    several = (run_state.facts.get("images_per_step") or 1) > 1  # else it is the speed again
    ticks = "" if run_state.over or not began else f" {ticking(began)}"
    loss = run_state.average if run_state.average is not None else run_state.loss
    shown = [
        ("Loss, mean", formatted(loss, "{:.4f}"), LOSS_HINT),
        ("Speed", speed(run_state.seconds_per_step), "without warmup and compilation"),
        time_tile,
        *([("Images", formatted(run_state.images_per_second, "{:.3g}/s"), "training images per second")] * several),
        ("VRAM", memory(run_state.vram), peaks(run_state.vram_of_phases)),
        ("RAM", memory(run_state.ram), "of the training process"),
        ("Learning rate", *rates(run_state.learning_rates)),
    ]
    cells = "".join(
        f'<div class="tile" title="{escape(hint)}"><b{ticks if word == "So far" else ""}>{value}</b>'
        f"<span>{word}</span></div>"
        for word, value, hint in shown
        if value != "–" or word in ("Loss, mean", "Speed")
    )
    return f'<div class="tiles">{cells}</div>'


def peaks(of_phases: dict[str, int]) -> str:
    """Return the peak memory of each phase."""
    return f"peak: {', '.join(f'{phase} {memory(used)}' for phase, used in of_phases.items())}"


def rates(learning_rates: dict[str, float]) -> tuple[str, str]:
    """Return the highest learning rate of the parameter groups, and all of them."""
    if not learning_rates:
        return "–", "of this step"
    return f"{max(learning_rates.values()):.3g}", " · ".join(f"{g} {rate:.3g}" for g, rate in learning_rates.items())


def formatted(value: float | None, template: str) -> str:
    return "–" if value is None else template.format(value)


def memory(bytes: int) -> str:
    return f"{bytes / 2**30:.1f} GiB" if bytes else "–"


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


def compile_section(run_state: RunState) -> str:
    stats = run_state.compile
    if not stats and not run_state.compile_lines:
        return ""
    words = [
        f"{stats[key]} {one if stats[key] == 1 else many}"
        for key, one, many in (
            ("graphs", "graph", "graphs"),
            ("recompiles", "recompile", "recompiles"),
            ("breaks", "graph break", "graph breaks"),
        )
        if stats.get(key) is not None
    ]
    if stats.get("seconds"):
        words.append(f"{stats['seconds']:.0f} s to compile")
    words += [f"{stats[key]} {said}" for key, said in COMPILE_COUNTS.items() if stats.get(key)]
    lines = f"<p>{escape(' · '.join(words))}</p>" if words else ""
    lines += "".join(f'<p class="small">{escape(line)}</p>' for line in run_state.compile_lines[-3:])
    if run_state.breaks:
        lines += f'<p class="small">Graph breaks at {escape(some(run_state.breaks, MOST_BREAKS))}</p>'
    lines += compile_checks(run_state.checks)
    return f'<div class="section"><h3>torch.compile</h3>{lines}{compiled_graphs(run_state)}</div>'


def compile_checks(checks: CompileChecks) -> str:
    """Describe how far compiled steps were from eager ones."""
    if not checks.count:
        return ""
    steps = f"{checks.count:,} step{'' if checks.count == 1 else 's'}"
    loss, gradient = f"{checks.largest_loss:.2g}", f"{checks.largest_gradient:.2g}"
    differ = f"loss differs by at most {loss}, gradients by at most {gradient} of the largest"
    said = [f"Compared with eager at {steps}, last at step {checks.last_step:,}: {differ}"]
    if checks.exceeded:
        said.append(f"More than rounding explains at step {', '.join(map(str, checks.exceeded))}")
    return f'<p class="small">{". ".join(said)}</p>'


def compiled_graphs(run_state: RunState) -> str:
    """List every compiled graph with its time, and for a recompile the guard that failed."""
    rows = "".join(
        f"<tr><td>{step}</td><td>{escape(str(graph.get('block')))}</td><td>{escape(str(graph.get('seconds')))} s</td>"
        f"<td>{CACHE_WORDS.get(str(graph.get('cache')), '–')}</td>"
        f"<td>{escape(str(graph.get('why') or 'first of its kind'))}</td></tr>"
        for step, graph in run_state.compiled
    )
    head = "<tr><th>Step</th><th>Block</th><th>Compiled in</th><th>Cache</th><th>Why</th></tr>"
    table = f'<div class="scroll graphs"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
    return f"<details><summary>Every graph</summary>{table}</details>" if rows else ""


def files(run_state: RunState, run: int) -> str:
    if not run_state.saved:
        return ""
    last = reversed(list(enumerate(run_state.saved))[-MOST_FILES:])
    rows = [file_row(run, number, made, run_state.uploaded.get(made.path)) for number, made in last]
    first, more = rows[:FIRST_FILES], rows[FIRST_FILES:]
    rest = (
        f"<details><summary>{len(more)} more</summary><ul class='files'>{''.join(more)}</ul></details>" if more else ""
    )
    return (
        f'<div class="section"><h3>Saved files</h3><ul class="files">{"".join(first)}</ul>{rest}'
        f'<p class="where">Folder: {with_copy_button(str(run_state.saved[-1].path.parent))}</p></div>'
    )


def file_row(run: int, number: int, made: OutputFile, uploaded: str | None) -> str:
    """Return a file's name, step, size and links; a state is a folder, so only its path can be copied. `uploaded`: its
    address on the Hugging Face Hub, if it is there."""
    found = made.find()
    told = f"step {made.step}{f' · {size(made.bytes)}' if made.bytes else ''}"
    if found is None:
        name = f'<code title="{escape(str(made.path))}">{escape(made.path.name)}</code>'
        return f"<li>{name}<span>{told}</span>{REPLACED}</li>"
    path, name = escape(str(found)), escape(found.name)
    is_state = made.path.name.endswith(STATE_ENDING)
    link = f'<a href="studio/run/{run}/file/{number}" download="{name}">Download</a>'
    on_hub = uploaded and uploaded.startswith("https://")
    hub = f'<a href="{escape(uploaded)}" target="_blank" rel="noopener">On the Hub</a>' if uploaded and on_hub else ""
    return (
        f'<li><code title="{path}">{name}</code><span>{told}</span>'
        f'<span class="ways"><button type="button" class="link" data-copy="{path}">Copy path</button>'
        f"{'' if is_state else link}{hub}</span></li>"
    )


def warnings(run_state: RunState, links: FieldLinks = NO_LINKS) -> str:
    if not run_state.warnings:
        return ""
    rows = "".join(f"<li>{links.sentence(text)}</li>" for text in list(dict.fromkeys(run_state.warnings))[-8:])
    return f'<div class="section section-warning"><h3>Warnings</h3><ul>{rows}</ul></div>'
