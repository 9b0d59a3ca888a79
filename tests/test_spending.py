"""The suite's budget for a model family, and in which order it runs its files."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.suite.balance import longest_first, slowest, unit_of
from tests.support.suite.spending import BUDGET, FAMILIES, PAGES, PROCESSES, RUNS, VEHICLES, family_of, over_budget

OVER = BUDGET[RUNS] + 1


def test_every_family_but_those_that_common_tests_use_has_a_budget() -> None:
    assert set(VEHICLES) < set(FAMILIES)
    assert set(BUDGET) == {RUNS, PROCESSES, PAGES}


def test_a_family_over_its_budget_is_named_with_its_costliest_tests_and_what_to_share() -> None:
    family = "qwen_image_edit"
    by_family = {family: Counter({RUNS: OVER, PROCESSES: BUDGET[PROCESSES]})}
    by_test = {(family, RUNS): Counter({"test_a.py::test_one": 1, "test_a.py::test_many": OVER - 1})}
    (sentence,) = over_budget(by_family, by_test)
    assert sentence.startswith(f"qwen_image_edit: {OVER} training runs, of {BUDGET[RUNS]} that a family may add.")
    assert f"Most are in test_a.py::test_many ({OVER - 1}), test_a.py::test_one (1). Use a module's shared" in sentence


def test_common_tests_and_families_within_their_budget_are_not_reported() -> None:
    spent = Counter({RUNS: OVER})
    assert over_budget({"flux": spent, "": spent, "qwen_image_edit": Counter({RUNS: OVER - 1})}, {}) == []


def test_the_family_of_a_test_is_the_longest_name_in_it() -> None:
    assert family_of("tests/families/test_family_contract.py::test_x[qwen_image_edit]") == "qwen_image_edit"
    assert family_of("tests/families/flux/test_flux_run.py::test_x[True]") == "flux"
    assert family_of("tests/library/diffusion/test_noise.py::test_x") == ""


def test_browser_tests_and_files_that_share_processes_are_one_unit_and_others_a_unit_for_each_file() -> None:
    assert unit_of("tests/browser/test_page.py::test_x[a::b]") == "tests/browser"
    methods = "tests/training/methods"
    ddp = f"{methods}/test_ddp.py"
    assert unit_of(f"{methods}/test_sharded.py::test_x") == unit_of(f"{ddp}::test_y") == ddp
    assert unit_of("tests/training/process/test_kill.py::test_x") == "tests/training/process/test_kill.py"


def test_the_longest_files_come_first_and_tests_of_a_file_keep_their_order() -> None:
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/test_{name}.py::{n}") for name in "abc" for n in (2, 1)]
    longest_first(items, {"tests/test_c.py": 9.0, "tests/test_b.py": 2.0})
    assert [item.nodeid[11:] for item in items] == ["c.py::2", "c.py::1", "b.py::2", "b.py::1", "a.py::2", "a.py::1"]


def test_the_slowest_files_are_listed_with_their_seconds() -> None:
    assert slowest(Counter({"a": 1.25, "b": 20.0}))[0].split() == ["20.0", "s", "b"]


def test_a_session_fails_when_the_tests_of_a_family_start_too_many_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real plugin in a session of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(
        """
        import subprocess, sys
        from tests.support.suite.spending import PROCESSES, BUDGET

        def test_of_qwen_image_edit():
            for _ in range(BUDGET[PROCESSES] + 1):
                assert subprocess.run([sys.executable, "-S", "-c", ""]).returncode == 0

        def test_of_flux():
            assert subprocess.run([sys.executable, "-S", "-c", ""]).returncode == 0
        """
    )
    result = pytester.runpytest_subprocess("-p", "tests.support.suite.spending", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    allowed = BUDGET[PROCESSES]
    result.stdout.fnmatch_lines(
        [f"qwen_image_edit: {allowed + 1} processes, of {allowed}*test_of_qwen_image_edit ({allowed + 1})*"]
    )
