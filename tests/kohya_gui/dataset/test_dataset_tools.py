"""The page's tools for datasets: nothing is lost or overwritten, and training reads their results."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from kohya_gui.dataset.dataset_tools import Arranged, Concept, arrange
from kohya_gui.dataset.dataset_tools_gui import FolderHelper, MetadataSteps, fill, latents_view
from kohya_gui.dataset.dataset_tools_metadata import NEEDED_FOR_LATENTS, Gathering, LatentsJob, gather, latents_command
from kohya_gui.form.controls import Form, Panel
from sd_scripts.finetune import prepare_buckets_latents
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue, gpu_set
from sd_scripts.runs.run_state import RunState
from sd_scripts.runs.store import RunStore
from sd_scripts.runs.watched import FRESH
from sd_scripts.settings.launching.accelerate_command import sees_no_gpu
from tests.support.data import make_image, plan_data, settings_of
from tests.support.scripts import SDXL_FULL

pytestmark = pytest.mark.run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "b.JPG", "c.webp")):
        make_image(tmp_path / "source" / name, (64, 64), number)
    (tmp_path / "source/a.txt").write_text("sks cat on a sofa")
    (tmp_path / "source/notes.md").write_text("not a caption")
    return tmp_path / "source"


@pytest.fixture
def concept(source: Path) -> Concept:
    return Concept(
        instance_prompt="sks",
        class_prompt="cat",
        training_images=str(source),
        repeats=10,
        destination=str(source.parent / "data"),
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def told(arranged: Arranged) -> list[str]:
    return [text for copied in arranged.copied for text in copied.warnings()]


def test_copied_files_are_the_ones_training_reads(source: Path, concept: Concept) -> None:
    before = content(source)
    make_image(source.parent / "cats/x.png")
    done = arrange(replace(concept, regularisation_images=str(source.parent / "cats"), regularisation_repeats=2))
    data = source.parent / "data"
    assert [str(copied) for copied in done.copied] == [
        "img/10_sks cat: 3 images and 1 captions copied",
        "reg/2_cat: 1 images and 0 captions copied",
    ]
    assert sorted(path.name for path in data.iterdir()) == ["img", "log", "model", "reg"]
    assert done.options == {
        "train_data_dir": str(data / "img"),
        "reg_data_dir": str(data / "reg"),
        "output_dir": str(data / "model"),
        "logging_dir": str(data / "log"),
    }
    folders = {name: done.options[name] for name in ("train_data_dir", "reg_data_dir")}
    warnings: list[str] = []
    plan = plan_data(settings_of(**folders), seed=1, warn=warnings.append)
    assert len(warnings) == 1
    assert warnings[0].startswith("2 of 3 images in '10_sks cat' have no .txt file")
    seen = {(item.path.name, item.caption, item.subset.num_repeats, item.subset.is_reg) for item in plan.items}
    assert ("a.png", "sks cat on a sofa", 10, False) in seen
    assert ("b.JPG", "sks cat", 10, False) in seen
    assert ("x.png", "cat", 2, True) in seen
    assert content(source) == before


def test_copying_twice_changes_nothing(source: Path, concept: Concept) -> None:
    arrange(concept)
    before = content(source.parent / "data")
    (again,) = arrange(concept).copied
    assert str(again) == "img/10_sks cat: 0 images and 0 captions copied, 3 already there"
    assert content(source.parent / "data") == before


def test_a_different_image_of_the_same_name_is_renamed_with_its_caption(source: Path, concept: Concept) -> None:
    arrange(concept)
    folder = source.parent / "data/img/10_sks cat"
    before = content(folder)
    make_image(source / "a.png", seed=9)
    (source / "a.txt").write_text("another cat")
    done = arrange(concept)
    assert told(done) == ["1 renamed because the name was taken: a.png as a_2.png"]
    after = content(folder)
    assert after.items() >= before.items()
    assert after.keys() - before.keys() == {"a_2.png", "a_2.txt"}
    assert after["a_2.txt"] == b"another cat"
    assert str(arrange(concept).copied[0]).endswith("0 captions copied, 3 already there")


def test_a_caption_that_was_edited_in_the_destination_stays(source: Path, concept: Concept) -> None:
    arrange(concept)
    caption = source.parent / "data/img/10_sks cat/a.txt"
    caption.write_text("edited by hand")
    assert told(arrange(concept)) == ["a.txt already exists with a different text and was kept"]
    assert caption.read_text() == "edited by hand"


def test_files_that_cannot_be_copied_are_reported_and_the_rest_is_copied(source: Path, concept: Concept) -> None:
    target = source.parent / "data/img/10_sks cat"
    target.mkdir(parents=True)
    (source / f"{'long' * 62}abc.png").write_bytes((source / "a.png").read_bytes())
    done = arrange(concept)
    (sentence,) = told(done)
    assert sentence.startswith("1 could not be copied: longlong")
    assert sentence.endswith("(File name too long)")
    assert done.copied[0].images == 3
    assert not list(target.glob("*.part"))


def test_images_that_will_not_be_trained_as_intended_are_reported(source: Path, concept: Concept) -> None:
    make_image(source / "more/d.png")
    (source.parent / "data/img/40_sks cat").mkdir(parents=True)
    first, second = told(arrange(concept))
    assert first == f"1 subfolders with images in '{source}' were skipped: copy each as its own concept"
    assert second == "40_sks cat has the same prompt and is trained too; delete it if it is outdated"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"instance_prompt": " "}, "instance_prompt: empty; enter the words for the concept"),
        ({"instance_prompt": "a/b"}, "instance_prompt: becomes a folder name, which cannot contain '/'"),
        ({"class_prompt": "cat?"}, r"class_prompt: becomes a folder name, which cannot contain '\?'"),
        ({"class_prompt": "cat."}, "class_prompt: becomes a folder name, which cannot end with a period"),
        ({"instance_prompt": "x" * 300}, "instance_prompt: too long for the folder name"),
        ({"repeats": 0}, "repeats: must be a whole number from 1 to 100000, not 0"),
        ({"repeats": None}, "repeats: must be a whole number from 1 to 100000, not None"),
        ({"training_images": "nowhere"}, "training_images: folder not found"),
        ({"training_images": "."}, "destination: .* is inside the training_images folder; choose another folder"),
        ({"training_images": "empty"}, "training_images: no images .* in "),
        ({"regularisation_images": "source", "class_prompt": ""}, "class_prompt: empty"),
        ({"destination": ""}, "destination: empty; enter a folder"),
        ({"destination": "source"}, "destination: .* is inside the training_images folder"),
        ({"destination": "source/a.png/data"}, "destination: .* is inside the training_images folder"),
        ({"destination": "file/data"}, "destination: '.*' cannot be created .Not a directory."),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_created(
    source: Path, concept: Concept, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], sentence: str
) -> None:
    monkeypatch.chdir(source.parent)
    Path("empty").mkdir()
    Path("file").write_text("")
    before = content(source.parent)
    with pytest.raises(ValueError, match=sentence) as error:
        arrange(replace(concept, **changed))
    assert "\n" not in str(error.value)
    assert content(source.parent) == before
    assert not Path("data").exists()


# --- metadata


def test_gathered_words_train(source: Path) -> None:
    (source / "a.tags").write_text("cute")
    asked = Gathering(
        image_folder=str(source), metadata_folder=str(source.parent / "new/meta"), take_tags=True, tags="tags"
    )
    file, images, remarks = gather(asked)
    assert file == source.parent / "new/meta/meta_cap.json"
    assert images == 3
    assert remarks == [
        "2 of 3 images have no .txt file, or an empty one: b.JPG, c.webp",
        "2 of 3 images have no .tags file, or an empty one: b.JPG, c.webp",
    ]
    assert str(source / "a.png") in json.loads(file.read_text())
    plan = plan_data(settings_of(in_json=file, train_data_dir=source), seed=1, warn=pytest.fail)
    assert {item.path.name: item.caption for item in plan.items}["a.png"] == "sks cat on a sofa,cute"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"captions": "x" * 300}, "captions: '.xxx"),
        ({"captions": "a/b"}, "captions: '.a/b' is not a file extension"),
        ({"take_tags": True, "tags": "..\\x"}, "tags: "),
        ({"captions": "\0"}, "captions: "),
        ({"image_folder": ""}, "image_folder: empty"),
        ({"image_folder": "nowhere"}, "image_folder: "),
        ({"take_captions": False}, "captions: neither captions nor tags are included"),
        ({"take_tags": True, "tags": ".txt"}, "tags: .txt files already contain the captions"),
        (
            {"caption_metadata_filename": "meta"},
            "caption_metadata_filename: 'meta' must be a file name that ends in .json",
        ),
        ({"caption_metadata_filename": "../m.json"}, "caption_metadata_filename: '../m.json' must be a file name"),
    ],
)
def test_a_mistake_in_gathering_is_one_sentence(source: Path, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gather(replace(Gathering(image_folder=str(source)), **changed))


def test_the_latents_command_has_the_settings_of_the_tab(source: Path) -> None:
    asked = Gathering(image_folder=str(source), recursive=True)
    given = {"pretrained_model_name_or_path": "m.safetensors", "flip_aug": True, "min_bucket_reso": 64}
    values = settings_of(**given, vae_batch_size=4).values()
    with pytest.raises(ValueError, match="collect the captions first"):
        latents_command(asked, values, "sdxl")
    gather(asked)
    argv = latents_command(asked, values, "sdxl")
    flags = prepare_buckets_latents.setup_parser().parse_args(argv[2:])
    assert Path(argv[1]) == Path(prepare_buckets_latents.__file__)
    assert (flags.train_data_dir, flags.in_json) == (str(source), str(source / "meta_cap.json"))
    assert (flags.out_json, flags.model_name_or_path) == (str(source / "meta_lat.json"), "m.safetensors")
    assert (flags.max_resolution, flags.min_bucket_reso, flags.bucket_reso_steps) == ("64", 64, 32)
    assert (flags.batch_size, flags.flip_aug, flags.enable_bucket, flags.no_half_vae) == (4, True, True, False)
    assert (flags.family, flags.recursive, flags.full_path, flags.skip_existing) == ("sdxl", True, True, False)
    for name in ("pretrained_model_name_or_path", "resolution"):
        with pytest.raises(ValueError, match=f"^{name}: "):
            latents_command(asked, {**values, name: None}, "sdxl")


# --- the panels


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunQueue:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return RunQueue(RunStore(tmp_path / "runs.sqlite"))


def test_latents_wait_for_the_active_run(source: Path, queue: RunQueue, tmp_path: Path) -> None:
    row = queue.store.add(RunFolder(tmp_path / "run"), name="cat", gpus=gpu_set("", sees_no_gpu()))
    queue.store.update(row.id, state="running")
    job, asked = LatentsJob(queue), Gathering(image_folder=str(source))
    gather(asked)
    values = settings_of(pretrained_model_name_or_path="m.safetensors").values()
    job.start(asked, values, "sdxl")
    assert job.watched
    assert "Starts when cat ends" in latents_view(job.watched.refresh(), asked.latents_file, job.waits_for)
    with pytest.raises(ValueError, match="already"):
        job.start(asked, values, "sdxl")
    job.stop()
    assert job.watched.refresh().state == "stopped"


@pytest.mark.usefixtures("warm_python")
def test_latents_that_wait_outlive_the_gui(
    source: Path, queue: RunQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = queue.store.add(RunFolder(tmp_path / "run"), name="cat", gpus=gpu_set("", sees_no_gpu()))
    queue.store.update(row.id, state="running")
    asked = Gathering(image_folder=str(source), take_tags=True)
    gather(asked)
    given = settings_of(pretrained_model_name_or_path="m.safetensors", min_bucket_reso=64)
    LatentsJob(queue).start(asked, given.values(), "sdxl")
    assert LatentsJob(queue).watched is None  # the GUI that has it is alive
    monkeypatch.setattr("sd_scripts.runs.process.is_alive", lambda key: False)
    restarted = RunQueue(RunStore(queue.store.path))
    job = LatentsJob(restarted)
    assert (job.asked, job.waits_for, job.busy) == (asked, "cat", True)
    restarted.store.end(row.id, "finished")
    restarted._start_tools()
    assert job.watched
    assert job.watched.run
    assert job.watched.run.wait(120)
    assert "m.safetensors" in job.watched.folder.console_tail()


@pytest.mark.usefixtures("warm_python")
def test_the_page_prepares_latents_in_a_process_of_its_own(miniature: Any, source: Path, queue: RunQueue) -> None:
    job, asked = LatentsJob(queue), Gathering(image_folder=str(source))
    gather(asked)
    values = settings_of(pretrained_model_name_or_path=miniature.checkpoint, min_bucket_reso=64).values()
    job.start(asked, values, "sdxl")
    assert job.watched
    assert job.watched.run
    with pytest.raises(ValueError, match="latents are already being cached"):
        job.start(asked, values, "sdxl")
    assert "Starting Python" in latents_view(job.watched.run_state, asked.latents_file)
    assert job.watched.run.wait(120), job.watched.folder.console_tail()
    time.sleep(FRESH)
    run_state = job.watched.refresh()
    assert (run_state.state, run_state.done, run_state.total) == ("finished", 3, 3), run_state.failure
    assert len(list(source.glob("*.safetensors"))) == 3
    assert {tuple(e["train_resolution"]) for e in json.loads(asked.latents_file.read_text()).values()} == {(64, 64)}
    assert "Cached the latents of 3 images" in latents_view(run_state, asked.latents_file)
    job.start(asked, values, "sdxl")  # the former one is over
    job.stop()
    assert job.watched.run.wait(120)
    time.sleep(FRESH)
    assert job.watched.refresh().state == "stopped"


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"state": "running", "phase": "caching latents", "done": 3, "total": 12}, "width:25.0%"),
        ({"state": "stopping"}, "Stopping"),
        ({"state": "stopped"}, "Finished latents are kept"),
        ({"state": "failed", "failure": {"error": "vae: is <not> there"}}, "vae: is &lt;not&gt; there"),
    ],
)
def test_the_page_shows_the_progress_of_a_preparation(state: dict[str, Any], shown: str) -> None:
    assert shown in latents_view(RunState(**state), Path("meta_lat.json"))


def test_a_refusal_of_a_tool_links_to_its_field_or_the_forms(source: Path, queue: RunQueue) -> None:
    with gr.Blocks():
        form = Form("finetune", SDXL_FULL.groups, "full")
        steps = MetadataSteps(form, family := gr.Radio(["sdxl"], value="sdxl"), queue)
        form.panel(Panel("Model", NEEDED_FOR_LATENTS))
    data = {control: control.value for control in (*steps.fields.values(), *form.controls.values(), family)}
    steps_of = {name: steps.fields[name] for name in ("image_folder", "tags", "take_tags")}
    (source / "meta_cap.json").write_text("[]")
    for typed, said in (
        ({"image_folder": str(source / "none")}, "Image folder</button>: "),
        ({"image_folder": str(source), "take_tags": True, "tags": "a/b"}, "Tag extension</button>: &#x27;.a/b&#x27;"),
        ({"image_folder": str(source)}, "Captions file</button>: "),
    ):
        told, *_ = steps._collect({**data, **{steps_of[name]: value for name, value in typed.items()}})
        assert said in told
        assert 'data-panels="finetune-panel-dataset-preparation"' in told
    (source / "meta_cap.json").write_text("{}")
    assert 'data-field="finetune-pretrained_model_name_or_path"' in steps._start(
        {**data, steps_of["image_folder"]: str(source)}
    )


def test_the_tools_are_filled_in_from_the_tab(source: Path, concept: Concept, queue: RunQueue) -> None:
    names = ["train_data_dir", "reg_data_dir", "output_dir", "logging_dir", "in_json", "cache_latents_to_disk"]
    names.append("caption_extension")
    with gr.Blocks():
        form, family = Form("finetune", SDXL_FULL.groups, "full"), gr.Radio(["sdxl"])
        tools = [tool(form, family, queue) for tool in (FolderHelper, MetadataSteps)]
        form.panel(Panel("Dataset", tuple(names)))
        for tool in tools:
            tool.connect()
    assert len(form.write_events) == 2
    assert fill(form, arrange(concept).options) == {
        form.controls["train_data_dir"]: str(source.parent / "data/img"),
        form.controls["output_dir"]: str(source.parent / "data/model"),
        form.controls["logging_dir"]: str(source.parent / "data/log"),
    }
    assert fill(form, {"cache_latents": True, "cache_latents_to_disk": True}) == {
        form.controls["cache_latents_to_disk"]: True
    }
