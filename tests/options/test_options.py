"""Each option is declared once, and everything that is known of it agrees with the field's own list."""

import json
from pathlib import Path

import pytest

from sd_scripts.options.compile import CompileOptions, registered_backends
from sd_scripts.options.spec import KINDS, Option, OptionGroup, option
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.command_line import ConfigFileOptions
from sd_scripts.settings.compat.legacy import LegacyOptions
from sd_scripts.settings.family_options import each_option
from tests.support.scripts import SDXL_LORA

FOLDER = Path(__file__).parents[1] / "reference"
REFERENCE = {
    script: json.loads(file.read_text(encoding="utf-8"))
    for script in SCRIPTS
    if (file := FOLDER / f"{script.family}_{script.method}_options.json").is_file()
}
"""The options of sd-scripts, for the scripts that it has, too."""
OPTIONS_OF = {
    script: {
        o.name: o.for_family(script.family)
        for g in (*script.groups, ConfigFileOptions, LegacyOptions)
        for o in each_option(g)
    }
    for script in SCRIPTS
}
ON_PURPOSE = {("textual_inversion", "save_model_as")}
"""Method and option with a different default here; docs/options.md lists them."""
OPTIONS = OPTIONS_OF[SDXL_LORA]
EVERY_OPTION = {
    (o.name, id(o.default)): o
    for script in SCRIPTS
    for g in (*script.groups, ConfigFileOptions, LegacyOptions)
    for o in each_option(g)
}
"""As declared, including values for other families."""


def an_option(**face: object) -> Option:
    return Option(**{"name": "x", "type": int, "default": 1, "help": "", "label": "", **face})  # type: ignore[arg-type]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_no_option_is_declared_twice(script):
    names = [o.name for group in (*script.groups, ConfigFileOptions, LegacyOptions) for o in each_option(group)]
    assert sorted(names) == sorted(set(names))


def test_every_option_of_sd_scripts_exists_with_its_type_and_default():
    types = {"int": int, "float": float, "bool": bool, "str": str, "Path": str, "int_or_float": float}
    wrong = []
    for script, theirs in ((each, theirs) for each in REFERENCE for theirs in REFERENCE[each]):
        ours = OPTIONS_OF[script].get(theirs["name"])
        if ours is None:
            wrong.append(f"{script.file}: {theirs['name']} is missing")
            continue
        many = theirs["nargs"] == "*"
        expected, found = [types[theirs["type"]], many], [ours.type, ours.many]
        # without torch_compile, the default of dynamo_backend has no meaning
        if ours.name != "dynamo_backend" and (script.method, ours.name) not in ON_PURPOSE:
            expected += [[] if many else theirs["default"], {*(theirs["choices"] or ours.choices)} - {None}]
            found += [ours.default, {*ours.choices}]
        if found != expected:
            wrong.append(f"{script.file}: {ours.name} has {found}, not {expected}")
    assert wrong == []


def test_every_option_has_a_label_and_help():
    wrong = [f"{o.name}: {fault}" for o in EVERY_OPTION.values() for fault in faults(o)]
    assert wrong == []


def test_a_familys_note_applies_to_derived_families_without_their_own() -> None:
    noted = {o.name: o.family_notes for o in EVERY_OPTION.values() if o.family_notes}
    whom = {name: [families for families, _ in noted[name]] for name in ("blocks_to_swap", "vae")}
    assert whom["blocks_to_swap"][:4] == [
        ("sdxl",),
        ("flux", "flux_kontext"),
        ("chroma",),
        ("flux2",),
    ]
    assert whom["vae"][:5] == [("sdxl",), ("flux2",), ("anima",), ("krea2",), ("qwen_image", "qwen_image_edit")]
    assert {("flux",), ("flux_kontext",)} < dict(noted["pretrained_model_name_or_path"]).keys()
    assert [families for families, _ in OPTIONS["blocks_to_swap"].family_notes] == [("sdxl",)]  # as SDXL has it


def faults(o: Option) -> list[str]:
    """Return the missing parts of an option."""
    must = {
        "a type with a control": o.type in KINDS,
        "sentences as help": all(
            text.endswith(".") for text in (o.help, *o.notes.values(), *dict(o.family_notes).values())
        ),
        "a label": bool(o.label),
        "a default that is allowed": o.problem(o.default) is None,
        "a default of the right type": o.read(o.default) == o.default,
        "an on-off option that shows it": not o.shown_when or all(OPTIONS[each].type is bool for each in o.switches),
        "a range": o.type not in (int, float) or bool(o.choices or o.within),
    }
    return [f"needs {what}" for what, met in must.items() if not met]


def test_an_option_without_a_range_or_a_sentence_is_noticed():
    assert faults(an_option(label="X", help="Does.", within=(0, 2))) == []
    assert faults(an_option(help="does")) == ["needs sentences as help", "needs a label", "needs a range"]


def test_the_six_compile_controls_keep_their_names_choices_and_defaults():
    six = {o.name: (o.default, o.choices) for o in each_option(CompileOptions)}
    assert six.pop("compile_options") == ([], ())
    assert six.pop("compile_auto") == (False, ())
    assert six == {
        "compile": (False, ()),
        "compile_backend": ("inductor", ("inductor", "cudagraphs", "eager", "aot_eager")),
        "compile_mode": ("default", ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
        "compile_dynamic": ("auto", ("auto", "true", "false")),
        "compile_fullgraph": (False, ()),
        "compile_cache_size_limit": (0, ()),
    }
    dependants = [o for o in each_option(CompileOptions) if o.name != "compile"]
    assert all(o.shown_when == "compile" for o in dependants)


def test_every_script_has_the_compile_and_launch_options():
    for script in SCRIPTS:
        names = {o.name for group in script.groups for o in each_option(group)}
        assert {"compile", "cuda_allow_tf32", "cuda_cudnn_benchmark", "num_processes", "gpu_ids"} <= names


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (int, "3", 3),
        (int, 100.0, 100),
        (int, "1e3", 1000),
        (int, "three", "three"),
        (int, 2.5, 2.5),
        (float, "1e-4", 1e-4),
        (float, 1, 1.0),
        (bool, 1, True),
        (bool, 0, False),
        (bool, "true", True),
        (bool, 2, 2),
        (str, 1024, "1024"),
    ],
)
def test_a_value_is_read_leniently(kind, given, read):
    value = an_option(type=kind).read(given)
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(("given", "read"), [("10%", 0.1), (0.05, 0.05), (100.0, 100), ("250", 250), (0, 0.0)])
def test_steps_may_be_a_fraction_of_the_run(given, read):
    warmup = an_option(type=float, steps_or_fraction=True)
    assert warmup.read(given) == read
    assert warmup.problem(warmup.read(given)) is None


@pytest.mark.parametrize(
    ("face", "value", "why"),
    [
        ({}, "three", "'three' is not a whole number"),
        ({}, True, "True is not a whole number"),
        ({"type": float}, float("nan"), "nan is not a number"),
        ({"type": bool}, 2, "2 is not true or false"),
        ({"type": str}, 3, "3 is not text"),
        ({"type": str, "choices": ("a", "b")}, "c", "'c' is not one of a, b"),
        ({"choices": (150, 225)}, 75, "75 is not one of 150, 225"),
        ({"within": (1, 8)}, 0, "0 is outside 1..8"),
        ({"many": True, "type": float, "within": (0.0, 1.0)}, [0.5, 2.0], "2.0 is outside 0.0..1.0"),
        (
            {"type": float, "steps_or_fraction": True},
            1.5,
            "1.5 is neither a whole number of steps nor a fraction below 1",
        ),
        ({}, None, "is required"),
    ],
)
def test_a_wrong_value_is_reported_in_words(face, value, why):
    assert an_option(**face).problem(value) == why


def test_unset_zero_and_set_are_different():
    rate = OPTIONS["unet_lr"]
    assert (rate.read(None), rate.read(0), rate.read(1e-4)) == (None, 0.0, 1e-4)
    assert rate.read("") is None


def test_zero_is_off_only_for_options_that_define_it_so():
    assert OPTIONS["min_snr_gamma"].read(0) is None
    assert OPTIONS["max_grad_norm"].read(0) == 0.0
    assert OPTIONS["seed"].read(0) == 0


def test_a_backend_that_a_package_registers_can_be_named(tmp_path, monkeypatch, request):
    (backend,) = (o for o in each_option(CompileOptions) if o.name == "compile_backend")
    assert "is not one of inductor, cudagraphs" in (backend.problem("openxla") or "")  # its package is not installed
    assert "is not one of" in (backend.problem("mine") or "")
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    points = "[torch_dynamo_backends]\nmine = mine:backend\n"
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    registered_backends.cache_clear()  # as in the next process
    request.addfinalizer(registered_backends.cache_clear)
    assert backend.problem("mine") is None
    assert backend.problem("aot_ts") is None


def test_an_option_inherits_its_methods_from_the_group_and_may_narrow_them():
    class Group(OptionGroup, title="Group", methods=("full",)):
        inherited: int = option(0, "Inherits.")
        narrowed: int = option(0, "Has its own.", methods=("lora",))

    assert {o.name: o.methods for o in each_option(Group)} == {"inherited": ("full",), "narrowed": ("lora",)}
