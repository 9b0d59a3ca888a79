"""Counts what tests spend on each model family, and fails a run of the tests in which a family exceeds its budget.

A new family is tested by the contract that all families share and by tests of its own; see CONTRIBUTING.md.
"""

import functools
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

RUNS, PROCESSES, PAGES = "training runs", "processes", "page loads"
BUDGET = {RUNS: 30, PROCESSES: 4, PAGES: 1}
"""The budget of one family's tests."""
SHARE = {
    RUNS: "Use a module's shared runs, such as `plain` and `all_at_once` of test_family_contract.py, or test on FLUX.1 "
    "(`any_miniature`) what the family does not decide.",
    PROCESSES: "Call the script's main() in the test, or fork one that has everything imported with "
    "tests/support/suite/fresh.py, or with the fixture `warm_python` if the product starts it.",
    PAGES: "Test routes and functions of the page without a browser, and its controls in test_options.py.",
}
"""The alternative."""
VEHICLES = ("sdxl", "flux", "qwen_image")
"""Families without a budget: the behaviour common to all families is tested on these three."""
FOLDER = Path(__file__).parents[3] / "sd_scripts" / "families"
FAMILIES = sorted((path.parents[1].name for path in FOLDER.glob("*/card/__init__.py")), key=len, reverse=True)
NAMED = "spent"

Spent = dict[str, Counter[str]]
"""Family -> its spending."""

_current: list[tuple[str, str]] = []
"""(family, kind) of all that the running test has spent."""


def spend(kind: str, family: str = "") -> None:
    """Count one training run, process or page load of the running test, for a family if it is known which."""
    _current.append((family, kind))


def _counting(start: Callable[..., None]) -> Callable[..., None]:
    """Wrap the method of Popen that starts a process. An audit hook would be called for each file and import too."""

    @functools.wraps(start)
    def counted(*arguments: Any) -> None:
        spend(PROCESSES)
        start(*arguments)

    return counted


def family_of(nodeid: str) -> str:
    """Return the family that a test's name, module or parameters name, or an empty text."""
    return next((family for family in FAMILIES if family in nodeid), "")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _current.clear()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    try:
        return (yield)
    finally:
        spent = Counter((family or family_of(item.nodeid), kind) for family, kind in _current)
        item.user_properties.append((NAMED, [[*what, count] for what, count in spent.items()]))


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(subprocess.Popen, "_execute_child", _counting(subprocess.Popen._execute_child))
    config.add_cleanup(patch.undo)
    if not hasattr(config, "workerinput"):  # the process that starts the others, or the only one
        config.pluginmanager.register(Account())


class Account:
    """Adds up the spending of all tests."""

    def __init__(self) -> None:
        self.by_family: Spent = defaultdict(Counter)
        self.by_test: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """(family, kind) -> how much of it each test spent."""
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[family_of(report.nodeid)] += report.duration
        if report.when != "teardown":
            return
        for family, kind, count in dict(report.user_properties).get(NAMED, []):
            self.by_family[family][kind] += count
            self.by_test[family, kind][report.nodeid] += count

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput") and self.exceeded():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def exceeded(self) -> list[str]:
        return over_budget(self.by_family, self.by_test)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.by_family:
            return
        terminalreporter.section("spent on each family")
        for family in ["", *sorted(FAMILIES)]:
            spent = ", ".join(f"{self.by_family[family][kind]} {kind}" for kind in BUDGET)
            named = "in tests that name it" if family else "in tests that name none"
            terminalreporter.write_line(f"{family or 'no family':16} {spent}; {self.seconds[family]:.0f} s {named}")
        for sentence in self.exceeded():
            terminalreporter.write_line(sentence, red=True)


def over_budget(by_family: Mapping[str, Counter[str]], by_test: Mapping[tuple[str, str], Counter[str]]) -> list[str]:
    """Return a sentence for each kind of cost that exceeds a family's budget."""
    return [
        f"{family}: {by_family[family][kind]} {kind}, of {allowed} that a family may add. "
        f"Most are in {_most(by_test[family, kind])}. {SHARE[kind]}"
        for family in by_family
        if family and family not in VEHICLES
        for kind, allowed in BUDGET.items()
        if by_family[family][kind] > allowed
    ]


def _most(tests: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in tests.most_common(3))
