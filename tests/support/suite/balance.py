"""Gives whole test files to the processes of pytest-xdist, the longest first by their known durations, and reports the
slowest ones. `bash test.sh --write-durations` measures all files and writes the result to durations.json."""

import json
from collections import Counter
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).with_name("durations.json")
SHORT = 2.0
"""Seconds below which a file is not listed: in which order short ones run does not matter."""
SHARING = {"tests/training/methods/test_sharded.py": "tests/training/methods/test_ddp.py"}
"""File -> the file whose pair of processes it uses."""
SHOWN = 10
"""Slowest files that the summary of a run lists."""


class WholeFiles(LoadScopeScheduling):
    """A scheduler of pytest-xdist: the tests of a unit run in one process, which makes their fixtures once."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the test file, the first of files that share processes, or for the browser tests their folder, since all
    of them share one GUI and one browser."""
    file = nodeid.partition("::")[0]
    return "tests/browser" if file.startswith("tests/browser/") else SHARING.get(file, file)


def longest_first(items: list[pytest.Item], known: dict[str, float]) -> None:
    """Sort tests in place by the duration of their unit; within a unit they keep their order."""
    items.sort(key=lambda item: -known.get(unit_of(item.nodeid), 0.0))


def slowest(seconds: Counter[str]) -> list[str]:
    """Return a line for each of the slowest units."""
    return [f"{taken:7.1f} s  {unit}" for unit, taken in seconds.most_common(SHOWN)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="write to durations.json how long each file took")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that starts the others, or the only one
        config.pluginmanager.register(Stopwatch(config.getoption("--write-durations")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WholeFiles | None:
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order of the tests is the order of the units
    return WholeFiles(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # a process that pytest-xdist started knows only that it is one
    longest_first(items, json.loads(DURATIONS.read_text(encoding="utf-8")))


class Stopwatch:
    """Adds up the time of each unit."""

    def __init__(self, write: bool) -> None:
        self.seconds = Counter[str]()
        self._write = write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[unit_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.seconds) > SHOWN:
            terminalreporter.section("slowest test files")
            terminalreporter.write_line("\n".join(slowest(self.seconds)))
        if self._write:
            known = {unit: round(taken) for unit, taken in sorted(self.seconds.items()) if taken >= SHORT}
            DURATIONS.write_text(json.dumps(known, indent=0) + "\n", encoding="utf-8")
