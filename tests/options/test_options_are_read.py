"""Every option with an effect is read by the code that has the effect."""

import ast
import functools
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

from sd_scripts.options.spec import Option, OptionGroup, option
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS
from sd_scripts.settings.family_options import each_option

ROOT = Path(__file__).parents[2]
ONLY_NAME_OPTIONS = {
    "error_hints.py": "advises to set options",
    "demo.py": "writes settings files",
    "model_file.py": "names the options in which files belong",
}
"""Modules in which the name of an option does not show that its value is read."""


@dataclass(frozen=True)
class Names:
    """Names mentioned in a piece of code."""

    attributes: frozenset[str]
    """Read from an object."""
    texts: frozenset[str]
    classes: frozenset[str]
    """All identifiers, imported ones as well."""
    fields: frozenset[str]
    """Declared in a class."""
    beginnings: tuple[str, ...]
    """Of names that are put together: f"learning_rate_te{number}"."""


def names_in(source: str) -> Names:
    nodes = list(ast.walk(ast.parse(source)))
    return Names(
        frozenset(n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)),
        frozenset(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)),
        frozenset(n.id for n in nodes if isinstance(n, ast.Name)),
        frozenset(n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)),
        tuple(
            n.values[0].value for n in nodes if isinstance(n, ast.JoinedStr) and isinstance(n.values[0], ast.Constant)
        ),
    )


@functools.cache
def outside() -> dict[Path, Names]:
    """The modules that may read options: all of the training backend but the options and what checks or translates
    them, and the launchers. Two modules of settings/ read some for the others."""
    package = ROOT / "sd_scripts"
    declared = {*(package / "options").rglob("*.py"), *(package / "settings").rglob("*.py")}
    reading = {package / "settings" / name for name in ("generate_settings.py", "quantization.py")}
    reading |= set((package / "settings" / "launching").glob("*.py"))
    modules = [path for path in package.rglob("*.py") if path not in declared - reading]
    return {path: names_in(path.read_text()) for path in (*modules, ROOT / "kohya_gui/runs/launch_command.py")}


def is_read(option: Option, group: type[OptionGroup]) -> bool:
    if option.secret:  # by libraries, from the variable that passes it on
        return True
    names = {option.name, *properties_that_read(option, group)}
    for path, found in outside().items():
        if group.__name__ in found.classes and names & found.attributes:
            return True
        if {"data", "clips"} & {
            *path.parts
        } and option.name in found.fields:  # blueprint.py fills these records by name
            return True
        if option.name in found.texts and path.name not in ONLY_NAME_OPTIONS:  # values[name], getattr(group, name)
            return True
    return False


def properties_that_read(option: Option, group: type[OptionGroup]) -> set[str]:
    """The methods and properties of a group that read an option, by its name or by a table of names."""
    tables = vars(inspect.getmodule(group))
    reading = set()
    for name, member in vars(group).items():
        function = member.fget if isinstance(member, property) else member
        if name == "check" or name.startswith("_") or not inspect.isfunction(function):
            continue
        source = names_in(textwrap.dedent(inspect.getsource(function)))
        through = {each for table in source.classes if isinstance(tables.get(table), tuple) for each in tables[table]}
        if option.name in source.attributes | through or option.name.startswith(source.beginnings):
            reading.add(name)
    return reading


def test_every_option_with_an_effect_is_read_outside_the_options() -> None:
    groups = dict.fromkeys(group for script in (*SCRIPTS, *GENERATE_SCRIPTS) for group in script.groups)
    unread = [o.name for group in groups for o in each_option(group) if not o.not_yet and not is_read(o, group)]
    assert unread == []


def test_an_option_with_only_a_control_counts_as_unread() -> None:
    class FullOptions(OptionGroup, title="Of the same name as one that is read"):
        mem_eff_save: bool = option(False, "kohya_gui's tables name it, and nobody reads it.")
        train_text_encoder: bool = option(False, "Read by training.")

    assert [is_read(o, FullOptions) for o in each_option(FullOptions)] == [False, True]
