"""Describe the compiler's work: each graph with its block, why it was compiled again, where a graph broke."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from sd_scripts.formats.words import counted

MOST_GRAPHS = 60
"""Graphs that one event lists."""
MOST_BREAKS = 5
"""Graph breaks that a run warns about; the events count all."""
LONGEST_REASON = 200
RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
"""The name that Dynamo gives to the code behind a graph break."""
SIZE = re.compile(r"tensor '(.+?)' size mismatch at index (\d+)\. expected (\w+), actual (\w+)")
STRIDE = re.compile(r"tensor '(.+?)' stride mismatch at index \d+")
GRADIENT = re.compile(r"tensor '(.+?)' requires_grad mismatch\. expected requires_grad=(\d)")
DTYPE = re.compile(r"tensor '(.+?)' dtype mismatch\. expected (\w+), actual (\w+)")
DEVICE = re.compile(r"tensor '(.+?)' device mismatch")

Place = tuple[str, int]
"""Source file and first line of a function."""
Cache = Literal["hit", "kernels", "miss", "bypass"]
"""The whole graph came from the cache; only its kernels did; it is new there; it cannot be cached."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph that was compiled."""

    block: str
    """Class of the block, or the function if it belongs to none."""
    seconds: float
    why: str
    """What differs from the graphs that there were; empty for the first of its block."""
    cache: Cache | None = None
    """What inductor's cache gave for it; None if the backend has no cache."""


def places_of(blocks: Iterable[nn.Module]) -> dict[Place, str]:
    """Return the class name of each kind of block by where its forward is defined."""
    codes = {type(block): type(block).forward.__code__ for block in blocks}
    return {(code.co_filename, code.co_firstlineno): kind.__name__ for kind, code in codes.items()}


def graphs_in(metrics: Sequence[Any], places: Mapping[Place, str]) -> list[Graph]:
    """Return the graphs of these compilation metrics of Dynamo, in order."""
    made = [m for m in metrics if getattr(m, "graph_op_count", 0) and not getattr(m, "fail_type", None)]
    return [
        Graph(
            block=places.get((metric.co_filename, metric.co_firstlineno)) or _function(metric),
            seconds=round(getattr(metric, "entire_frame_compile_time_s", None) or 0.0, 2),
            why=in_words(getattr(metric, "recompile_reason", None) or ""),
            cache=_cache(metric),
        )
        for metric in made
    ]


def _cache(metric: Any) -> Cache | None:
    """Return which caches had a graph: AOTAutograd's, which stores whole graphs, or that of inductor's kernels."""
    if _lookups(metric, "aotautograd", "hit"):
        return "hit"
    if _lookups(metric, "inductor_fx", "hit") and not _lookups(metric, "inductor_fx", "miss"):
        return "kernels"
    if _lookups(metric, "aotautograd", "miss") or _lookups(metric, "inductor_fx", "miss"):
        return "miss"
    return "bypass" if getattr(metric, "inductor_compile_time_s", None) else None


def _lookups(metric: Any, cache: str, result: str) -> int:
    return sum(getattr(metric, f"{cache}_{place}_cache_{result}_count", None) or 0 for place in ("local", "remote"))


def _function(metric: Any) -> str:
    name = str(metric.co_name)
    resumed = RESUMED.match(name)
    return f"{resumed['function']} from line {resumed['line']}" if resumed else name


def breaks_in(metrics: Iterable[Any]) -> list[str]:
    """Return where graphs broke, as file:line, each once."""
    found = ((metric.co_filename, RESUMED.match(str(metric.co_name))) for metric in metrics)
    return list(dict.fromkeys(f"{Path(file).name}:{match['line']}" for file, match in found if match))


def in_words(reason: str) -> str:
    """Describe which guard failed: "size of x is 64 instead of 128 (dimension 1)"; empty for no reason."""
    text = reason.partition(": ")[2] if re.match(r"\d+/\d+: ", reason) else reason
    text = text.strip().split("\n")[0]
    if match := SIZE.search(text):
        return f"size of {match[1]} is {match[4]} instead of {match[3]} (dimension {match[2]})"
    if match := GRADIENT.search(text):
        return f"{match[1]} needs {'no gradient' if match[2] == '1' else 'a gradient'}, unlike before"
    if match := DTYPE.search(text):
        return f"dtype of {match[1]} is {match[3]} instead of {match[2]}"
    if match := STRIDE.search(text):
        return f"memory layout of {match[1]} differs"
    if match := DEVICE.search(text):
        return f"{match[1]} is on a different device"
    return text[:LONGEST_REASON]


def summary(where: str, graphs: Sequence[Graph]) -> str:
    """Return a line for a step: "step 2 (832x1216x1): 14 graphs in 3.1 s: 12 ResnetBlock2D, 2 ..."."""
    seconds = sum(graph.seconds for graph in graphs)
    kinds = ", ".join(f"{count} {block}" for block, count in Counter(graph.block for graph in graphs).most_common())
    cached = from_cache(sum(graph.cache == "hit" for graph in graphs))
    return f"{where}: {counted(len(graphs), 'graph')} compiled in {seconds:.1f} s{cached}: {kinds}"


def from_cache(count: int) -> str:
    """Return " (9 from the cache)"; empty for none."""
    return f" ({count} from the cache)" if count else ""


def progress_note(graphs: int, cached: int, expected: int | None, backward: int = 0) -> str:
    """Return how far compiling is: "6 of about 14 graphs (5 from the cache)"; empty before the first graph.

    `expected` is the plan's estimate for the whole run, if there is one. `backward` is how many graphs have begun to
    compile their backward pass, which takes longer than forward and happens after all of them are captured; those from
    the cache have one.
    """
    if not graphs:
        return ""
    counts = f"{graphs} of about {counted(expected, 'graph')}" if expected and graphs <= expected else ""
    note = (counts or f"{counted(graphs, 'graph')} so far") + from_cache(cached)
    return f"{note}, backward pass {backward} of {max(graphs - cached, backward)}" if backward else note


def explanations(counted: Mapping[str, int], known: Iterable[str]) -> Iterator[str]:
    """Yield Dynamo's description of graph breaks that are not `known`: the explanation, and its first hint."""
    for reason in counted.keys() - {*known}:
        lines = [line.strip() for line in reason.splitlines()]
        said = next((line for line in lines if line.startswith("Explanation: ")), lines[0])
        hint = next((line for line in lines if line.startswith("Hint: ")), "")
        yield " ".join(filter(None, (said.removeprefix("Explanation: "), hint.removeprefix("Hint: "))))[:400]


def as_event(graphs: Sequence[Graph]) -> list[dict[str, Any]]:
    return [asdict(graph) for graph in graphs[:MOST_GRAPHS]]
