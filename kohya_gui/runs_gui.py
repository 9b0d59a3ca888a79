"""The run row: the run of this machine as every open browser sees it, and the buttons that end it."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.processing_utils import save_file_to_cache

from kohya_gui.run_view import empty_view, run_view
from sd_scripts.runs.book import RunBook, WatchedRun
from sd_scripts.runs.story import RunStory, State

EVERY = 1.0
"""Seconds between two looks at the run."""
LATEST = "the newest run"
SHOWN_RUNS = 30
SHOWN_SAMPLES = 24


@dataclass(frozen=True)
class Sight:
    """What a browser was shown last: it gets what differs, and mostly nothing."""

    folder: Path | None = None
    told: int = -1
    samples: int = 0
    console: str = ""
    busy: State | None = None
    runs: tuple[str, ...] = ()


class RunPanel:
    """Start stands here but belongs to the tab, which knows what to start."""

    def __init__(self, book: RunBook, tab: str) -> None:
        self._book = book
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button("Start training", variant="primary", elem_id=f"{tab}-start", scale=3)
            self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id=f"{tab}-stop", scale=3)
            self.end = gr.Button("End at once", visible=False, elem_id=f"{tab}-end", scale=2)
            self.print = gr.Button("Print command", elem_id=f"{tab}-print", scale=2)
        self.message = gr.HTML(elem_id=f"{tab}-message")
        self.command = gr.Code(
            label="Command",
            interactive=False,
            wrap_lines=True,
            visible=False,
            elem_id=f"{tab}-command",
            elem_classes="command",
        )
        self.view = gr.HTML(empty_view(), elem_id=f"{tab}-run")
        self.samples = gr.Gallery(
            show_label=False,
            columns=3,
            fit_columns=False,
            height="auto",
            visible=False,
            object_fit="cover",
            buttons=["fullscreen", "download"],
            elem_id=f"{tab}-samples",
        )
        with gr.Accordion("Console", open=False, elem_id=f"{tab}-panel-console"):
            self.console = gr.HTML(elem_id=f"{tab}-console", autoscroll=True, max_height=320)
        self.chosen = gr.Dropdown(
            [LATEST],
            value=LATEST,
            label="Run shown above",
            filterable=False,
            elem_id=f"{tab}-chosen",
            elem_classes="run-chosen",
        )
        self._seen = gr.State(Sight())
        self._outputs = [
            self._seen, self.view, self.samples, self.console, self.start, self.stop, self.end, self.chosen,
        ]  # fmt: skip
        for button, act in ((self.stop, self._stop), (self.end, self._end)):
            self.show_after(button.click(act, show_progress="hidden", queue=False, api_visibility="private"))
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        gr.Timer(EVERY).tick(self.show, [self._seen, self.chosen], self._outputs, **quiet)
        self.chosen.input(self.show, [self._seen, self.chosen], self._outputs, **quiet)

    def show_after(self, event: Any) -> Any:
        """Show at once what an event has changed."""
        return event.then(
            self.show,
            [self._seen, self.chosen],
            self._outputs,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )

    def show(self, seen: Sight, chosen: str) -> list[Any]:
        """What changed since `seen`; nothing at all when nothing did."""
        watched = self._watched(chosen)
        if watched is None:
            return [gr.skip() for _ in self._outputs]
        story, folder, running = watched.refresh(), watched.folder, self._book.running()
        busy = running.refresh() if running else None
        now = Sight(
            folder=folder.path,
            told=story.told,
            samples=len(story.samples),
            console=folder.console_tail(),
            busy=busy.state if busy else None,
            runs=tuple(f.path.name for f in self._book.folders()[:SHOWN_RUNS]),
        )
        if now == seen:
            return [gr.skip() for _ in self._outputs]
        other = now.folder != seen.folder
        return [
            now,
            run_view(story, folder.path) if other or now.told != seen.told else gr.skip(),
            self._gallery(watched) if other or now.samples != seen.samples else gr.skip(),
            console_view(now.console) if other or now.console != seen.console else gr.skip(),
            *self._buttons(busy),
            gr.update(choices=[LATEST, *now.runs]) if now.runs != seen.runs else gr.skip(),
        ]

    def _buttons(self, busy: RunStory | None) -> list[Any]:
        """Start, stop and end: a run that is over may need a moment to leave, and end helps it if it hangs."""
        leaving = busy is not None and busy.over
        stopping = busy is not None and busy.state == "stopping"
        return [
            gr.update(visible=busy is None or leaving, interactive=busy is None),
            gr.update(
                visible=busy is not None and not leaving,
                value="Stopping…" if stopping else "Stop",
                interactive=not stopping,
            ),
            gr.update(visible=leaving or stopping),
        ]

    def _watched(self, chosen: str) -> WatchedRun | None:
        for folder in self._book.folders():
            if folder.path.name == chosen:
                return self._book.watch(folder)
        return self._book.latest()

    def _gallery(self, watched: WatchedRun) -> Any:
        samples = [s for s in watched.story.samples if s.path.is_file()][-SHOWN_SAMPLES:]
        # a copy in Gradio's cache: only such files are served, wherever the samples lie
        pictures = [
            (save_file_to_cache(s.path, self.samples.GRADIO_CACHE), f"step {s.step} · {s.note}")
            for s in reversed(samples)
        ]
        return gr.update(value=pictures, visible=bool(pictures))

    def _stop(self) -> None:
        if watched := self._book.running():
            watched.stop()

    def _end(self) -> None:
        if watched := self._book.running():
            watched.end_now()


def console_view(text: str) -> str:
    return f'<pre class="console">{escape(text) or "Nothing printed yet"}</pre>'
