"""Declares flags of other programs: the effect of each here is written once, for its help, its message and the docs."""

from typing import Any

from sd_scripts.options.spec import option, switch


def unused(reason: str, default: Any = False, **more: Any) -> Any:
    """Declare a flag that has no effect here, which a warning reports with the reason."""
    return option(default, _sentence(reason), not_yet=reason, **more)


def refused(reason: str, default: Any = False) -> Any:
    """Declare a flag without which the results would be different; the reason includes the remedy."""
    return option(default, _sentence(reason), refused=reason)


def name_of(name: str, value: str, form: str = "Name") -> Any:
    """Declare a switch that means a value of one of our options."""
    return switch(f"{form} of {name} = {value}.", stands_for={name: value})


def _sentence(reason: str) -> str:
    is_option = "_" in reason.partition(" ")[0]
    return f"{reason}." if is_option else f"{reason[0].upper()}{reason[1:]}."
