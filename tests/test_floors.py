"""Packages import downwards only, and floor 0 needs no torch."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sd_scripts.families.registry import cards
from sd_scripts.options.catalog import GENERATE_SCRIPTS, SCRIPTS, flag_groups
from sd_scripts.options.command_line import parser
from sd_scripts.settings.family_options import each_option

ROOT = Path(__file__).parents[1]
FLOORS = {
    **{"options": 0, "formats": 0, "runs": 0, "settings": 0, "library": 1, "data": 2, "networks": 2},
    **{"families": 3, "planning": 3, "training": 4, "generating": 5},
}
CARDS = ("card", "checks", "kohya", "layer_rules", "memory_facts", "model_file", "options", "registry", "speeds")
"""Modules of families that belong to floor 0, as if they were a package `cards`."""
FLOORS["cards"] = 0
SIDEWAYS = {
    *(("options", "runs"), ("options", "formats"), ("runs", "formats")),
    *(("options", "settings"), ("options", "cards"), ("cards", "options"), ("cards", "formats")),
    *(("settings", "options"), ("settings", "cards")),
}
"""Allowed within floor 0: options and runs share the code that writes files and reads JSON and TOML; the card of a
family names option groups, and options say which families they work for."""
SCRIPT_FILES = {script.file for script in (*SCRIPTS, *GENERATE_SCRIPTS)}
REEXPORTS = {
    *("flux_train_utils.py", "lora_flux.py", "sdxl_model_util.py"),
    *("sdxl_gen_img.py", "sdxl_minimal_inference.py", "flux_minimal_inference.py"),
    *("flux_kontext_generate_image.py", "qwen_image_generate_image.py"),
    *("flux_kontext_cache_latents.py", "flux_kontext_cache_text_encoder_outputs.py"),
    *("qwen_image_cache_latents.py", "qwen_image_cache_text_encoder_outputs.py"),
}
"""Modules that keep the names by which users import or run them."""
LIGHT = ("options", "formats", "runs", "settings", "cards")
"""Packages that the GUI may import."""


def imports(file: Path) -> Iterator[str]:
    """Yield every module that a file imports, at the top or within a function, except for type checking."""
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


def floor_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[:2] == ["sd_scripts", "families"] and (len(parts) == 2 or {*parts[2:4]} & {*CARDS}):
        return "cards"
    return parts[1] if parts[0] == "sd_scripts" and len(parts) > 1 and parts[1] in FLOORS else None


def files_of(floor: str) -> list[Path]:
    files = (ROOT / "sd_scripts").rglob("*.py")
    return [file for file in files if floor_of(".".join(file.relative_to(ROOT).with_suffix("").parts)) == floor]


def test_no_floor_imports_one_above_it():
    for file in (ROOT / "sd_scripts").rglob("*.py"):
        here = floor_of(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for module in imports(file) if here else ():
            there = floor_of(module)
            if there and there != here and (here, there) not in SIDEWAYS:
                assert FLOORS[there] < FLOORS[here], f"{file.relative_to(ROOT)} imports {module}"


def test_the_gui_imports_floor_0_only():
    for file in [ROOT / "gui.py", *(ROOT / "kohya_gui").rglob("*.py")]:
        for module in imports(file):
            assert module.split(".")[0] != "torch", f"{file.name} imports torch"
            if module.startswith("sd_scripts."):
                assert floor_of(module) in LIGHT, f"{file.name} imports {module}"


@pytest.mark.parametrize("floor", LIGHT)
def test_floor_0_needs_only_the_standard_library_and_light_packages(floor):
    allowed = {
        *sys.stdlib_module_names,
        "sd_scripts",
        "tomllib",
        "tomli",
        "tomlkit",
        "typing_extensions",
        "PIL",
        "psutil",
    }
    for file in files_of(floor):
        strange = {module.split(".")[0] for module in imports(file)} - allowed
        assert not strange, f"{file.name} imports {strange}"


def test_only_the_folder_of_a_family_names_it():
    names = re.compile("|".join(card.name for card in cards()), re.IGNORECASE)
    told = []
    for file in [ROOT / "gui.py", *(ROOT / "kohya_gui").rglob("*.py"), *(ROOT / "sd_scripts").rglob("*.py")]:
        own = (file.name in SCRIPT_FILES or file.name in REEXPORTS) or file.parent.parent.name == "families"
        own |= file.parent.name == "tools" and bool(names.search(file.name))  # the name of a script of sd-scripts
        text = "" if own else file.read_text(encoding="utf-8")
        told += [f"{file.relative_to(ROOT)}: {found[0]}" for found in names.finditer(text)]
    assert not told, told


def test_only_a_derived_family_imports_the_folder_of_another():
    folders = {card.name: card.derived_from for card in cards()}
    for name, base in folders.items():
        for file in (ROOT / "sd_scripts" / "families" / name).glob("*.py"):
            for module in imports(file):
                others = {*module.split(".")[2:3]} & (folders.keys() - {name, base})
                assert not (module.startswith("sd_scripts.families.") and others), f"{name}/{file.name}: {module}"


def test_floor_0_loads_without_torch():
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for floor in LIGHT
        for file in files_of(floor)
        if not file.name.startswith("__")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_every_option_has_a_flag_help_and_an_entry_in_the_docs(script):
    flags = {action.dest for action in parser(script)._actions}
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for group in flag_groups(script):
        for o in each_option(group):
            assert o.name in flags
            assert o.help.endswith((".", "?")), f"{o.name}: {o.help}"
            assert f"`{o.name}`" in page


def test_no_environment_is_tracked() -> None:
    """It would replace, and so delete, the environment of everybody who updates."""
    done = subprocess.run(["git", "ls-files", "--", ".venv"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
