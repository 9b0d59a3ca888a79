"""The model files on this machine, and what of a family's needs they cover."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.models.catalogue import hub_file, needs, title_of
from kohya_gui.models.library import Library, used_by
from sd_scripts.families.cards.registry import cards
from sd_scripts.options.model import MODEL
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.store import RunStore

CLIP_L = {"text_model.final_layer_norm.weight": (768,), "text_model.embeddings.token_embedding.weight": (1, 768)}
DEV = {"double_blocks.0.img_attn.qkv.weight": (1, 1), "guidance_in.in_layer.weight": (1, 1)}


def write(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: torch.zeros(shape) for key, shape in shapes.items()}, path)
    return path


def library_of(tmp_path: Path, *folders: Path, allowed: AllowedPaths = EVERYWHERE) -> Library:
    library = Library(tmp_path / "models.json", allowed)
    library.set([str(folder) for folder in folders])
    return library


def test_files_are_recognised_by_their_headers_and_cover_what_a_family_needs(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write(models / "mine.safetensors", DEV)
    write(models / "encoders" / "x.safetensors", CLIP_L)
    (models / "broken.safetensors").write_bytes(b"{")
    (models / ".flux1-dev.safetensors.0123456789ab.download").write_bytes(b"part")
    (models / "notes.txt").write_text("none")
    files, more = library_of(tmp_path, models).scan()
    assert not more
    assert {each.path.name: bool(each.file.problem) for each in files} == {
        "mine.safetensors": False,
        "broken.safetensors": True,
        "x.safetensors": False,
    }
    parts = {part["option"]: [each["name"] for each in part["here"]] for part in needs("flux", files)}
    assert parts == {MODEL: ["mine.safetensors"], "clip_l": ["x.safetensors"], "t5xxl": [], "ae": []}


def test_the_name_of_a_file_decides_between_a_family_and_a_derived_one(tmp_path: Path) -> None:
    write(tmp_path / "models" / "flux1-kontext-dev.safetensors", DEV)
    write(tmp_path / "models" / "mine.safetensors", DEV)
    files, _ = library_of(tmp_path, tmp_path / "models").scan()
    here = {family: [each["name"] for each in needs(family, files)[0]["here"]] for family in ("flux", "flux_kontext")}
    assert here == {"flux": ["mine.safetensors"], "flux_kontext": ["flux1-kontext-dev.safetensors"]}


def test_only_allowed_folders_are_scanned_also_through_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(outside / "secret.safetensors", CLIP_L)
    write(inside / "mine.safetensors", CLIP_L)
    (inside / "link").symlink_to(outside)
    (inside / "secret.safetensors").symlink_to(outside / "secret.safetensors")
    library = library_of(tmp_path, inside, allowed=AllowedPaths.within([inside]))
    assert [each.path.name for each in library.scan()[0]] == ["mine.safetensors"]
    with pytest.raises(ValueError, match="outside the allowed folders"):
        library.set([str(outside)])
    (tmp_path / "models.json").write_text(f'{{"folders": ["{outside}", 5]}}')
    assert outside not in library.folders


def test_a_file_knows_the_runs_that_used_it(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.safetensors", DEV)
    store = RunStore(tmp_path / "runs.sqlite")
    folder = new_run_folder(tmp_path / "runs", "cat")
    folder.config.write_text(f'pretrained_model_name_or_path = "{file}"\n')
    store.add(folder, name="cat")
    used = used_by(store)
    assert [run["name"] for run in used(file)] == ["cat"]
    assert used(tmp_path / "other.safetensors") == []


def test_each_family_names_where_each_of_its_files_can_be_had() -> None:
    for card in cards():
        listed = {file.option for file in card.hub.files}
        required = {MODEL, *(part.option for part in card.files.separate_components if not part.optional)}
        assert required <= listed, card.name
        for file in card.hub.files:
            assert hub_file(card.name, file.repo, file.file) is file
            assert title_of(card, file.option)[0].isupper()


def test_only_files_that_the_family_lists_can_be_asked_for() -> None:
    for family, repo, file in (("flux", "evil/repo", "x.safetensors"), ("none", "a/b", "c"), (None, [], {})):
        with pytest.raises(ValueError, match="not one of the files"):
            hub_file(family, repo, file)
