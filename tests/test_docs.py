"""Commands, settings, links and quoted messages in README, CONTRIBUTING and docs match the program."""

import re
import shlex
import sys
import warnings
from contextlib import redirect_stdout
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from runpy import run_module

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from diffusers import UNet2DConditionModel

from benchmarks import summary
from kohya_gui import command
from kohya_gui.form.configuration import family_of
from kohya_gui.form.presets import preset_title
from sd_scripts.data.plan.blueprint import dataset_defaults, resolve
from sd_scripts.families.cards.registry import card_of, cards
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.full_size import SDXL_CONFIG
from sd_scripts.formats.documents import parse_toml
from sd_scripts.formats.toml_files import flat
from sd_scripts.library.compile_utils import MIN_GRAPH_LIMIT
from sd_scripts.options.compile import CompileOptions
from sd_scripts.planning.compile_plan import STATIC_SHAPES
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS, script_for
from sd_scripts.settings.command_line import given_flags
from sd_scripts.settings.dataset_schema import read_config
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from tests.support.scripts import SDXL_LORA
from tests.support.suite.tiers import TIERS

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]
SCRIPTS_BY_FILE = {f"sd_scripts/{script.file}": script for script in (*SCRIPTS, *GENERATE_SCRIPTS)}
LEFT_TO_FILL_IN = {"pretrained_model_name_or_path", "train_data_dir", "output_dir", "resolution", "token_string"}
LEFT_OPEN = {"learning_rate", "model_prediction_type"}
"""Options that a short example may leave at a default that causes a warning."""
SHELL = {"source", "pip", "cd", "docker", "git", "mkdir"}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (page and line, text) of every fenced block in this language."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            found.append((f"{page.name}:{text[: match.start()].count(chr(10)) + 1}", match[1]))
    return found


def command_lines() -> list[tuple[str, list[str]]]:
    lines = [
        (where, shlex.split(line, comments=True))
        for where, text in blocks("bash")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    return [(where, words) for where, words in lines if words]


def inline() -> list[tuple[str, str]]:
    """Return (page, text) of every `code` in running text and tables."""
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        found += [(page.relative_to(ROOT).as_posix(), code) for code in re.findall(r"`([^`\n]+)`", text)]
    return found


def script_of(document: dict[str, object]) -> Script:
    """Return the script that these settings are meant for."""
    options = {o.name: o for script in SCRIPTS for group in script.groups for o in each_option(group)}
    named = [options[name] for name in document if name in options]
    method = "full" if any(o.methods == ("full",) for o in named) else "lora"
    return script_for(family_of(document, method) or "sdxl", method)


def settings_are_known(document: dict[str, object], script: Script | None = None) -> None:
    settings = from_values(script or script_of(document), document)
    assert settings.unknown == {}
    assert settings.wrong_values() == []
    assert {name for problem in settings.problems() for name in problem.names} <= LEFT_TO_FILL_IN - set(document)


@pytest.mark.parametrize(("where", "text"), blocks("toml"), ids=lambda value: value[:24])
def test_every_settings_file_is_read_without_a_warning(where: str, text: str, tmp_path: Path) -> None:
    document = parse_toml(text)
    if "datasets" in document:
        file = tmp_path / "data.toml"
        file.write_text(text, encoding="utf-8")
        assert resolve(read_config(file), dataset_defaults(from_values(SDXL_LORA, {}))).datasets
        return
    settings_are_known(flat(document))
    remarks = from_values(script_of(document), flat(document)).remarks
    assert [remark for remark in remarks if remark.name not in LEFT_OPEN] == []


@pytest.mark.parametrize(("where", "words"), command_lines(), ids=lambda value: str(value)[:40])
def test_every_command_line_is_understood(where: str, words: list[str]) -> None:
    if words[0] == "accelerate":
        assert words[1] == "launch"
        parsed = launch_command_parser().parse_args(words[2:])
        script = SCRIPTS_BY_FILE[parsed.training_script]
        given = given_flags(script, parsed.training_script_args)
        assert given.problems == []
        settings_are_known({name: value for name, value in given.values.items() if name != "config_file"}, script)
    elif words[:2] == ["bash", "gui.sh"] and "--demo" in words:
        assert words[2] == "--demo"
        script = script_for(words[3] if words[3:] else "sdxl", "lora")
        assert from_values(script, given_flags(script, words[4:]).values).wrong_values() == []
    elif words[:2] in (["bash", "gui.sh"], ["python", "gui.py"]):
        command.parser().parse_args(words[2:])
    elif words[:2] == ["bash", "test.sh"]:
        known = {*TIERS, "fast or run"}
        assert all((ROOT / word).exists() or word in known for word in words[2:] if not word.startswith("-"))
    elif words[:2] == ["python", "-m"]:
        flags_of_a_module(words[2], [word for word in words[3:] if word.startswith("-")])
    elif words[0] == "python" and words[1].startswith("sd_scripts/finetune/"):
        module = words[1].removesuffix(".py").replace("/", ".")
        flags_of_a_module(module, [word for word in words[2:] if word.startswith("-")])
    elif words[0] == "python" and words[1] in SCRIPTS_BY_FILE:
        given = given_flags(SCRIPTS_BY_FILE[words[1]], words[2:])
        assert given.problems == []
    elif words[:2] == ["python", "-c"]:
        compile(words[2], where, "exec")
    else:
        assert words[0] in SHELL


def flags_of_a_module(name: str, flags: list[str]) -> None:
    assert find_spec(name)
    assert not flags or all(re.search(rf"{flag}\b", help_of_a_module(name)) for flag in flags)


@cache
def help_of_a_module(name: str) -> str:
    """What python -m NAME --help prints."""
    told = StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), redirect_stdout(told):
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)  # another test imported it
        patch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as leaving:
            run_module(name, run_name="__main__")
    assert not leaving.value.code
    return told.getvalue()


def test_settings_in_running_text_are_options_with_valid_values() -> None:
    written = [(page, code) for page, code in inline() if re.fullmatch(r"[a-z0-9_]+ = .+", code)]
    assert len(written) > 20
    for page, code in written:
        if page.startswith("docs/options") or ('"' not in code and not re.search(r"= (true|false|[\d.e-]+)$", code)):
            continue  # generated; values are written as in messages
        settings_are_known(parse_toml(code))


def test_links_resolve() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("http"):
                continue
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{page.name}: {target}"
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
            assert not heading or heading in [anchor(each) for each in headings], f"{page.name}: {target}"


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_presets_and_scripts_that_are_named_exist() -> None:
    named = {code for _, code in inline() if re.fullmatch(r"(presets|sd_scripts|kohya_gui|docs)/[\w/.]+", code)}
    assert named
    assert [code for code in named if not (ROOT / code).exists()] == []


@pytest.mark.parametrize("page", ["docs/troubleshooting.md", "docs/torch_compile.md", "docs/full_training.md"])
def test_messages_quoted_in_troubleshooting_are_in_the_code(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").partition("# Troubleshooting")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(quoted) > 3
    files = [*ROOT.glob("*.py"), *ROOT.glob("*.sh"), *ROOT.glob("sd_scripts/**/*.py"), *ROOT.glob("kohya_gui/**/*.py")]
    said = "\n".join(file.read_text(encoding="utf-8") for file in files)
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # a sentence over several lines
    others = {"hit config.recompile_limit"}  # PyTorch's
    assert [words for words in quoted if words not in said and words not in others] == []


def test_the_guide_names_the_six_settings_with_their_defaults_and_choices() -> None:
    rows = (ROOT / "docs" / "torch_compile.md").read_text(encoding="utf-8").splitlines()
    for o in each_option(CompileOptions):
        row = next(row for row in rows if row.startswith(f"| `{o.name}` |"))
        default, choices = row.split("|")[2:4]
        assert parse_toml(f"x = {default.strip().strip('`')}")["x"] == o.default
        assert [code.strip('"') for code in re.findall(r"`([^`]+)`", choices)] == [str(c) for c in o.choices or ()] or (
            not o.choices
        )


def test_the_numbers_of_the_guide_match_the_code() -> None:
    pages = (ROOT / "docs" / name for name in ("torch_compile.md", "compile_internals.md"))
    guide = " ".join(word for page in pages for word in page.read_text(encoding="utf-8").split())
    assert f"up to {STATIC_SHAPES} sizes get a set each" in guide
    assert f"never below {MIN_GRAPH_LIMIT}" in guide
    with torch.device("meta"):
        sdxl = SDXL.blocks.denoiser(UNet2DConditionModel(**SDXL_CONFIG))
        flux = FLUX.blocks.denoiser(FluxTransformer(FluxParams()))
    for targets in (sdxl, flux):
        kinds = [type(block).__name__ for part in targets for block in part]
        assert f"{len(kinds)} blocks that repeat" in guide
        for name in set(kinds):
            assert f"{kinds.count(name)} `{name}`" in guide


def test_files_set_all_recommended_timesteps_or_none() -> None:
    """They may leave out those that are the family's defaults."""
    families = {card.name: dict(card.page.recommended) for card in cards() if card.page.recommended}
    names = {name for recommended in families.values() for name in recommended}
    given = [{k: v for k, v in parse_toml(text).items() if k in names} for _, text in blocks("toml")]

    def of_family(name: str, values: dict[str, object]) -> bool:
        recommended = families[name].items()
        needed = recommended - card_of(name).defaults.items()
        return needed <= values.items() <= recommended

    assert [name for name in families if not any(of_family(name, each) for each in given)] == []
    assert [each for each in given if each and not any(of_family(name, each) for name in families)] == []


def test_readme_names_presets_that_exist() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| GPU memory |")[2].partition("\n\n")[0]
    titles = {preset_title(file) for file in ROOT.glob("presets/lora/*.toml")}
    named = set(re.findall(r"\*([^*]+)\*", table))
    assert len(named) > 10
    assert named - titles == set()


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_pages_for_a_first_look_are_short(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 150


def test_tables_and_chart_of_the_performance_page_match_its_data() -> None:
    page = summary.PAGE.read_text(encoding="utf-8")
    assert summary.page(page) == page, "run: python -m benchmarks.summary"
    assert summary.chart() == summary.CHART.read_text(encoding="utf-8"), "run: python -m benchmarks.summary"
    assert all((summary.DATA.parent / f"{row['source']}.md").exists() for row in summary.rows())


def test_every_result_is_listed_and_names_the_versions_it_was_measured_with() -> None:
    listed = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for file in summary.DATA.parent.glob("*.md"):
        assert f"(results/{file.name})" in listed
        assert re.search(r"(PyTorch|Gradio) \d+\.\d+", file.read_text(encoding="utf-8")), file.name


def test_names_in_contributing_are_in_the_code() -> None:
    folders = (ROOT / name for name in ("sd_scripts", "kohya_gui", "benchmarks", "tests"))
    code = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    words = {*re.findall(r"\w+", code), *(path.name for path in ROOT.glob("sd_scripts/**/*")), "kohya_gui"}
    named = re.findall(r"`(\w+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert [name for name in named if name not in words and name not in TIERS] == []
