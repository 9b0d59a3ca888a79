"""Parses `key=value` items such as in optimizer_args, and checks them without importing torch."""

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def literal(key: str, text: str) -> Any:
    """Parse a Python literal: 0.01, True, (0.9, 0.99), None, 'text'; also true and false, as TOML writes them. Raises
    ValueError."""
    try:
        return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(
            f"{text!r}, the value of {key}, is not a Python value; write a number, True, None, a tuple such as "
            f"(0.9, 0.99), or text in quotes: {key}='text'"
        ) from None


def literals(items: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and the problem, if any, of each item. Items that are not key=value are skipped."""
    for item in items:
        key, equals, text = (part.strip() for part in item.partition("="))
        if key and equals:
            try:
                yield key, literal(key, text), ""
            except ValueError as error:
                yield key, None, str(error)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_decay(value: Any) -> bool:
    return _is_amount(value) and value < 1


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_decay, value))


def _is_switch(value: Any) -> bool:
    return value is None or isinstance(value, int)


AMOUNT = _is_amount, "a number of at least 0"
SWITCH = _is_switch, "True or False"
OF_BOTH = {"weight_decay": AMOUNT, **dict.fromkeys(("maximize", "foreach", "differentiable", "fused"), SWITCH)}
BETAS = _are_betas, "two numbers of at least 0 and below 1, such as (0.9, 0.99)"
TAKEN: dict[str, Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "adamw": {
        "betas": BETAS,
        "eps": AMOUNT,
        "amsgrad": SWITCH,
        "capturable": SWITCH,
        **OF_BOTH,
    },
    "adamw8bit": {
        **{"betas": BETAS, "eps": AMOUNT, "weight_decay": AMOUNT},
        **{"amsgrad": SWITCH, "optim_bits": AMOUNT, "min_8bit_size": AMOUNT, "is_paged": SWITCH},
    },
    "sgdnesterov": {"momentum": AMOUNT, "dampening": (_is_number, "a number"), "nesterov": SWITCH, **OF_BOTH},
}
"""Lower-case optimizer_type -> the arguments of PyTorch's own optimizers and of AdamW8bit, each with its test and its
description. Only the packages know the others' arguments."""


def problems(optimizer_type: str, items: Iterable[str]) -> Iterator[str]:
    taken = TAKEN.get(optimizer_type.lower() or "adamw")
    for key, value, why in literals(items):
        if why or taken is None:
            yield from [why] * bool(why)
        elif key == "lr":
            yield "lr is set by learning_rate; set that instead"
        elif key not in taken:
            near = difflib.get_close_matches(key, taken, 1)
            known = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(sorted(taken))}"
            yield f"{optimizer_type or 'AdamW'} does not accept {key}. {known}"
        elif not taken[key][0](value):
            yield f"{key}={value!r} must be {taken[key][1]}"
