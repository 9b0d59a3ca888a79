"""One option, one definition: its control, flag, TOML key, check and documentation are all read from here."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from typing_extensions import dataclass_transform

Families = tuple[str, ...]
ALL_FAMILIES: Families = ("sdxl", "flux")
ALL_METHODS = ("lora", "full")


def option(default: Any, help: str, **face: Any) -> Any:
    """A field of an OptionGroup. The type comes from the annotation; `face` takes any other field of Option."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help, **face})
    return dataclasses.field(default=default, metadata={"help": help, **face})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
class OptionGroup:
    """Options that belong together: one panel in the GUI, one section of --help, one heading in the docs."""

    title: ClassVar[str]

    def __init_subclass__(cls, title: str) -> None:
        cls.title = title
        dataclass(frozen=True, kw_only=True)(cls)

    def check(self) -> Iterable[tuple[str, str]]:
        """What is wrong between options of this group, as (name, why). A value out of range needs no word here."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Option:
    """All that is known of one option."""

    name: str
    type: type
    default: Any
    help: str
    label: str
    choices: tuple[str, ...] = ()
    nullable: bool = False
    many: bool = False
    """A list: several words after the flag, an array in TOML. `type` is then the type of one element."""
    suggestions: tuple[str, ...] = ()
    """Known good values of an open choice, such as optimizer names; any other value is accepted."""
    within: tuple[float, float] | None = None
    shown_when: str | None = None
    """Name of the bool option that must be on for this control to be visible."""
    families: Families = ALL_FAMILIES
    methods: tuple[str, ...] = ALL_METHODS
    """Where the option has an effect; set elsewhere it is a warning."""
    not_yet: str = ""
    """Why the option has no effect yet and what to use instead. Such an option gets no control."""
    secret: bool = False
    """Never written to a file, a log or a printed command."""
    placeholder: str = ""

    def problem(self, value: Any) -> str | None:
        """Why `value` cannot be, in words that follow the option's name; None if it can."""
        if value is None:
            return None if self.nullable else "is required"
        for item in value if self.many else [value]:
            if self.choices and item not in self.choices:
                return f"{item!r} is not one of {', '.join(self.choices)}"
            if self.within and not self.within[0] <= item <= self.within[1]:
                return f"{item} is outside {self.within[0]}..{self.within[1]}"
        return None


def each_option(group: type[OptionGroup]) -> Iterator[Option]:
    hints = typing.get_type_hints(group)
    for field in dataclasses.fields(group):  # type: ignore[arg-type]
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
        face = {"label": field.name.replace("_", " ").capitalize(), **field.metadata}
        yield Option(name=field.name, default=default, **_read_type(hints[field.name]), **face)


def _read_type(hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return {"type": str, "choices": typing.get_args(hint)}
    if origin is list:
        return {**_read_type(typing.get_args(hint)[0]), "many": True}
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
        return {**_read_type(inner), "nullable": True}
    assert hint in (bool, int, float, str, Path), f"no such option type: {hint}"
    return {"type": hint}
