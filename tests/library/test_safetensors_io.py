"""Files appear whole or not at all, and describe themselves for other programs."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sd_scripts.families.cards.model_file import describe
from sd_scripts.formats.atomic_files import atomic_file, atomic_folder
from sd_scripts.formats.disk import saving
from sd_scripts.formats.models.safetensors_header import read_header
from sd_scripts.library.files.model_reader import DTYPES
from sd_scripts.library.files.safetensors_io import model_hash, old_model_hash, save_model, with_hashes

resource = pytest.importorskip("resource", reason="limits the size of files; not on Windows")

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3).T, "b.alpha": torch.tensor(4, dtype=torch.bfloat16)}


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """A disk that is full after 64 KiB, as seen by this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_saved_tensors_are_read_back_with_their_metadata(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "x.safetensors"
    save_model(path, TENSORS, {"ss_steps": "3"})
    assert all(torch.equal(tensor, TENSORS[key]) for key, tensor in load_file(path).items())
    header = read_header(path)
    assert header.metadata == {"ss_steps": "3"}
    assert header.shapes == {"a.weight": (3, 2), "b.alpha": ()}
    assert header.dtypes == {"a.weight": "F32", "b.alpha": "BF16"}
    assert [file.name for file in path.parent.iterdir()] == ["x.safetensors"]


ALL_KINDS = {
    "z.weight": torch.arange(6.0).reshape(2, 3).T,
    "a.weight": torch.arange(3.0).bfloat16(),
    '"größe"\\\n': torch.arange(3.0).half(),
    "none": torch.zeros(0, 4),
    **{str(dtype): torch.ones(3).to(dtype) for dtype in DTYPES.values()},
}


@pytest.mark.parametrize("metadata", [{}, {"modelspec.title": 'Größe "\x7f\x01/\U0001f98a"'}])
def test_the_bytes_match_the_safetensors_library(metadata: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    save_model(ours, ALL_KINDS, metadata)
    save_file({key: tensor.contiguous() for key, tensor in ALL_KINDS.items()}, theirs, metadata)
    assert ours.read_bytes() == theirs.read_bytes()


def test_names_that_cannot_be_encoded_stop_no_file(tmp_path: Path) -> None:
    """A folder's name in Latin-1, as Linux gives it to a program."""
    save_model(tmp_path / "x.safetensors", TENSORS, {"ss_dataset_dirs": os.fsdecode(b"Gr\xf6\xdfe")})
    assert read_header(tmp_path / "x.safetensors").metadata == {"ss_dataset_dirs": "Gr??e"}


def test_tensors_that_share_memory_are_each_written_whole(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "again": whole, "row": whole[1], "column": whole[:, 1], "transposed": whole.T}
    save_model(tmp_path / "x.safetensors", tensors, {})
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("ending", ["safetensors", "ckpt"])
def test_the_dtype_ignores_integer_tensors(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    save_model(path, {"a": torch.tensor([0.1, 1e-9]), "b": torch.tensor([7])}, {}, torch.float16)
    loaded = load_file(path) if ending == "safetensors" else torch.load(path, weights_only=True)
    assert torch.equal(loaded["a"], torch.tensor([0.1, 1e-9]).half())
    assert loaded["a"].dtype == torch.float16
    assert torch.equal(loaded["b"], torch.tensor([7]))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_no_second_copy_of_the_model_is_in_memory(tmp_path: Path) -> None:
    """64 tensors of 4 MiB that have no memory of their own, cast while they are written."""
    script = """
import resource, sys, torch
from pathlib import Path
from sd_scripts.library.files.safetensors_io import save_model
tensors = {str(number): torch.ones(1).expand(1 << 20) for number in range(64)}
save_model(Path(sys.argv[1]) / "warm.safetensors", {"0": tensors["0"]}, {}, torch.float16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save_model(Path(sys.argv[1]) / "x.safetensors", tensors, {}, torch.float16)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    told = subprocess.run([sys.executable, "-c", script, tmp_path], check=True, capture_output=True, text=True)
    assert (tmp_path / "x.safetensors").stat().st_size > 64 * (2 << 20)
    assert int(told.stdout) < 32 << 10, "KiB"


def test_a_file_is_as_readable_as_others_of_this_process(tmp_path: Path) -> None:
    save_model(tmp_path / "x.safetensors", TENSORS, {})
    save_model(tmp_path / "x.ckpt", TENSORS, {})
    (tmp_path / "touched").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_views_of_one_buffer_are_written_to_a_checkpoint_without_the_rest_of_it(tmp_path: Path) -> None:
    one, other = torch.arange(8.0).split([6, 2])
    save_model(tmp_path / "x.ckpt", {"one": one.view(2, 3), "other": other}, {})
    read = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert read["one"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (read["one"].untyped_storage().nbytes(), read["other"].untyped_storage().nbytes()) == (24, 8)


def folder_of(path: Path, title: str) -> None:
    with saving(path), atomic_folder(path, "index.json") as folder:
        (folder / "index.json").write_text(title)
        (folder / title).mkdir()


def test_a_folder_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "model"
    folder_of(path, "first")
    folder_of(path, "second")
    assert {each.name for each in path.iterdir()} == {"index.json", "second"}
    assert (path / "index.json").read_text() == "second"
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_folder(tmp_path / "model", "index.json") as folder:
            (folder / "half").touch()
            raise KeyboardInterrupt

    folder_of(tmp_path / "model", "first")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    assert (tmp_path / "model/index.json").read_text() == "first"


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a letter")
    with pytest.raises(OSError, match=r"model' could not be written: .* choose another output_name$"):
        folder_of(tmp_path / "model", "first")
    assert (tmp_path / "model").read_text() == "a letter"


@pytest.mark.parametrize("ending", ["ckpt", "pt"])
def test_the_extension_chooses_the_format(tmp_path: Path, ending: str) -> None:
    save_model(tmp_path / f"x.{ending}", TENSORS, {})
    loaded = torch.load(tmp_path / f"x.{ending}", weights_only=True)
    assert loaded.keys() == TENSORS.keys()


@pytest.mark.parametrize("ending", ["safetensors", "ckpt"])
@pytest.mark.usefixtures("small_files_only")
def test_a_disk_that_fills_up_leaves_the_old_file_and_no_new_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    save_model(path, TENSORS, {})
    before = path.read_bytes()
    with pytest.raises(OSError, match=rf"'.*x.{ending}' could not be written: "):
        save_model(path, {"big": torch.zeros(1 << 16)}, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    def filling() -> None:
        with saving(tmp_path / "x"), atomic_file(tmp_path / "x") as part:
            part.symlink_to("/dev/full")
            part.write_bytes(b"x")

    with pytest.raises(OSError, match="the disk is full; free some space"):
        filling()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_file(tmp_path / "x") as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/x.safetensors' could not be written: "):
        save_model(tmp_path / "file" / "x.safetensors", TENSORS, {})


def test_the_model_hash_covers_the_tensors_and_not_the_metadata(tmp_path: Path) -> None:
    hashed = with_hashes(TENSORS, {"ss_steps": "3", "modelspec.title": "x"})
    other = with_hashes(TENSORS, {"ss_steps": "4", "ss_seed": "1"})
    assert hashed["sshs_model_hash"] == other["sshs_model_hash"]
    save_model(tmp_path / "x.safetensors", TENSORS, hashed)
    data = (tmp_path / "x.safetensors").read_bytes()
    payload = data[8 + int.from_bytes(data[:8], "little") :]
    assert hashed["sshs_model_hash"] == hashlib.sha256(payload).hexdigest()
    assert hashed["sshs_legacy_hash"] == "e3b0c442", "of files under 1 MiB it is the hash of nothing"


def test_a_checkpoint_has_an_old_and_a_new_hash(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"\0" * 0x100000 + b"\1" * 0x10000 + b"\2")
    assert old_model_hash(path) == hashlib.sha256(b"\1" * 0x10000).hexdigest()[:8]
    assert model_hash(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def written(path: Path, *keys: str, metadata: dict[str, str] | None = None) -> Path:
    save_file({key: torch.zeros(4) for key in keys}, path, metadata)
    return path


@pytest.mark.parametrize(
    ("keys", "family", "variant"),
    [
        (["conditioner.embedders.1.model.ln_final.weight"], "sdxl", "SDXL checkpoint"),
        (["conditioner.embedders.1.model.ln_final.weight", "v_pred"], "sdxl", "SDXL checkpoint, v-prediction"),
        (["conditioner.embedders.0.model.ln_final.weight"], None, "SDXL refiner"),
        (
            ["cond_stage_model.transformer.text_model.final_layer_norm.weight"],
            "sd15",
            "Stable Diffusion 1.5 checkpoint",
        ),
        (["double_blocks.0.img_attn.qkv.weight", "guidance_in.in_layer.weight"], "flux", "FLUX.1 dev"),
        (["model.diffusion_model.double_blocks.0.img_attn.qkv.weight"], "flux", "FLUX.1 schnell"),
        (["model.diffusion_model._orig_mod.label_emb.0.0.weight"], "sdxl", "SDXL U-Net alone"),
        (["_orig_mod.double_blocks.0._orig_mod.img_attn.qkv.weight", "guidance_in.x"], "flux", "FLUX.1 dev"),
        (["lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight"], "sdxl", "SDXL LoRA"),
        (["lora_unet_input_blocks_4_1_transformer_blocks_1_attn1_to_k.lora_down.weight"], "sdxl", "SDXL LoRA"),
        (["lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight"], "flux", "FLUX.1 LoRA"),
        (["transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight"], "flux", "FLUX.1 LoRA"),
        (["unet.down_blocks.0.attentions.0.proj_in.lora_A.weight"], "sd15", "Stable Diffusion 1.5 LoRA"),
        (["decoder.conv_in.weight"], None, "VAE"),
        (["something.else"], None, ""),
    ],
)
def test_a_file_is_recognised_by_its_keys(tmp_path: Path, keys: list[str], family: str | None, variant: str) -> None:
    found = describe(written(tmp_path / "x.safetensors", *keys))
    assert (found.family, found.variant, found.problem) == (family, variant, None)
    assert found.precision == "fp32"
    assert found.bytes > 16


def test_a_lora_names_its_own_base_model(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.safetensors", "x.lora_down.weight", metadata={"ss_base_model_version": "sdxl_base_v1-0"}
    )
    assert describe(path).family == "sdxl"


def test_a_network_of_any_kind_is_recognised_by_its_metadata(tmp_path: Path) -> None:
    metadata = {"ss_network_module": "networks.lora", "ss_base_model_version": "flux1"}
    path = written(tmp_path / "x.safetensors", "x.tensor_of_a_new_kind", metadata=metadata)
    assert (describe(path).family, describe(path).variant) == ("flux", "FLUX.1 LoRA")


def test_a_diffusers_folder_is_recognised_by_its_pipeline(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    assert describe(tmp_path).family == "sdxl"
    (tmp_path / "model_index.json").write_text("{")
    assert "cannot be read" in (describe(tmp_path).problem or "")
    assert "without model_index.json" in (describe(tmp_path / "..").problem or "")


def test_half_a_file_is_distinguished_from_a_whole_one(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", "a", "b")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert (
        describe(path).problem
        == f"'{path}' is cut short: {len(data) - 1} of {len(data)} bytes; download or copy it again"
    )
    path.write_bytes(data[:20])
    assert "cut short or damaged" in (describe(path).problem or "")
    path.write_bytes(b"")
    assert "is empty" in (describe(path).problem or "")


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html></html>", b"PK\3\4" + b"x" * 100])
def test_a_file_of_a_different_kind_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert "is not a safetensors file" in (describe(path).problem or "")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert "file not found" in (describe(tmp_path / "x.safetensors").problem or "")


def test_our_header_reader_agrees_with_the_library(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", "a", "b", metadata={"k": "v"})
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == read_header(path).metadata
        assert set(file.keys()) == set(read_header(path).shapes)
