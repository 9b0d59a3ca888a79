"""Files appear whole or not at all, and say of themselves what other programs ask."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sd_scripts.library.safetensors_io import model_hash, old_model_hash, save_model, whole_file, with_hashes
from sd_scripts.options.model_file import describe, read_header

resource = pytest.importorskip("resource", reason="limits the size of files; not on Windows")

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3).T, "b.alpha": torch.tensor(4, dtype=torch.bfloat16)}


@pytest.fixture
def small_files_only() -> Iterator[None]:
    """A disk that is full after 64 KiB, as far as this process can tell."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_saved_is_read_back_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "x.safetensors"
    save_model(path, TENSORS, {"ss_steps": "3"})
    assert all(torch.equal(tensor, TENSORS[key]) for key, tensor in load_file(path).items())
    header = read_header(path)
    assert header.metadata == {"ss_steps": "3"}
    assert header.shapes == {"a.weight": (3, 2), "b.alpha": ()}
    assert header.dtypes == {"a.weight": "F32", "b.alpha": "BF16"}
    assert [file.name for file in path.parent.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("ending", ["ckpt", "pt"])
def test_the_ending_chooses_the_format(tmp_path: Path, ending: str) -> None:
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


def test_a_full_disk_is_called_so(tmp_path: Path) -> None:
    def filling() -> None:
        with whole_file(tmp_path / "x") as part:
            part.symlink_to("/dev/full")
            part.write_bytes(b"x")

    with pytest.raises(OSError, match="the disk is full; free some space"):
        filling()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with whole_file(tmp_path / "x") as part:
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


def test_a_lora_says_its_base_model_itself(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.safetensors", "x.lora_down.weight", metadata={"ss_base_model_version": "sdxl_base_v1-0"}
    )
    assert describe(path).family == "sdxl"


def test_a_diffusers_folder_is_recognised_by_its_pipeline(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    assert describe(tmp_path).family == "sdxl"
    (tmp_path / "model_index.json").write_text("{")
    assert "cannot be read" in (describe(tmp_path).problem or "")
    assert "without model_index.json" in (describe(tmp_path / "..").problem or "")


def test_half_a_file_is_told_from_a_whole_one(tmp_path: Path) -> None:
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
def test_a_file_of_another_kind_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert "is not a safetensors file" in (describe(path).problem or "")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert "there is no file" in (describe(tmp_path / "x.safetensors").problem or "")


def test_our_header_reader_agrees_with_the_library(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", "a", "b", metadata={"k": "v"})
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == read_header(path).metadata
        assert set(file.keys()) == set(read_header(path).shapes)
