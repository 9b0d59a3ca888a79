"""Merge network_args with the options that are also accepted as its keys."""

from collections.abc import Callable
from dataclasses import fields

from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.network_args import NetworkArguments
from sd_scripts.options.settings import Groups, Settings

Warn = Callable[[str], None]


def network_arguments(settings: Settings, own: Groups) -> NetworkArguments:
    """Return network_args merged with the options of `own`.

    Raises ValueError naming the option if both are set and differ.
    """
    values = dict(item.split("=", 1) for item in settings[NetworkOptions].network_args)
    for group in own:
        filled = settings[group]
        for field in fields(filled):  # type: ignore[arg-type]
            value = getattr(filled, field.name)
            if value == field.default:
                continue
            in_args = values.setdefault(field.name, str(value))
            if _plain(in_args) != _plain(str(value)):
                raise ValueError(
                    f"{field.name}: set to {value} here but to {in_args} in network_args; remove one of them"
                )
    return NetworkArguments(values)


def _plain(text: str) -> str:
    return text.lower().replace(" ", "").strip("'\"[]()")
