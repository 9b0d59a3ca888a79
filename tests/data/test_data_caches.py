"""Caches: their contents equal a fresh encoding, and outdated entries are rebuilt."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches.cache_files import open_cache
from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.latent_caching import cache_latents
from sd_scripts.data.caches.latent_store import LatentStore
from sd_scripts.data.caches.text_caching import TextStore, cache_text
from sd_scripts.data.plan.buckets import crop_ltrb
from sd_scripts.data.plan.dataset import DataPlan
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.flux.vae import LATENTS as FLUX
from sd_scripts.families.sdxl.vae import LATENTS as SDXL
from tests.support.data import loader_of, make_folder, make_image, plan_data, plan_of, settings_of


class Encoders:
    """Stand-ins for the autoencoder and the text encoders, small and exact; they count their calls."""

    def __init__(self) -> None:
        self.encoded = 0
        self.captions: list[str] = []
        self.told: list[str] = []

    def images(self, pixels: Tensor) -> Tensor:
        self.encoded += len(pixels)
        pooled = torch.nn.functional.avg_pool2d(pixels, 8)
        return torch.cat([pooled, pooled[:, :1]], dim=1).to(torch.bfloat16)

    def text(self, captions: list[Caption]) -> dict[str, Tensor]:
        texts = [caption.text for caption in captions]
        self.captions += texts
        lengths = torch.tensor([float(len(text)) for text in texts])
        return {
            "hidden_state1": lengths[:, None, None].expand(-1, 77, 8).to(torch.bfloat16),
            "hidden_state2": lengths[:, None, None].expand(-1, 77, 12),
            "pool2": lengths[:, None].expand(-1, 12),
        }

    def cache_latents(self, plan: DataPlan, *, vae: str = "vae", **how: Any) -> LatentStore:
        return cache_latents(plan, self.images, encoder_key=vae, layout=SDXL, job=self.job(**how))

    def cache_text(self, plan: DataPlan, *, encoder: str = "te", **how: Any) -> TextStore:
        return cache_text(plan, self.text, encoder_key=encoder, suffix="te_outputs", job=self.job(**how))

    def job(self, **how: Any) -> CacheJob:
        return CacheJob(**{"warn": self.told.append, "to_disk": True, **how})


def as_npz_of_other_trainers(folder: Path, plan: DataPlan) -> None:
    """Turn the caches in a folder into what sd-scripts would have written: opacity in 0..1, and no cache keys."""
    sizes = {item.path.stem: item.size for item in plan.items}
    for file in folder.glob("*.safetensors"):
        with open_cache(file) as cache:
            arrays: dict[str, Any] = {name: cache[name].float().numpy() for name in cache}
        for name in list(arrays):
            if name.startswith("alpha_mask"):
                arrays[name] = arrays[name] / 255
            if name.startswith("latents_") and "flipped" not in name:
                ending = name.removeprefix("latents")
                height, width = arrays[name].shape[1:]
                size = sizes[file.stem.partition("_")[0]]
                arrays |= {f"original_size{ending}": np.array(size)}
                arrays |= {f"crop_ltrb{ending}": np.array(crop_ltrb((width * 8, height * 8), size))}
        np.savez(file.with_suffix(".npz"), **arrays)
        file.unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_folder(tmp_path / "train/2_cat", [(64, 64), (64, 64), (128, 64), (70, 60)])
    return tmp_path / "train"


@pytest.fixture
def encoders() -> Encoders:
    return Encoders()


def epoch_of(plan: DataPlan, workers: int = 0, **stores: Any) -> list[Batch]:
    return list(loader_of(plan, workers, **stores).epoch(1))


@pytest.mark.parametrize("to_disk", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_cached_latents_equal_the_encoded_images_flips_included(
    root: Path, encoders: Encoders, to_disk: bool, workers: int
) -> None:
    plan = plan_of(root, flip_aug=True, train_batch_size=2)
    latents = encoders.cache_latents(plan, to_disk=to_disk, batch_size=2)
    cached = epoch_of(plan, workers, latents=latents)
    for batch, fresh in zip(cached, epoch_of(plan), strict=True):
        assert batch.captions == fresh.captions
        assert batch.pixels is None
        assert batch.latents is not None
        assert fresh.pixels is not None
        assert torch.equal(batch.latents, encoders.images(fresh.pixels)), "in the dtype of the encoder"
        assert torch.equal(batch.conditioning["sizes"], fresh.conditioning["sizes"])


def test_a_valid_cache_is_not_rebuilt(root: Path, encoders: Encoders) -> None:
    plan = plan_of(root)
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    images, captions = encoders.encoded, len(encoders.captions)
    encoders.cache_latents(plan_of(root))
    encoders.cache_text(plan_of(root))
    assert (encoders.encoded, len(encoders.captions)) == (images, captions) == (4, 4)


@pytest.mark.parametrize(
    ("changed", "made_again"),
    [
        ({"resolution": "96"}, 4),
        ({"resize_interpolation": "nearest"}, 4),
        ({"flip_aug": True}, 8),
        ({"alpha_mask": True}, 4),
        ({"caption_prefix": "x"}, 0),
    ],
)
def test_latents_are_rebuilt_when_their_inputs_change(
    root: Path, encoders: Encoders, changed: dict[str, Any], made_again: int
) -> None:
    encoders.cache_latents(plan_of(root))
    before = encoders.encoded
    encoders.cache_latents(plan_of(root, **changed))
    assert encoders.encoded - before == made_again


def test_latents_are_rebuilt_for_a_different_image_or_autoencoder(root: Path, encoders: Encoders) -> None:
    encoders.cache_latents(plan_of(root))
    make_image(root / "2_cat/00.png", seed=99)
    encoders.cache_latents(plan_of(root))
    assert encoders.encoded == 5
    encoders.cache_latents(plan_of(root), vae="another")
    assert encoders.encoded == 9


def test_one_file_stores_several_sizes_of_an_image(root: Path, encoders: Encoders) -> None:
    encoders.cache_latents(plan_of(root))
    encoders.cache_latents(plan_of(root, resolution="96"))
    with safe_open(root / "2_cat/00_0064x0064_sdxl.safetensors", "pt") as file:
        assert set(file.keys()) == {"latents_8x8", "latents_12x12"}
        assert file.get_tensor("latents_8x8").dtype == torch.bfloat16
        assert {"cache_key_8x8", "cache_key_12x12"} <= set(file.metadata())
    encoders.cache_latents(plan_of(root))
    assert encoders.encoded == 8


def write_foreign(root: Path, plan: DataPlan, size_suffix: str, name: str) -> None:
    for item in plan.items:
        width, height = item.fit.bucket.size
        size = size_suffix.format(h=height // 8, w=width // 8)
        arrays = {
            f"latents{size}": np.full((4, height // 8, width // 8), 5, np.float32),
            f"original_size{size}": np.array(item.size),
            f"crop_ltrb{size}": np.array(crop_ltrb(item.fit.bucket.size, item.size)),
        }
        np.savez(item.path.with_name(name.format(stem=item.path.stem, w=item.size[0], h=item.size[1])), **arrays)


@pytest.mark.parametrize("name", ["{stem}_{w:04d}x{h:04d}_sdxl.npz", "{stem}.npz"])
@pytest.mark.parametrize("size_suffix", ["", "_{h}x{w}"])
def test_files_of_both_dialects_written_elsewhere_are_read(
    root: Path, encoders: Encoders, size_suffix: str, name: str
) -> None:
    plan = plan_of(root)
    write_foreign(root, plan, size_suffix, name)
    latents = encoders.cache_latents(plan)
    assert encoders.encoded == 0
    assert all((batch.latents == 5).all() for batch in epoch_of(plan, latents=latents) if batch.latents is not None)


def test_files_written_for_a_different_model_are_not_used(root: Path, encoders: Encoders) -> None:
    """FLUX.1's latents have more channels; files named after the image alone are SDXL's."""

    def images(pixels: Tensor) -> Tensor:
        return encoders.images(pixels).repeat(1, 4, 1, 1)

    def cache(**how: Any) -> LatentStore:
        return cache_latents(plan, images, encoder_key="vae", layout=FLUX, job=encoders.job(**how))

    plan = plan_of(root)
    write_foreign(root, plan, "", "{stem}.npz")
    cache(skip_check=True)
    assert encoders.encoded == 4

    write_foreign(root, plan, "_{h}x{w}", "{stem}_{w:04d}x{h:04d}_flux.npz")
    for file in (root / "2_cat").glob("*.safetensors"):
        file.unlink()
    latents = cache(skip_check=True)
    with pytest.raises(ValueError, match=r"latents have shape \(4, 8, 8\); turn off skip_cache_check$"):
        list(loader_of(plan, warn=encoders.told.append, latents=latents).epoch(1))
    latents = cache()
    assert {batch.latents.shape[1] for batch in epoch_of(plan, latents=latents) if batch.latents is not None} == {16}


def test_files_written_elsewhere_for_a_different_size_are_not_used(root: Path, encoders: Encoders) -> None:
    write_foreign(root, plan_of(root), "", "{stem}_{w:04d}x{h:04d}_sdxl.npz")
    encoders.cache_latents(plan_of(root, resolution="96"))
    assert encoders.encoded == 4


@pytest.mark.parametrize("left", [0, 5, 300, -1])
def test_a_truncated_cache_is_reported_and_rebuilt(root: Path, encoders: Encoders, left: int) -> None:
    plan = plan_of(root)
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    for file in (root / "2_cat").glob("00_*.safetensors"):
        file.write_bytes(file.read_bytes()[:left])
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    assert len(encoders.told) == 2
    assert all("damaged" in text for text in encoders.told)
    assert (encoders.encoded, len(encoders.captions)) == (5, 5)
    assert not list((root / "2_cat").glob("*.part"))


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6).reshape(2, 3).astype(kind) for kind in ("<f4", ">f8", "<f2", "<i8", "|u1", "|b1")),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        *(np.array(3.5), np.zeros((0, 4)), np.zeros(5, np.float32)),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_like_numpy(tmp_path: Path, array: Any, save: Any) -> None:
    save(tmp_path / "a.npz", array=array, other=np.zeros(1))
    with open_cache(tmp_path / "a.npz") as tensors, np.load(tmp_path / "a.npz") as theirs:
        assert set(tensors) == set(theirs)
        assert "array" in tensors
        assert tensors["array"].numpy().dtype == theirs["array"].dtype.newbyteorder("=")
        assert np.array_equal(tensors["array"].numpy(), theirs["array"])
        assert tensors["array"].numpy().flags.writeable
        assert tensors.get("none") is None
        assert tensors.cache_key() is None


def flipped(content: bytes, at: float) -> bytes:
    place = int(len(content) * at)
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


def npz(method: int = zipfile.ZIP_STORED, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if method else np.savez)(file, **arrays)
    return file.getvalue()


def npy(array: Any, *, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def lying_shape() -> bytes:
    """A file whose header claims arrays larger than any memory."""
    header = npy(np.zeros((4, 8, 8), np.float32)).replace(b"(4, 8, 8), }        ", b"(9999999999999,), } ")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("latents_8x8", "original_size_8x8"):
            archive.writestr(f"{name}.npy", header)
    return file.getvalue()


LATENTS = {"latents": np.ones((4, 8, 8), np.float32), "crop_ltrb": np.array([0.0, 0, 64, 64])}
ENCRYPTED = (6, b"PK\x03\x04"), (8, b"PK\x01\x02")
UNKNOWN_METHOD = (8, b"PK\x03\x04"), (10, b"PK\x01\x02")


def marked(content: bytes, places: tuple[tuple[int, bytes], ...], value: int) -> bytes:
    """Every header of a zip with another byte."""
    changed = bytearray(content)
    for offset, signature in places:
        at = content.find(signature)
        while at >= 0:
            changed[at + offset] = value
            at = content.find(signature, at + 1)
    return bytes(changed)


FOREIGN = {"original_size": np.array([64, 64]), **LATENTS}
DAMAGE = {
    "empty": b"",
    "text": b"no archive",
    "compressed, flipped": flipped(npz(zipfile.ZIP_DEFLATED, **FOREIGN, noise=np.arange(900)), 0.1),
    "npy": npy(np.ones((4, 8, 8), np.float32)),
    "encrypted": marked(npz(**FOREIGN), ENCRYPTED, 1),
    "unknown method": marked(npz(**FOREIGN), UNKNOWN_METHOD, 77),
    "size without dimensions": npz(**LATENTS, original_size=np.array(64)),
    "not finite": npz(**{**FOREIGN, "latents": np.full((4, 8, 8), np.nan, np.float32)}),
    "text for numbers": npz(**{**FOREIGN, "latents": np.full((4, 8, 8), "x")}),
    "pickled": npz(**{**FOREIGN, "latents": np.array({}, object)}),
    "too large for any memory": lying_shape(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_cache_is_reported_and_rebuilt(root: Path, encoders: Encoders, damage: str) -> None:
    plan = plan_of(root)
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    names = ("00_0064x0064_sdxl.npz", "00_te_outputs.npz")
    for name in names:
        (root / "2_cat" / name).with_suffix(".safetensors").unlink()
        (root / "2_cat" / name).write_bytes(DAMAGE[damage])
    latents, text = encoders.cache_latents(plan), encoders.cache_text(plan)
    assert (encoders.encoded, len(encoders.captions)) == (5, 5)
    assert any(names[0] in line and line.endswith("it is rebuilt") for line in encoders.told)
    assert len(epoch_of(plan, latents=latents, text=text)) == 8
    encoders.told.clear()
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    assert (encoders.encoded, len(encoders.captions), encoders.told) == (5, 5, [])


@pytest.mark.parametrize("at", [0.4, 0.7, 0.9])
def test_a_flipped_bit_in_a_cache_is_found_before_the_first_step(root: Path, encoders: Encoders, at: float) -> None:
    plan = plan_of(root)
    encoders.cache_latents(plan)
    encoders.cache_text(plan)
    for name in ("02_0128x0064_sdxl.safetensors", "02_te_outputs.safetensors"):
        file = root / "2_cat" / name
        file.write_bytes(flipped(file.read_bytes(), at))
    latents, text = encoders.cache_latents(plan), encoders.cache_text(plan)
    assert (encoders.encoded, len(encoders.captions)) == (5, 5)
    assert len(encoders.told) == 2
    assert len(epoch_of(plan, latents=latents, text=text)) == 8


def test_an_image_replaced_under_the_same_size_and_time_is_encoded_again(root: Path, encoders: Encoders) -> None:
    for number in (1, 3):  # a small file, and one that is looked at in pieces
        side = 64 if number == 1 else 512
        Image.new("RGB", (side, side), "white").save(root / f"2_cat/0{number}.bmp")
        (root / f"2_cat/0{number}.png").unlink()
    encoders.cache_latents(plan_of(root))
    for number in (1, 3):
        file = root / f"2_cat/0{number}.bmp"
        before = file.stat()
        file.write_bytes(file.read_bytes()[: 54 + 30] + b"\x10" * (before.st_size - 84))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    encoders.cache_latents(plan_of(root))
    assert encoders.encoded == 6
    for file in root.rglob("*.bmp"):  # a copy with a different time has the same content
        os.utime(file, (1, 1))
    encoders.cache_latents(plan_of(root))
    assert encoders.encoded == 6


@pytest.mark.parametrize("options", [{}, {"flip_aug": True, "alpha_mask": True}])
def test_npz_caches_of_other_trainers_are_read(root: Path, encoders: Encoders, options: dict[str, Any]) -> None:
    make_image(root / "2_cat/01.png", mode="RGBA")
    plan = plan_of(root, **options)
    fresh = epoch_of(plan, latents=encoders.cache_latents(plan), text=encoders.cache_text(plan))
    as_npz_of_other_trainers(root / "2_cat", plan)
    encoded = (encoders.encoded, len(encoders.captions))
    read = epoch_of(plan, latents=encoders.cache_latents(plan), text=encoders.cache_text(plan, skip_check=True))
    assert (encoders.encoded, len(encoders.captions)) == encoded
    for one, other in zip(read, fresh, strict=True):
        assert one.latents.dtype == torch.float32
        assert torch.equal(one.latents, other.latents.float())
        assert one.mask is other.mask or torch.equal(one.mask, other.mask)
        assert all(torch.equal(one.text[name], other.text[name].float()) for name in other.text)


def test_skip_cache_check_trusts_an_existing_file(root: Path, encoders: Encoders) -> None:
    encoders.cache_latents(plan_of(root))
    encoders.cache_text(plan_of(root))
    encoders.cache_latents(plan_of(root), vae="another", skip_check=True)
    encoders.cache_text(plan_of(root, caption_prefix="x"), skip_check=True)
    assert (encoders.encoded, len(encoders.captions)) == (4, 4)


@pytest.mark.parametrize("to_disk", [True, False])
def test_cached_text_belongs_to_the_processed_caption(root: Path, encoders: Encoders, to_disk: bool) -> None:
    plan = plan_of(root, caption_prefix="photo of", train_batch_size=2, cache_latents=True)
    text = encoders.cache_text(plan, to_disk=to_disk)
    assert all(caption.startswith("photo of a, b, c, ") for caption in encoders.captions)
    for batch in epoch_of(plan, text=text):
        assert set(batch.text) == {"hidden_state1", "hidden_state2", "pool2"}
        assert batch.text["hidden_state1"].shape == (len(batch), 77, 8)
        assert batch.text["pool2"][:, 0].tolist() == [len(caption.text) for caption in batch.captions]


def test_text_is_encoded_again_when_the_caption_or_the_encoders_change(root: Path, encoders: Encoders) -> None:
    encoders.cache_text(plan_of(root))
    (root / "2_cat/00.txt").write_text("new words")
    encoders.cache_text(plan_of(root))
    assert encoders.captions[4:] == ["new words"]
    encoders.cache_text(plan_of(root, caption_suffix="y"))
    assert len(encoders.captions) == 9
    encoders.cache_text(plan_of(root, caption_suffix="y"), encoder="another")
    assert len(encoders.captions) == 13


def test_text_written_elsewhere_does_not_identify_its_caption_and_is_encoded_again(
    root: Path, encoders: Encoders
) -> None:
    np.savez(root / "2_cat/00_te_outputs.npz", hidden_state1=np.zeros((77, 8)))
    encoders.cache_text(plan_of(root))
    assert len(encoders.captions) == 4


def test_equal_captions_are_encoded_once(tmp_path: Path, encoders: Encoders) -> None:
    for number in range(3):
        make_image(tmp_path / f"train/1_cat/{number}.png")
    plan = plan_of(tmp_path / "train", told=[])
    text = encoders.cache_text(plan)
    assert encoders.captions == ["cat"]
    assert len(epoch_of(plan, text=text)) == 3


def test_ranks_share_the_work_on_disk(root: Path, encoders: Encoders) -> None:
    plan = plan_of(root)
    encoders.cache_latents(plan, rank=0, world=2)
    encoders.cache_text(plan, rank=0, world=2)
    assert (encoders.encoded, len(encoders.captions)) == (2, 2)
    latents = encoders.cache_latents(plan, rank=1, world=2)
    text = encoders.cache_text(plan, rank=1, world=2)
    assert (encoders.encoded, len(encoders.captions)) == (4, 4)
    assert len(epoch_of(plan, latents=latents, text=text)) == 8


def test_an_image_that_cannot_be_read_is_reported_and_replaced(root: Path, encoders: Encoders) -> None:
    plan = plan_of(root)
    broken = root / "2_cat/00.png"
    broken.write_bytes(broken.read_bytes()[:200])
    for to_disk in (True, False):
        latents = encoders.cache_latents(plan, to_disk=to_disk)
        told: list[str] = []
        batches = list(loader_of(plan, warn=told.append, latents=latents).epoch(1))
        assert len(batches) == 8
        assert not any(caption.text.endswith(", 0") for batch in batches for caption in batch.captions)
        assert len(told) == 1
    assert "00.png cannot be read" in encoders.told[0]


def test_latents_that_are_not_finite_name_the_image_and_the_remedy(root: Path, encoders: Encoders) -> None:
    def broken(pixels: Tensor) -> Tensor:
        return pixels * float("nan")

    with pytest.raises(ValueError, match=r"vae: the latents of .*png are not finite; turn on no_half_vae"):
        cache_latents(plan_of(root), broken, encoder_key="v", layout=SDXL, job=encoders.job(to_disk=False))


def test_a_cache_that_cannot_be_written_is_reported_in_one_sentence(root: Path, encoders: Encoders) -> None:
    (root / "2_cat/00_0064x0064_sdxl.safetensors").mkdir()
    with pytest.raises(
        OSError, match=r"^cache_latents_to_disk: .*00_0064x0064_sdxl\.safetensors' cannot be written \("
    ):
        encoders.cache_latents(plan_of(root))
    assert not list((root / "2_cat").glob("*.part"))


def test_progress_counts_existing_files(root: Path, encoders: Encoders) -> None:
    seen: list[tuple[int, int]] = []
    encoders.cache_latents(plan_of(root), progress=lambda done, total: seen.append((done, total)))
    assert (seen[0], seen[-1]) == ((0, 4), (4, 4))
    seen.clear()
    encoders.cache_latents(plan_of(root), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 4)]


def test_the_opacity_of_a_cached_image_flips_with_it(tmp_path: Path, encoders: Encoders) -> None:
    image = make_image(tmp_path / "train/8_cat/a.png", mode="RGBA")
    image.with_suffix(".txt").write_text("words")
    plan = plan_of(tmp_path / "train", alpha_mask=True, flip_aug=True)
    fresh = epoch_of(plan)
    for to_disk in (True, False):
        cached = epoch_of(plan, latents=encoders.cache_latents(plan, to_disk=to_disk))
        for one, other in zip(cached, fresh, strict=True):
            assert one.mask is not None
            assert other.mask is not None
            assert torch.allclose(one.mask, other.mask)


@pytest.mark.parametrize("told_size", [True, False])
def test_an_image_with_only_its_cache_left_is_trained_from_the_cache(
    root: Path, encoders: Encoders, told_size: bool
) -> None:
    encoders.cache_latents(plan_of(root))
    (root / "2_cat/02.png").unlink()
    entry = {"caption": "wide", **({"image_size": [128, 64]} if told_size else {})}
    (root / "meta.json").write_text(json.dumps({"02.png": entry, "00.png": {"caption": "here"}}))
    asked = settings_of(in_json=root / "meta.json", train_data_dir=root / "2_cat")
    plan = plan_data(asked, seed=7, warn=pytest.fail)
    images = encoders.encoded
    batches = epoch_of(plan, latents=encoders.cache_latents(plan))
    assert sorted(batch.captions[0].text for batch in batches) == ["here", "wide"]
    assert encoders.encoded == images


def test_caches_of_images_with_the_longest_names_have_shortened_ones(tmp_path: Path, encoders: Encoders) -> None:
    stems = ("x" * 251, "x" * 250 + "y", "é" * 125, "语" * 83, "z" * 200)
    for stem in stems:
        image = make_image(tmp_path / f"1_x/{stem}.png")
        if len(stem.encode()) < 251:
            image.with_suffix(".txt").write_text("a")
    make_image(tmp_path / f"1_x/{stems[0]}.bmp")  # of the same stem
    for run in range(2):
        plan = plan_of(tmp_path, told=[])
        latents, text = encoders.cache_latents(plan), encoders.cache_text(plan)
        batches = epoch_of(plan, latents=latents, text=text)
        assert len(batches) == encoders.encoded == 6, run
    for ending in ("_0064x0064_sdxl.safetensors", "_te_outputs.safetensors"):
        caches = [path.name for path in (tmp_path / "1_x").glob(f"*{ending}")]
        assert len(caches) == 6
        assert f"{stems[4]}{ending}" in caches
        assert sum(name.startswith("语" * 50) for name in caches) == 1


def test_images_with_the_same_stem_stay_separate(tmp_path: Path, encoders: Encoders) -> None:
    make_image(tmp_path / "train/1_cat/a.png", seed=1)
    make_image(tmp_path / "train/1_cat/a.bmp", seed=2).with_suffix(".txt").write_text("words")
    plan = plan_of(tmp_path / "train")
    latents, text = encoders.cache_latents(plan), encoders.cache_text(plan)
    one, other = (batch.latents for batch in epoch_of(plan, latents=latents, text=text))
    assert one is not None
    assert other is not None
    assert not torch.equal(one, other)
