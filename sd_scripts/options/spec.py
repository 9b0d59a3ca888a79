"""Defines an option in one place: its control, flag, TOML key, check and documentation all derive from it."""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from typing_extensions import dataclass_transform

from sd_scripts.formats.documents import is_utf8, name_problem

Families = tuple[str, ...]
Findings = Iterable[tuple[str, str]]
"""Pairs of an option's name and a message about it."""
CAPABILITIES = {
    "batches": "several images of a prompt are generated in one forward pass",
    "block_rates": "full training takes a learning rate for each block",
    "blockwise_updates": "weights can be updated during the backward pass, one block at a time",
    "clip_captions": "captions are read by CLIP, in chunks of 75 tokens",
    "clips": "the model is trained on clips and images, which are clips of one frame",
    "control_clips": "clips can be trained and generated with a control clip, which each of their frames follows",
    "control_images": "samples are trained with control images, such as the image to edit",
    "convolutions": "the model has convolutions that adapters may adapt",
    "end_image": "a clip can be given the image that it ends with",
    "flow_shift": "the shift of the timesteps can be chosen for each sample",
    "experts": "the model may have a second set of weights, for high noise",
    "fp8": "frozen weights can be stored in 8 or 4 bits",
    "grouped_updates": "weights can be updated during the backward pass, in a given number of groups",
    "group_norms": "the model has group norms",
    "guidance": "the model was distilled with an embedded guidance",
    "learns_embeddings": "the text encoders can learn the embeddings of new tokens",
    "noise_schedule": "noise follows Stable Diffusion's schedule of 1,000 timesteps",
    "offload_activations": "checkpointed activations can be kept in RAM",
    "own_vae": "the option vae names the file of its VAE",
    "partial_text_cache": "a LoRA of one text encoder can be trained while the outputs of the others are cached",
    "pooled_captions": "the model reads the pooled output of CLIP, from which each block computes its modulation",
    "prediction_types": "what the model predicts can be chosen",
    "sample_model": "samples of a LoRA run can be made with the weights of another model",
    "smaller_at_high_noise": "steps at high noise can be trained at a smaller size",
    "start_image": "a clip can be given the image that it begins with",
    "trains_text": "full training can train the text encoders",
}
"""Capabilities of model families: an option may need one to have an effect."""
ALL_METHODS = ("lora", "full", "textual_inversion")

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
"""Type -> its name in messages."""

ACRONYMS = {"lr": "LR", "vae": "VAE", "id": "ID", "gpu": "GPU", "cpu": "CPU", "snr": "SNR", "ddp": "DDP", "n": "N"}


def option(default: Any, help: str, **more: Any) -> Any:
    """Declare a field of an OptionGroup. The type comes from the annotation; `more` sets other fields of Option."""
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata={"help": help, **more})
    return dataclasses.field(default=default, metadata={"help": help, **more})


def switch(help: str, **more: Any) -> Any:
    """Declare a `bool` that is off by default."""
    return option(False, help, **more)


def optional(help: str, **more: Any) -> Any:
    """Declare a field of type `X | None` that is unset by default."""
    return option(None, help, **more)


def path_option(help: str, **more: Any) -> Any:
    """Declare a `str | None` that names a file or folder and is unset by default."""
    return option(None, help, path=True, **more)


def count(help: str, most: int = 10_000_000, **more: Any) -> Any:
    """Declare an `int | None` of steps, epochs or the like, where 0 means unset, like the default."""
    return option(None, help, within=(0, most), zero_is_off=True, **more)


@dataclass(frozen=True)
class Remark:
    """A warning about an option; the run can start."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class WrongValue(Exception):
    """Raised when a check reads a value that is already known to be wrong, or a group that the run does not have."""


WRONG = object()
"""Stands in for a value that is known to be wrong."""


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, switch, optional, path_option, count)
)
class OptionGroup:
    """Options that belong together: one panel in the GUI, one section of --help, one heading in the docs."""

    title: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    """The training methods for which its options have an effect, unless an option names its own."""
    shared: ClassVar[Mapping[str, Any]]
    """Other fields of Option that its options share, without the one that `shown_when` names."""

    def __init_subclass__(cls, title: str, methods: tuple[str, ...] = ALL_METHODS, **shared: Any) -> None:
        cls.title = title
        cls.methods = methods
        cls.shared = shared
        dataclass(frozen=True, kw_only=True)(cls)

    if not TYPE_CHECKING:  # else a type checker accepts any attribute

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if value is WRONG:
                raise WrongValue(name)
            return value

    def check(self) -> Findings:
        """Yield conflicts between options of this group as (name, why). Ranges are checked elsewhere."""
        return ()


Group = TypeVar("Group", bound=OptionGroup)
Filled = Mapping[type[OptionGroup], OptionGroup]


class OptionValues(Protocol):
    """The filled option groups of a run, such as `Settings` of the room above, for rules that a family's card adds."""

    def __getitem__(self, group: type[Group]) -> Group: ...

    def get(self, group: type[Group]) -> Group | None: ...

    def value(self, name: str) -> Any: ...


def without(filled: Group, wrong: Collection[str]) -> Group:
    """Return a copy of the group in which reading a value named in `wrong` raises WrongValue, so that only the checks
    that need it end."""
    names = (field.name for field in dataclasses.fields(filled) if field.name in wrong)  # type: ignore[arg-type]
    return dataclasses.replace(filled, **dict.fromkeys(names, WRONG))  # type: ignore[type-var]


def until_wrong(check: Callable[[], Findings]) -> Iterator[tuple[str, str]]:
    """Yield the findings of a check until it reads a wrong value."""
    try:
        yield from check()
    except WrongValue:
        return


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its name, type, default, texts, limits and where it applies."""

    name: str
    type: type
    default: Any
    help: str
    label: str
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Method -> text added to the help for that method."""
    family_notes: tuple[tuple[Families, str], ...] = ()
    """(Families, text added to the help for them)."""
    family_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Family -> its own default."""
    choices: tuple[Any, ...] = ()
    choice_labels: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    """Choice -> its name in the page, if that is not the choice itself."""
    family_choices: Mapping[str, Families] = dataclasses.field(default_factory=dict)
    """Choices that not all families take -> the families that do."""
    more_choices: Callable[[], Collection[str]] | None = None
    """Returns further choices on this machine: names that installed packages register."""
    nullable: bool = False
    """None is allowed and means unset: neither 0 nor an empty text."""
    many: bool = False
    """The value is a list: several words after the flag, an array in TOML. `type` is the type of an element."""
    suggestions: tuple[str, ...] = ()
    """Known good values of an open choice, such as optimizer names; any other value is accepted."""
    within: tuple[float, float] | None = None
    zero_is_off: bool = False
    """0 means unset and is read as None."""
    steps_or_fraction: bool = False
    """From 1 up a whole number of steps; below 1, or with a %, a fraction of all steps."""
    shown_when: str | None = None
    """Name of the bool option that must be on for this control to be visible."""
    also_with: tuple[str, ...] = ()
    """Names of other bool options that make it effective even if `shown_when` is off."""
    offered_with: str | None = None
    """Name of the bool option that must be on for the page to show this one, which works without it too."""
    shown_for: tuple[str, tuple[str, ...]] | None = None
    """Name of an option with choices, and the choices with which the page shows this one, unless it is set."""
    active_with: tuple[str, str] | None = None
    """Name and value of another option that this one needs to differ from its default."""
    needs: str = ""
    """The capability that a family needs for the option to have an effect; a key of CAPABILITIES."""
    families: Families = ()
    """Families in which the option has an effect; follows from `needs` and from the families that list its group."""
    methods: tuple[str, ...] = ALL_METHODS
    """Where the option has an effect; setting it elsewhere is a warning."""
    not_yet: str = ""
    """Why the option has no effect yet and what to use instead. Such an option gets no control."""
    refused: str = ""
    """Why a command of another program with this flag cannot run here, and what to do."""
    stands_for: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of our options that a switch of another program means."""
    path: bool = False
    """The value is a file or folder; a leading ~ is the user's home."""
    secret: str = ""
    """The environment variable that passes the value to libraries, for one that is never written to a file, a log or a
    printed command."""
    placeholder: str = ""

    def for_family(self, family: str) -> "Option":
        """Return this option as a family has it: its default, its choices and its notes."""
        others = {choice for choice, takers in self.family_choices.items() if family not in takers}
        choices = tuple(choice for choice in self.choices if choice not in others)
        notes = tuple(each for each in self.family_notes if family in each[0])
        if others or len(notes) < len(self.family_notes) or family in self.family_defaults:
            default = self.default_for(family)
            return dataclasses.replace(self, default=default, choices=choices, family_notes=notes)
        return self

    def default_for(self, family: str) -> Any:
        """Return the default of a family."""
        return self.family_defaults.get(family, self.default)

    def help_parts(self, method: str) -> list[tuple[Families | None, str]]:
        """Return the parts of the help text for a method, in order, and the families that each is for; None: all."""
        own = self.notes.get(method)
        return [(None, self.help), *self.family_notes, *([(None, own)] if own else [])]

    def help_for(self, method: str = "") -> str:
        """Return the help text for a method, or for none, with the option's notes of all families."""
        return " ".join(text for _, text in self.help_parts(method))

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the switches one of which must be on for the option to have an effect; empty if it always has."""
        return (self.shown_when, *self.also_with) if self.shown_when else ()

    def is_on(self, values: Mapping[str, Any]) -> bool:
        """Return whether values by option name have one of its switches on, or it has none."""
        return not self.switches or any(values.get(name) for name in self.switches)

    def read(self, value: Any) -> Any:
        """Convert `value` from a file, flag or control to the type of this option.

        A value that cannot be converted is returned unchanged; problem() describes the problem.
        """
        if self.nullable and isinstance(value, str) and not value.strip():
            return None
        if self.many:
            items = value if isinstance(value, list | tuple) else [] if value in (None, "") else [value]
            return [self._read_one(item) for item in items]
        read = self._read_one(value)
        return None if self.zero_is_off and read is not True and read == 0 else read

    def located(self, value: Any) -> Any:
        """Return `value` with ~ expanded, if it is a path."""
        if isinstance(value, list):
            return [self.located(each) for each in value]
        # problem() reports what cannot be a path; expanduser would raise
        return os.path.expanduser(value) if self.path and isinstance(value, str) and "\0" not in value else value

    def problem(self, value: Any) -> str | None:
        """Return the problem of `value`, to follow the option's name; None if it is valid."""
        if value is None:
            return None if self.nullable else "is required"
        for item in value if self.many else [value]:
            if not self._has_type(item):
                return f"{item!r} is not {KINDS[self.type]}"
            if self.choices and item not in self.choices and item not in self._more_choices():
                return f"{item!r} is not one of {', '.join(map(str, self.choices))}"
            if isinstance(item, str) and (why := self._text_problem(item)):
                return why
            if self.within and not self.within[0] <= item <= self.within[1]:
                return f"{item} is outside {self.within[0]}..{self.within[1]}"
            if self.steps_or_fraction and item >= 1 and item != int(item):
                return f"{item} is neither a whole number of steps nor a fraction below 1"
        return None

    def _more_choices(self) -> Collection[str]:
        return self.more_choices() if self.more_choices else ()

    def _text_problem(self, text: str) -> str:
        if self.path and not text.startswith("data:"):  # a thumbnail may stand in the option itself
            return name_problem(text)
        if "\0" in text:
            return "contains the control character NUL; type it again"
        return "" if is_utf8(text) else f"{text!r} is not UTF-8 text; type it again"

    def _has_type(self, item: Any) -> bool:
        if self.type is float:
            return isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
        return isinstance(item, self.type) and (self.type is bool or not isinstance(item, bool))

    def _read_one(self, value: Any) -> Any:
        if self.type in (int, float) and isinstance(value, str) and not value.isascii():
            return value  # Python reads the digits of all scripts
        try:
            return _READERS[self.type](self, value)
        except (ValueError, OverflowError):
            return value

    def _read_bool(self, value: Any) -> Any:
        read = truth(value)
        return value if read is None else read

    def _read_int(self, value: Any) -> Any:
        if isinstance(value, str):
            value = float(value) if not value.strip().lstrip("+-").isdigit() else int(value)
        return int(value) if isinstance(value, float) and value == int(value) else value

    def _read_float(self, value: Any) -> Any:
        if isinstance(value, str):
            value = float(value.strip()[:-1]) / 100 if value.strip().endswith("%") else float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        whole = self.steps_or_fraction and value >= 1 and value == int(value)
        return int(value) if whole else float(value)

    def _read_str(self, value: Any) -> Any:
        if isinstance(value, bool):  # compile_dynamic = true
            word = str(value).lower()
            return word if word in self.choices else value
        return str(value) if isinstance(value, int | float) else value


def truth(value: Any) -> bool | None:
    """Read a switch of a file or flag: true and 1 are on, false and 0 are off; None for anything else."""
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).strip().lower())


_READERS: dict[type, Any] = {
    bool: Option._read_bool,
    int: Option._read_int,
    float: Option._read_float,
    str: Option._read_str,
}


def declared_options(group: type[OptionGroup]) -> Iterator[Option]:
    """Return the options of a group in the order of their declaration, without the families' additions."""
    hints = typing.get_type_hints(group)
    return (_declared(group, field, hints[field.name]) for field in dataclasses.fields(group))  # type: ignore[arg-type]


def _declared(group: type[OptionGroup], field: "dataclasses.Field[Any]", hint: Any) -> Option:
    default = field.default
    if default is dataclasses.MISSING:
        default = field.default_factory()  # type: ignore[operator]
    fields = {
        "label": _label(field.name),
        "methods": group.methods,
        **_read_type(hint),
        **(group.shared if field.name != group.shared.get("shown_when") else {}),
        **field.metadata,
    }
    return Option(**{"name": field.name, "default": default, **fields})


def _label(name: str) -> str:
    words = [ACRONYMS.get(word, word) for word in name.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def _read_type(hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        return {"type": type(choices[0]), "choices": choices}
    if origin is list:
        return {**_read_type(typing.get_args(hint)[0]), "many": True}
    if origin in (types.UnionType, typing.Union):
        (inner,) = (arm for arm in typing.get_args(hint) if arm is not types.NoneType)
        return {**_read_type(inner), "nullable": True}
    assert hint in KINDS, f"no such option type: {hint}"
    return {"type": hint}
