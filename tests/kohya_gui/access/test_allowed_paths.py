"""Served to others, the page reads and writes in named folders only, and does not reveal what exists elsewhere."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from kohya_gui import command
from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.dataset import recognise_images
from kohya_gui.dataset.dataset_tools_gui import FolderHelper, MetadataSteps
from kohya_gui.dataset.dataset_tools_metadata import NEEDED_FOR_LATENTS
from kohya_gui.form import recognise
from kohya_gui.form.configuration import open_file, prepare
from kohya_gui.form.controls import Form, Panel
from kohya_gui.lora_gui import LORA
from kohya_gui.tabs import TABS
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from tests.support.scripts import FLUX_LORA, SDXL_LORA

OUTSIDE = "outside the allowed folders"


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """An allowed folder; its parent is not."""
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


@pytest.fixture
def allowed_paths(inside: Path) -> AllowedPaths:
    return AllowedPaths.within([inside])


def test_everything_in_an_allowed_folder_is_allowed(allowed_paths, inside):
    for path in (
        inside,
        inside / "a",
        inside / "not/yet/there.toml",
        inside / "a/../b",
        f"{inside}/a b",
        f" {inside}/a ",
    ):
        assert allowed_paths.check("output_dir", path).is_absolute()


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../x",
        "inside/../x",
        "inside/a/../../x",
        "inside/./../x",
        "insider",
        "inside.toml",
        "/",
        "/etc/passwd",
        "~",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_by_the_options_name(allowed_paths, inside, path):
    with pytest.raises(ValueError, match=f"^output_dir: '.*' is {OUTSIDE}; start the GUI with --allowed_path"):
        allowed_paths.check("output_dir", os.path.join(inside.parent, path) if path != ".." else inside / "..")


def test_links_are_followed_and_not_overwritten(allowed_paths, inside):
    outside = inside.parent
    (outside / "secret.toml").write_text("")
    (inside / "file.toml").symlink_to(outside / "secret.toml")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    (inside / "own").symlink_to(inside)
    (outside / "into").symlink_to(inside / "real.toml")
    for path in ("file.toml", "folder", "folder/secret.toml", "folder/new.toml", "folder/inside/../x", "own/folder/x"):
        assert not allowed_paths.holds(inside / path), path
    assert not allowed_paths.holds(outside / "into")  # saving would replace the link by a file
    assert allowed_paths.holds(inside / "own/own/x")


def test_a_path_with_the_character_0_is_refused_everywhere(allowed_paths):
    for each in (allowed_paths, EVERYWHERE):
        with pytest.raises(ValueError, match="output_dir: a path cannot contain a null character"):
            each.check("output_dir", "a\0.toml")


@pytest.mark.parametrize("fenced", [True, False])
def test_text_that_cannot_be_a_path_is_refused_in_one_sentence(allowed_paths, inside, fenced):
    (inside / "loop").symlink_to(inside / "loop")
    asked = allowed_paths if fenced else EVERYWHERE
    for path, why in (
        (inside / ("x" * 300), "255 bytes"),
        (inside / ("x" * 300) / "y", "255 bytes"),
        (str(inside) + "/x" * 3000, "too long for a path"),
        (inside / "loop", "points back to itself"),
        (inside / "loop" / "x", "points back to itself"),
        (f"{inside}/\ud800", "characters that are not valid in a path"),
    ):
        with pytest.raises(ValueError, match=f"^logging_dir: .*{why}") as told:
            asked.check("logging_dir", path)
        assert len(str(told.value)) < 400
    assert asked.check("logging_dir", inside / "a" / "b")


def test_a_file_may_be_allowed_alone(inside):
    allowed_paths = AllowedPaths.within([inside / "one.toml"])
    assert allowed_paths.holds(inside / "one.toml")
    assert not allowed_paths.holds(inside / "two.toml")


def test_the_root_of_a_disk_is_not_allowed():
    assert AllowedPaths.within([Path("/")]).allowed == ()


def settings_of(values: dict[str, Any]) -> list[str]:
    return AllowedPaths.within([Path("/nowhere")]).problems(
        values, [o for g in SDXL_LORA.groups for o in each_option(g)]
    )


def test_every_option_that_names_a_path_is_checked():
    options = {o.name: o for s in SCRIPTS for g in s.groups for o in each_option(g)}
    paths = {name: o for name, o in options.items() if o.path}
    assert len(paths) > 15
    allowed_paths = AllowedPaths.within([Path("/nowhere")])
    for name, option in paths.items():
        assert allowed_paths.problems({name: ["/etc/x"] if option.many else "/etc/x"}, [option])
        assert not allowed_paths.problems({name: [] if option.many else None}, [option])
    words = [name for name in options if name.endswith(("_dir", "_file", "_path", "_folder")) and name not in paths]
    assert [name for name in words if "nvme" not in name and "huggingface" not in name] == []


def test_values_that_are_not_paths_are_not_checked():
    assert not settings_of(
        {"pretrained_model_name_or_path": "stabilityai/sdxl", "vae": "madebyollin/sdxl-vae-fp16-fix"}
    )
    assert not settings_of({"resume": "latest"})
    assert not settings_of({"extra_accelerate_launch_args": "--use_fsdp --main_process_ip=10.0.0.1"})
    assert settings_of({"network_weights": "org/name"})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"output_name": "../../x", "output_dir": "/nowhere/a"}, "output_name"),
        ({"output_name": "/etc/x", "output_dir": "/nowhere/a"}, "output_name"),
        ({"log_prefix": "../../../x", "logging_dir": "/nowhere"}, "log_prefix"),
        ({"extra_accelerate_launch_args": "--config_file=/etc/x"}, "extra_accelerate_launch_args"),
        ({"extra_accelerate_launch_args": "--mixed_precision no /tmp/mine.py"}, "extra_accelerate_launch_args"),
    ],
)  # fmt: skip
def test_a_path_is_found_where_it_hides(values, named):
    (why,) = settings_of(values)
    assert why.startswith(f"{named}: ")


def test_a_dataset_file_names_allowed_folders_only(allowed_paths, inside):
    for name, text in (
        ("a.toml", '[[datasets]]\n[[datasets.subsets]]\nimage_dir = "/etc"\n'),
        ("a.json", json.dumps({"datasets": [{"subsets": [{"image_dir": "/etc"}]}]})),
    ):
        (inside / name).write_text(text)
        assert OUTSIDE in (allowed_paths.problem("dataset_config", str(inside / name)) or "")
    (inside / "b.toml").write_text(f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "{inside / "cats"}"\n')
    assert allowed_paths.problem("dataset_config", str(inside / "b.toml")) is None


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_metadata_file_names_images_in_allowed_folders_only(allowed_paths, inside, name):
    def written(key: str) -> str:
        entry = {"caption": "a cat"}
        lines = json.dumps({key: entry} if name == "a.json" else {"image_path": key, **entry})
        (inside / name).write_text(lines + "\n")
        return str(inside / name)

    config = inside / "c.toml"
    config.write_text(f'[[datasets]]\n[[datasets.subsets]]\nmetadata_file = "{inside / name}"\n')
    for key, why in (("/etc/secret.png", OUTSIDE), ("../secret.png", "leads out of its folder")):
        assert why in (allowed_paths.problem("in_json", written(key)) or "")
        assert why in (allowed_paths.problem("dataset_config", str(config)) or "")
    for key in (str(inside / "cat.png"), "cat", "sub/cat.png", "..cat"):
        assert allowed_paths.problem("in_json", written(key)) is None
        assert allowed_paths.problem("dataset_config", str(config)) is None
    assert EVERYWHERE.problem("in_json", written("/etc/secret.png")) is None


def test_control_images_must_be_in_allowed_folders(allowed_paths, inside):
    prompts, listed, config = inside / "p.txt", inside / "l.jsonl", inside / "d.toml"
    for place, why in ((inside / "before.png", None), (Path("/etc/before.png"), OUTSIDE)):
        prompts.write_text(f"a cat --ci {place}\n")
        listed.write_text(json.dumps({"image_path": "cat.png", "control_path_1": str(place)}))
        config.write_text(f'[[datasets]]\n[[datasets.subsets]]\ncontrol_directory = "{place}"\n')
        told = [
            allowed_paths.problem(option, str(file))
            for option, file in (("sample_prompts", prompts), ("in_json", listed), ("dataset_config", config))
        ]
        assert [why is None if each is None else why in each for each in told] == [True] * 3


def test_a_configuration_elsewhere_is_neither_read_nor_written(allowed_paths, inside):
    there, here = inside.parent / "cat.toml", inside / "cat.toml"
    write_toml(there, {"network_dim": 4})
    for path in (there, there.with_name("missing.toml"), there.with_suffix(".json")):
        with pytest.raises(ValueError, match=f"^configuration file: .* {OUTSIDE}"):
            open_file(path, TABS["lora"], allowed_paths=allowed_paths)
        with pytest.raises(ValueError, match=OUTSIDE):
            LORA.save_configuration(path, {"network_dim": 8}, "sdxl", {}, allowed_paths)
    LORA.save_configuration(here, {"network_dim": 8}, "sdxl", {}, allowed_paths)
    assert open_file(here, TABS["lora"], allowed_paths=allowed_paths).values == {"network_dim": 8}
    assert "4" in there.read_text()


def test_the_family_of_a_model_outside_is_not_revealed(allowed_paths, inside, flux_miniature):
    write_toml(
        inside / "a.toml", {"pretrained_model_name_or_path": str(flux_miniature.files["pretrained_model_name_or_path"])}
    )
    assert open_file(inside / "a.toml", TABS["lora"]).family == "flux"
    assert open_file(inside / "a.toml", TABS["lora"], allowed_paths=allowed_paths).family == "sdxl"


def test_a_run_with_paths_outside_is_refused_without_revealing_what_exists(allowed_paths, inside):
    refusals = []
    for model in ("/etc/passwd", "/etc/nothing"):
        values = {"output_dir": str(inside), "pretrained_model_name_or_path": model, "train_data_dir": str(inside)}
        with pytest.raises(ValueError, match=OUTSIDE) as refused:
            prepare(values, SDXL_LORA, {}, print_only=False, allowed_paths=allowed_paths)
        refusals.append(str(refused.value).replace(model, ""))
    assert refusals[0] == refusals[1]
    with pytest.raises(ValueError, match=f"output_dir: .* {OUTSIDE}"):
        prepare({"output_dir": str(inside.parent / "new")}, SDXL_LORA, {}, print_only=True, allowed_paths=allowed_paths)
    assert not (inside.parent / "new").exists()


def test_the_hint_under_a_path_does_not_reveal_what_exists_outside(allowed_paths, inside):
    def told(path: str) -> recognise.Recognised:
        return recognise.allowed(
            allowed_paths, "train_data_dir", path, lambda p: recognise_images.train_data(p, ".txt")
        )

    for path in ("/etc", "/etc/passwd", "/nothing"):
        assert told(path).good is False
        assert OUTSIDE in told(path).text
    assert told(str(inside)).text.startswith("No folder named like 10_cat")
    assert told("") == recognise.NOTHING


def test_advice_does_not_reveal_a_model_outside(inside, flux_miniature):
    from kohya_gui.form.panels import TIMESTEPS

    looked_at: list[Any] = []

    def good(values: Mapping[str, Any]) -> Mapping[str, Any]:
        looked_at.append(values.get("pretrained_model_name_or_path"))
        return {}

    model = str(flux_miniature.files["pretrained_model_name_or_path"])
    for allowed_paths in (EVERYWHERE, AllowedPaths.within([inside])):
        with gr.Blocks():
            form = Form("lora", FLUX_LORA.groups, "lora", allowed_paths=allowed_paths)
            advice = replace(TIMESTEPS.advice[0], good=good)
            form.panel(Panel("Model", ("pretrained_model_name_or_path",), advice=(advice,)))
        form.advised({"pretrained_model_name_or_path": model})
    assert looked_at == [model, None]


@pytest.fixture
def tool(tmp_path: Path) -> Callable[..., Any]:
    """Return a tool of the page, and a function that returns its fields' values, some of them typed."""

    def make(kind: type[FolderHelper | MetadataSteps], allowed_paths: AllowedPaths = EVERYWHERE) -> Any:
        with gr.Blocks():
            form = Form("lora", SDXL_LORA.groups, "lora", allowed_paths=allowed_paths)
            form.place([*NEEDED_FOR_LATENTS, "caption_extension"])
            made = kind(form, gr.Radio(["sdxl"]), RunQueue(RunStore(tmp_path / "runs.sqlite")))
            made.connect()
        return made, lambda **typed: {c: typed.get(name, c.value) for name, c in made.fields.items()}

    return make


def test_the_dataset_tools_stay_inside(tool, allowed_paths, inside):
    helper, fields = tool(FolderHelper, allowed_paths)
    for folders in (("/etc", "", str(inside)), (str(inside), "/etc", str(inside)), (str(inside), "", "/etc")):
        names = ("training_images", "regularisation_images", "destination")
        data = fields(instance_prompt="sks", class_prompt="cat", **dict(zip(names, folders, strict=True)))
        said, _, options = helper._arrange(data)
        assert OUTSIDE in said
        assert options == {}


def test_the_dataset_tools_refuse_impossible_paths_in_one_sentence(tool, inside):
    (inside / "loop").symlink_to(inside / "loop")
    (inside / "images").mkdir()
    (inside / "images" / "a.png").write_bytes(b"")
    helper, fields = tool(FolderHelper)
    for images, destination, why in (
        (inside / "loop", inside / "to", "points back to itself"),
        (inside / "images", inside / ("x" * 300), "255 bytes"),
        (inside / "images" / "a.png" / "b", inside / "to", 'data-field="lora-training_images"'),
        (inside / "images", inside / "images" / "a.png" / "to", 'data-field="lora-destination"'),
    ):
        data = fields(instance_prompt="sks", training_images=str(images), destination=str(destination))
        said, _, options = helper._arrange(data)
        assert why in said
        assert options == {}


def test_gathering_captions_stays_inside(tool, allowed_paths, inside):
    steps, fields = tool(MetadataSteps, allowed_paths)
    for images, metadata in (("/etc", ""), (str(inside), "/etc")):
        with pytest.raises(ValueError, match=OUTSIDE):
            steps._asked(fields(image_folder=images, metadata_folder=metadata))
    asked = steps._asked(fields(image_folder=str(inside)))
    assert (asked.images, asked.captions, asked.take_tags) == (inside, ".txt", False)


def served(words: str) -> AllowedPaths:
    return command.allowed_paths(command.parser().parse_args(words.split()))


def test_the_way_the_page_is_served_decides_the_allowed_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert served("") == EVERYWHERE
    assert served(f"--allowed_path {tmp_path}") == EVERYWHERE
    for words in ("--listen 0.0.0.0", "--share"):
        allowed_paths = served(f"{words} --allowed_path /srv --config /opt/cat.toml")
        for path in (Path.home() / "x", tmp_path / "x", Path("/srv/data"), Path("/opt/cat.toml")):
            assert allowed_paths.holds(path)
        for path in (Path("/"), Path("/etc/passwd"), Path("/opt"), Path("/opt/dog.toml")):
            assert not allowed_paths.holds(path)


def test_an_allowed_path_must_be_there(tmp_path):
    flags = command.parser().parse_args(["--allowed_path", str(tmp_path / "none")])
    assert command.refusal(flags) == f"--allowed_path: folder not found: {tmp_path / 'none'}"
