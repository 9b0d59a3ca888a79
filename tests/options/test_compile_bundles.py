"""Compile bundles: the compiler settings of each, and that files, which name no bundle, show the right one."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch._inductor.config

from kohya_gui.lora_gui import open_configuration, save_configuration
from sd_scripts.formats.documents import parse_toml
from sd_scripts.formats.toml_files import read_toml
from sd_scripts.library.compile_utils import DYNAMIC, inductor_option_problems, inductor_options
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.compile_bundles import BUNDLES, CUSTOM, CompileBundle, bundle_title
from sd_scripts.settings.family_options import each_option
from tests.support.scripts import SDXL_LORA

OF_TITLE = {bundle.title: bundle for bundle in BUNDLES}
ON = ("Auto", "Default", "Inductor", "Triton", "AOT eager")
each_bundle = pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.title)


def test_the_bundles_are_onetrainers_and_auto() -> None:
    assert list(OF_TITLE) == ["None", *ON]
    assert [title for title, bundle in OF_TITLE.items() if bundle.options.compile] == list(ON)
    assert OF_TITLE["Default"].options == CompileOptions(compile=True)
    assert not any(bundle.options.compile_fullgraph for bundle in BUNDLES)


MEANT = {
    "Inductor": {"max_autotune": True, "epilogue_fusion": True, "triton.cudagraphs": False},
    "Triton": {"max_autotune": True, "epilogue_fusion": True, "triton.cudagraphs": True, "shape_padding": True},
}


@pytest.mark.parametrize("title", MEANT)
def test_options_passed_to_inductor_match_the_bundles_name(title: str) -> None:
    options = OF_TITLE[title].options
    assert options.compile_backend == "inductor"
    told = inductor_options(options.compile_mode, options.compile_options)
    config: Any = torch._inductor.config
    assert (config.get_config_copy() | told).items() >= MEANT[title].items()
    # besides, only what tunes more kernels, and our own, which every mode has
    own = inductor_options("default").keys()
    assert set(told) - set(MEANT[title]) - own == {"coordinate_descent_tuning"}


def test_aot_eager_compiles_no_kernels_and_accepts_any_shape() -> None:
    options = OF_TITLE["AOT eager"].options
    assert (options.compile_backend, DYNAMIC[options.compile_dynamic]) == ("aot_eager", True)


@each_bundle
def test_nothing_is_wrong_with_a_bundle_and_its_help_is_sentences(bundle: CompileBundle) -> None:
    assert list(bundle.options.check()) == []
    assert inductor_option_problems(bundle.options.compile_options) == []
    assert bundle.help.endswith(".")


@each_bundle
def test_a_bundle_is_recognised_in_a_file_of_differing_options(bundle: CompileBundle, tmp_path: Path) -> None:
    values = {o.name: getattr(bundle.options, o.name) for o in each_option(CompileOptions)}
    path = save_configuration(tmp_path / "a.toml", values, "sdxl", {})
    assert read_toml(path) == {**SDXL_LORA.identity, **bundle.changes}
    assert bundle_title(CompileOptions(**given(path))) == bundle.title


def given(path: Path) -> dict[str, Any]:
    """The compile options in a file, as the page shows them."""
    return {name: value for name, value in open_configuration(path).values.items() if name.startswith("compile")}


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        ("", "None"),
        ("compile = false\ncompile_mode = 'max-autotune'", "None"),  # without effect
        ("compile = true", "Default"),
        ("compile = true\ncompile_mode = 'default'\ncompile_dynamic = 'auto'", "Default"),
        ("compile = true\ncompile_mode = 'max-autotune-no-cudagraphs'", "Inductor"),
        ("compile = true\ncompile_mode = 'max-autotune'", CUSTOM),
        ("compile = true\ncompile_mode = 'reduce-overhead'", CUSTOM),
        ("compile = true\ncompile_cache_size_limit = 64", CUSTOM),
        ("compile = true\ncompile_backend = 'aot_eager'\ncompile_dynamic = true", "AOT eager"),
    ],
)
def test_a_file_written_before_there_were_bundles_shows_the_one_it_means(
    lines: str, title: str, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(f'family = "sdxl"\nmethod = "lora"\n{lines}\n')
    assert bundle_title(CompileOptions(**given(tmp_path / "a.toml"))) == title


def test_the_guide_has_the_values_of_each_bundle() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "torch_compile.md").read_text(encoding="utf-8").splitlines()
    for bundle in BUNDLES:
        row = next(row for row in rows if row.startswith(f"| {bundle.title} |"))
        assert parse_toml("\n".join(re.findall(r"`([^`]+)`", row.split("|")[2]))) == bundle.changes
