"""The model card of a real run, its uploaded files, and the contents of the zip."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from sd_scripts.families.cards.registry import cards
from sd_scripts.families.sdxl.card import CARD as SDXL
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.tools.publish.__main__ import main
from sd_scripts.tools.publish.card import make_card
from sd_scripts.tools.publish.trained import read_run
from tests.support.clips import make_clip
from tests.support.hub.uploads import TOKEN, Hub, hub
from tests.support.training import PIVOTAL, Run, train

__all__ = ["hub"]

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def trained(miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A LoRA and embeddings with two samples of each of two prompts. Do not write to it."""
    folder = tmp_path_factory.mktemp("trained")
    prompts = [f'a "zwx" | {where} --w 64 --h 64 --s 2' for where in ("here", "there")]
    (folder / "prompts.txt").write_text("\n".join(prompts))
    samples = {"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 1, "max_train_steps": 2}
    more = {"metadata_tags": "cat, pet", "metadata_author": "me", "huggingface_token": TOKEN, "use_ema": True}
    run = train(miniature, folder / "out", **{**PIVOTAL, **samples, **more})
    assert run.status == 0
    return run


@pytest.fixture
def copy(trained: Run, tmp_path: Path) -> Run:
    """One that may be written to; its events name the files of the first."""
    shutil.copytree(trained.output, tmp_path / "out")
    events = tmp_path / "out" / "run" / "events.jsonl"
    events.write_text(events.read_text().replace(str(trained.output), str(tmp_path / "out")))
    return Run(0, tmp_path / "out", type(trained.folder)(tmp_path / "out" / "run"))


def test_a_model_trained_from_a_file_names_its_family_and_purpose(trained: Run) -> None:
    told = {}
    for card in cards():
        settings = from_values(script_for(card.name, "lora"), {}, {"pretrained_model_name_or_path": "base.safetensors"})
        made = ModelCard(make_card(replace(read_run(trained.folder.path), settings=settings)))
        assert f"\nLoRA for {card.title}.\n" in made.text
        data = made.data.to_dict()
        told[card.name] = (data["base_model"], data["pipeline_tag"])
    assert told == {
        "sdxl": ("stabilityai/stable-diffusion-xl-base-1.0", "text-to-image"),
        "flux": ("black-forest-labs/FLUX.1-dev", "text-to-image"),
        "flux_kontext": ("black-forest-labs/FLUX.1-Kontext-dev", "image-to-image"),
        "chroma": ("lodestones/Chroma1-HD", "text-to-image"),
        "anima": ("circlestone-labs/Anima-Base-v1.0-Diffusers", "text-to-image"),
        "flux2": ("black-forest-labs/FLUX.2-klein-base-4B", "image-to-image"),
        "z_image": ("Tongyi-MAI/Z-Image", "text-to-image"),
        "krea2": ("krea/Krea-2-Raw", "text-to-image"),
        "qwen_image": ("Qwen/Qwen-Image", "text-to-image"),
        "qwen_image_edit": ("Qwen/Qwen-Image-Edit-2509", "image-to-image"),
        "wan": ("Wan-AI/Wan2.1-T2V-14B-Diffusers", "text-to-image"),
        "wan_5b": ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "text-to-image"),
        "hunyuan_video": ("hunyuanvideo-community/HunyuanVideo", "text-to-image"),
        "framepack": ("lllyasviel/FramePackI2V_HY", "image-to-image"),
    }, "its samples are images"


@pytest.mark.parametrize(
    ("family", "architecture", "model"),
    [
        ("flux", "flux-1-schnell/lora", "black-forest-labs/FLUX.1-schnell"),
        ("flux", "flux-1-dev/lora", "black-forest-labs/FLUX.1-dev"),
        ("qwen_image_edit", "Qwen-Image-Edit/lora", "Qwen/Qwen-Image-Edit"),
        ("qwen_image_edit", "Qwen-Image-Edit-Plus/lora", "Qwen/Qwen-Image-Edit-2509"),
    ],
)
def test_the_variant_in_a_trained_file_names_the_base_model(
    trained: Run, tmp_path: Path, family: str, architecture: str, model: str
) -> None:
    file = tmp_path / "lora.safetensors"
    save_file({"a": torch.zeros(1)}, file, {"modelspec.architecture": architecture})
    settings = from_values(script_for(family, "lora"), {}, {"pretrained_model_name_or_path": "base.safetensors"})
    made = make_card(replace(read_run(trained.folder.path), settings=settings, files=(file,)))
    assert ModelCard(made).data.to_dict()["base_model"] == model


def test_the_hub_understands_the_card_and_it_contains_no_path_and_no_token(trained: Run) -> None:
    text = make_card(read_run(trained.folder.path))
    data = ModelCard(text).data.to_dict()
    assert data["base_model"] == SDXL.hub.model
    assert data["base_model_relation"] == "adapter"
    assert data["instance_prompt"] == "zwx"
    assert {"lora", "template:sd-lora", "stable-diffusion-xl", "cat", "pet"} < set(data["tags"])
    assert [(each["text"], each["output"]["url"]) for each in data["widget"]] == [
        ('a "zwx" | here', "images/sample-1.png"),
        ('a "zwx" | there', "images/sample-2.png"),
    ]
    assert "| network_dim | 2 |" in text
    assert "Trigger words: `zwx`" in text
    assert "[short-embedding.safetensors](short-embedding.safetensors)" in text
    assert TOKEN not in text
    assert str(trained.output.parent) not in text


def test_the_card_is_written_once_and_its_authors_text_is_kept(copy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(copy.folder.path)
    assert main([run]) == 0
    card = copy.output / "short-README.md"
    assert f"The model card is '{card}'" in capsys.readouterr().out
    card.write_text("mine")
    assert main([run, "--zip", str(copy.output / "a.zip")]) == 0
    assert card.read_text() == "mine"
    with zipfile.ZipFile(copy.output / "a.zip") as packed:
        names = {"README.md", "short.safetensors", "short-embedding.safetensors"}
        assert set(packed.namelist()) == names | {"images/sample-1.png", "images/sample-2.png"}
        assert packed.read("README.md") == b"mine"
        assert packed.read("short.safetensors") == (copy.output / "short.safetensors").read_bytes()


def test_card_file_and_samples_are_uploaded_to_a_private_repository(
    copy: Run, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy.output / "edited.md").write_text("edited")
    flags = ["--repo_id", "me/my-lora", "--card", str(copy.output / "edited.md"), "--json"]
    assert main([str(copy.folder.path), *flags]) == 0
    (created,) = hub.created
    assert created.get("visibility") == "private" or created.get("private") is True
    uploaded = {name.removeprefix("models/me/my-lora/"): data for name, data in hub.files.items()}
    assert uploaded["README.md"] == b"edited"
    assert uploaded["short.safetensors"] == (copy.output / "short.safetensors").read_bytes()
    assert {"short-embedding.safetensors", "images/sample-1.png", "images/sample-2.png"} < uploaded.keys()
    assert json.loads(capsys.readouterr().out)["url"] == "https://huggingface.co/me/my-lora/commit/1"
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_the_last_clip_of_a_prompt_is_published(copy: Run, tmp_path: Path) -> None:
    clip, broken = (copy.output / "sample" / name for name in ("a.mp4", "b.mp4"))
    make_clip(clip)
    broken.write_bytes(clip.read_bytes()[:-9])
    log = copy.folder.log()
    for number, path in enumerate((clip, broken)):
        log("sample", path=str(path), prompt="moves", step=9, number=number, media="clip", frames=3, fps=8)
    log.close()
    run = read_run(copy.folder.path)
    assert [sample.path for sample in run.samples] == [clip]
    assert run.left_out == (f"'{broken}' cannot be read as a clip, so it is left out",)
    assert ModelCard(make_card(run)).data.to_dict()["widget"][0]["output"]["url"] == "images/sample-1.mp4"


def test_a_run_that_cannot_be_published_is_reported_in_one_sentence(
    copy: Run, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(copy.folder.path)
    hub.status = {"/api/repos/create": 403}
    for flags, problem in (
        ([str(tmp_path)], "is not the folder of a run"),
        ([run, "--repo_id", "my lora"], "--repo_id: 'my lora' is not a repository name"),
        ([run, "--zip", str(tmp_path / "a.rar")], "does not end with .zip"),
        ([run, "--card", str(tmp_path / "none.md")], "--card: file not found"),
        ([run, "--repo_id", "you/yours"], "'you/yours' cannot be written to: the token has no write access"),
    ):
        assert main(flags) == 2
        said = capsys.readouterr().err
        assert problem in said
        assert len(said.splitlines()) == 1
    for file in copy.output.glob("short*.safetensors"):
        file.unlink()
    assert main([run]) == 2
    assert "has no saved file" in capsys.readouterr().err
