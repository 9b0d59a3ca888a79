"""A tool in a process of its own, one at a time: now or, if it computes on the GPU, when the run there ends."""

from collections.abc import Callable, Sequence

from kohya_gui.launch_command import sees_no_gpu
from sd_scripts.runs import process
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import RunQueue, gpu_set
from sd_scripts.runs.store import state_folder
from sd_scripts.runs.watched import End, WatchedRun


class ToolJob:
    """The current or last process of a tool."""

    uses_gpu = True
    """Whether it waits for the run on the GPU, and runs wait for it."""

    def __init__(self, queue: RunQueue, name: str) -> None:
        """`name`: what its folder is called."""
        self._queue, self._name = queue, name
        self.watched: WatchedRun | None = None
        self.waits_for = ""
        """Name of the run that was active when it was requested."""

    @property
    def busy(self) -> bool:
        return self.watched is not None and not self.watched.refresh().over  # one that reported its end may still exit

    def begin(self, argv: Sequence[str], prepare: Callable[[WatchedRun], Sequence[str]] | None = None) -> None:
        """Start a command now, or when the run on the GPU ends. Raises ValueError, one sentence, if that fails.

        `prepare` may write files into the folder of the job and returns more arguments.
        """
        gpus = gpu_set("", sees_no_gpu())
        try:
            folder = new_run_folder(state_folder() / "tools", self._name)
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be created ({error.strerror})") from error
        run = self._queue.run_on(gpus) if self.uses_gpu else None
        self.waits_for = run.name if run else ""
        if self.uses_gpu and not run:
            self._queue.end_idle_tools(gpus)
        job = WatchedRun(folder, None, waiting=True)
        command = [*argv, *(prepare(job) if prepare else ()), "--run_dir", str(folder.path)]
        self.watched = job
        if run:
            self._queue.when_free(gpus, lambda: self._begin_waiting(job, command), self.make_way)
        else:
            self.watched = WatchedRun(folder, process.start(command, {}, folder))
            if self.uses_gpu:
                self._queue.reserve(gpus, self.watched, self.make_way)

    def _begin_waiting(self, waiting: WatchedRun, argv: Sequence[str]) -> WatchedRun | None:
        """Start the waiting job, unless it was stopped meanwhile."""
        if not waiting.waiting:
            return None
        try:
            self.watched = WatchedRun(waiting.folder, process.start(argv, {}, waiting.folder))
        except ValueError as error:
            waiting.waiting, waiting.end = False, End("failed", str(error))
            return None
        return self.watched

    def make_way(self) -> None:
        """Called when a queued run waits for the GPU: a process that has nothing to do may end."""

    def stop(self) -> None:
        if self.watched and self.watched.waiting:
            self.watched.waiting, self.watched.end = False, End("stopped")
        elif self.watched:
            self.watched.stop()
