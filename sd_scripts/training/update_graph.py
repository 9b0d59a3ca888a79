"""The update of a step as a CUDA graph: what follows the last backward, in one launch.

One graph serves all batch shapes and any number of micro-steps, since gradients lie at the same place once micro-steps
are recorded (step_graphs). What differs between two updates is in tensors on the device: learning rates, which the
schedule fills, counters, and the weight of the EMA.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sd_scripts.training.step_graphs import WARM_UP, Key, Recorded, Recorder, summary


class Recordable(Protocol):
    """An update that can be recorded."""

    def eager(self) -> Tensor | None:
        """Update as usual; return the gradient norm if it is computed."""

    def begin_recording(self) -> bool:
        """Called before recording; return whether that is possible."""

    def launch(self) -> Tensor | None:
        """Launch what is to be recorded; return where the gradient norm will be."""

    def before_replay(self) -> None:
        """Write what differs between two updates into the tensors that the graph reads."""

    def replayed(self) -> None:
        """Note on the CPU what the replayed update has changed."""

    def restart(self) -> None:
        """Note that recording failed: nothing of the update was computed, and it will run as usual."""


@dataclass(frozen=True, kw_only=True)
class _Graph:
    graph: Recorded
    norm: Tensor | None


class UpdateGraph:
    """Records updates and replays them."""

    def __init__(self, recorder: Recorder, warn: Callable[[str], object]):
        """`warn` is called with the reason if recording fails; updates then run as usual."""
        self._recorder, self._warn = recorder, warn
        self._graphs: dict[bool, _Graph] = {}
        self._seen: Counter[bool] = Counter()
        self._fixed: Key = ()
        self._records = True

    def run(self, update: Recordable, fixed: Key, *, averages: bool) -> Tensor | None:
        """Update the weights; return the gradient norm if it is computed.

        `fixed`: what a graph contains as it is now; updates are recorded again after it has changed. `averages`:
        whether the update also updates the EMA.
        """
        if fixed != self._fixed:
            self.forget()
            self._fixed = fixed
        graph = self._graphs.get(averages)
        if graph is None:
            self._seen[averages] += 1
            if not self._records or self._seen[averages] <= WARM_UP:
                return update.eager()
            graph = self._recorded(update)
            if graph is None:
                return update.eager()
            self._graphs[averages] = graph
        update.before_replay()
        graph.graph.replay()
        update.replayed()
        return None if graph.norm is None else graph.norm.clone()  # the next replay overwrites it

    def forget(self) -> None:
        """Free the graphs, and record again what is run from now on."""
        self._seen.clear()
        self._graphs.clear()

    def _recorded(self, update: Recordable) -> _Graph | None:
        """Return the recorded update, or None if it cannot be recorded."""
        if not update.begin_recording():
            self._records = False
            return None
        try:
            graph, norm = self._recorder.record(update.launch)
        except Exception as error:
            self._records = False
            why = summary(error)
            traceback.clear_frames(error.__traceback__)  # they hold what was allocated
        else:
            return _Graph(graph=graph, norm=norm)
        update.restart()
        self._warn(why)
        return None
