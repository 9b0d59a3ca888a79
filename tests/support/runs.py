"""Shared parts of tests that start a training and watch it from outside."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""Seconds until a test gives up waiting for an event: other tests may have the cores."""
TELLING = Path(__file__).with_name("telling_trainer.py").read_text(encoding="utf-8")
"""A program that reports a training's events, and does nothing else."""


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What ``what`` answers once that is something."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"waited in vain for {seconds:g} s"
        time.sleep(0.02)
    return found
