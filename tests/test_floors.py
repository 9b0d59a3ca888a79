"""A folder is a floor: files import downwards only, in no circle, and the lower floors need no torch."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sd_scripts.families.cards.registry import cards
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS, flag_groups
from sd_scripts.settings.command_line import parser
from sd_scripts.settings.family_options import each_option

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("formats",),
    ("runs",),
    ("machine",),
    ("options",),
    ("cards",),
    ("settings",),
    ("library",),
    ("data", "networks"),
    ("testing",),
    ("families",),
    ("planning",),
    ("dataset_view",),
    ("training",),
    ("generating",),
    ("tools",),
    ("finetune",),
)
"""Folders of sd_scripts, from below; `cards` are families/cards and the folder `card` of each family."""
FLOOR_OF = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
LIGHT = ("formats", "runs", "machine", "options", "cards", "settings")
"""Folders that the GUI may import, which work without torch."""
SCRIPT_FILES = {script.file for script in (*SCRIPTS, *GENERATE_SCRIPTS)}
REEXPORTS = {"flux_train_utils.py", "lora_flux.py", "sdxl_model_util.py"}
"""Modules that keep the names by which users import them."""
LARGEST_FOLDER = 16
"""Files of Python or of the page in one folder; entry points apart, which are a list of names."""


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    """Return every module that a file imports, at the top or within a function, except for type checking."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str) -> str | None:
    """Return the folder of FLOORS in which a module is."""
    parts = module.split(".")
    if parts[0] != "sd_scripts" or len(parts) < 2:
        return None
    in_card = parts[1] == "families" and ("cards" in parts[2:3] or "card" in parts[3:4] or len(parts) == 2)
    return "cards" if in_card else parts[1] if parts[1] in FLOOR_OF else None


def files_of(folder: str) -> list[Path]:
    return [file for file in (ROOT / "sd_scripts").rglob("*.py") if folder_of(module_of(file)) == folder]


def test_no_floor_imports_one_above_it_or_on_its_level() -> None:
    for file in (ROOT / "sd_scripts").rglob("*.py"):
        here = folder_of(module_of(file))
        for module in imports(file) if here else ():
            there = folder_of(module)
            if there and there != here:
                assert FLOOR_OF[there] < FLOOR_OF[here], f"{file.relative_to(ROOT)} imports {module}"


def test_no_file_imports_itself_through_others() -> None:
    files = {module_of(file): file for top in ("sd_scripts", "kohya_gui") for file in (ROOT / top).rglob("*.py")}
    graph = {}
    for module, file in files.items():
        named = (name if name in files else name.rpartition(".")[0] for name in imports(file))
        graph[module] = {name for name in named if name in files and name != module}
    TopologicalSorter(graph).prepare()  # raises CycleError with the names of a circle


def test_the_gui_imports_light_folders_only() -> None:
    for file in [ROOT / "gui.py", *(ROOT / "kohya_gui").rglob("*.py")]:
        for module in imports(file):
            assert module.split(".")[0] != "torch", f"{file.name} imports torch"
            if module.startswith("sd_scripts."):
                assert folder_of(module) in LIGHT, f"{file.name} imports {module}"


@pytest.mark.parametrize("folder", LIGHT)
def test_light_folders_need_only_the_standard_library_and_light_packages(folder: str) -> None:
    allowed = {
        *sys.stdlib_module_names,
        "sd_scripts",
        "tomllib",
        "tomli",
        "tomlkit",
        "typing_extensions",
        "PIL",
        "av",
        "numpy",
        "orjson",
        "psutil",
        "pynvml",
    }
    for file in files_of(folder):
        strange = {module.split(".")[0] for module in imports(file)} - allowed
        assert not strange, f"{file.name} imports {strange}"


def test_light_folders_load_without_torch() -> None:
    modules = [module_of(file) for folder in LIGHT for file in files_of(folder) if not file.name.startswith("__main__")]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_no_folder_has_too_many_files() -> None:
    large = {}
    for top in ("sd_scripts", "kohya_gui", "benchmarks", "tests"):
        for folder in (ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())):
            names = {path.name for path in folder.iterdir() if path.suffix in (".py", ".js", ".css")}
            names -= {"__init__.py", "conftest.py"} | (SCRIPT_FILES if folder == ROOT / "sd_scripts" else set())
            if len(names) > LARGEST_FOLDER and folder.name != "aliases":
                large[folder.relative_to(ROOT).as_posix()] = len(names)
    assert large == {}


def test_only_the_folder_of_a_family_names_it() -> None:
    any_name = "|".join(card.name for card in cards())
    names = re.compile(f"(?<![a-z])({any_name})(?![a-z])", re.IGNORECASE)  # not in "wanted"
    told = []
    for file in [ROOT / "gui.py", *(ROOT / "kohya_gui").rglob("*.py"), *(ROOT / "sd_scripts").rglob("*.py")]:
        place = file.relative_to(ROOT).parts[1:-1]
        own = place[:1] == ("aliases",) or (place[:1] == ("families",) and len(place) > 1)
        if own or file.name in SCRIPT_FILES | REEXPORTS:
            continue
        told += [f"{file.relative_to(ROOT)}: {found[0]}" for found in names.finditer(file.read_text(encoding="utf-8"))]
    assert not told, told


def test_only_a_derived_family_imports_the_folder_of_another() -> None:
    folders = {card.name: card.derived_from for card in cards()}
    for name, base in folders.items():
        for file in (ROOT / "sd_scripts" / "families" / name).rglob("*.py"):
            for module in imports(file):
                others = {*module.split(".")[2:3]} & (folders.keys() - {name, base})
                assert not (module.startswith("sd_scripts.families.") and others), f"{name}/{file.name}: {module}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_every_option_has_a_flag_help_and_an_entry_in_the_docs(script):
    flags = {action.dest for action in parser(script)._actions}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/options/*.md"))
    for group in flag_groups(script):
        for o in each_option(group):
            assert o.name in flags
            assert o.help.endswith((".", "?")), f"{o.name}: {o.help}"
            assert f"| `{o.name}` |" in pages


def test_no_environment_is_tracked() -> None:
    """It would replace, and so delete, the environment of everybody who updates."""
    done = subprocess.run(["git", "ls-files", "--", ".venv"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
