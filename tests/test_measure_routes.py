"""What the page shows of a measurement; test_plan_card of the browser runs a real one."""

from typing import Any

import pytest

from kohya_gui.measure_routes import SET_BY_SOME, SET_BY_VARIANTS, table, view
from sd_scripts.options.catalog import SCRIPTS
from sd_scripts.options.spec import each_option
from sd_scripts.runs.run_state import RunState
from sd_scripts.tools.measure_compile import VARIANTS


def row(**more: Any) -> dict[str, Any]:
    found = {
        "variant": "default",
        "failed": "",
        "options": {"compile": True},
        "seconds": {"64x64x1": 0.1, "64x32x1": 0.3},
    }
    return {**found, "first": 31.0, "first_warm": 3.04, "gpu_bytes": 3 * 2**30, "total": 750.0, **more}


def test_each_variant_has_its_times_and_a_button_with_its_options() -> None:
    shown = table({"rows": [row(), row(variant="eager", options={}, first_warm=None)], "best": "default"})
    assert '<i style="width:100%"></i></span>200 ms' in shown
    assert "<td>31 s, 3.0 s with cache</td><td>3.0 GiB</td><td>12 min (fastest)</td>" in shown
    assert "data-load='options:{&quot;compile&quot;: true}'" in shown
    assert "data-load='options:{}'" in shown
    assert shown.count("(fastest)") == shown.count('class="best"') == 1


def test_what_failed_says_why_and_cannot_be_used() -> None:
    shown = table({"rows": [row(failed="out of <memory>")], "best": None})
    assert "out of &lt;memory&gt;" in shown
    assert "Use this" not in shown


def test_every_variant_can_be_used() -> None:
    names = {o.name for script in SCRIPTS for group in script.groups for o in each_option(group)}
    assert {*SET_BY_VARIANTS, *SET_BY_SOME} <= names
    assert all(options.keys() <= {*SET_BY_VARIANTS, *SET_BY_SOME} for options in VARIANTS.values())


@pytest.mark.parametrize(
    ("events", "waits_for", "shown"),
    [
        ([], "cat", "Measuring starts when cat ends"),
        ([], "", "Starting"),
        (
            [{"kind": "phase", "name": "measuring default", "done": 3, "total": 30}],
            "",
            "Measuring default, step 3 of 30",
        ),
        ([{"kind": "failed", "error": "no <GPU>"}], "", "no &lt;GPU&gt;"),
        ([{"kind": "stopped"}], "", "Measuring was stopped"),
    ],
)
def test_the_state_of_a_job_is_told(events: list[dict[str, Any]], waits_for: str, shown: str) -> None:
    run_state = RunState()
    for event in events:
        run_state.apply({"time": 1.0, **event})
    assert shown in view(run_state, None, waits_for)
