"""How long the components of a base model are in memory: each from when it is loaded until nothing needs it."""

import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from sd_scripts.families.common.components import WeightSource
from sd_scripts.library.files.model_reader import read_weights
from tests.support.training import CAPTIONS_IN_THE_STEP, ENCODED, images, train, train_whole

pytestmark = pytest.mark.run

VAES = {"sdxl": "AutoencoderKL", "flux": "AutoencoderKL", "qwen_image": "AutoencoderKLQwenImage"}
VAE = VAES["flux"]
ENCODERS = {
    "sdxl": ("CLIPTextModel", "CLIPTextModelWithProjection"),
    "flux": ("CLIPTextModel", "T5EncoderModel"),
    "qwen_image": ("Qwen2_5_VLTextModel",),
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[str]]]:
    """Loaded components, and which of the earlier ones are alive then: classes, in order."""
    load, loads, made = WeightSource.load, [], []

    def observed(source: WeightSource) -> nn.Module:
        alive = {type(module).__name__ for each in made if (module := each()) is not None}
        module = load(source)
        if type(module).__name__ in VAES.values():  # the first one of a run
            made.clear()
        loads.append((type(module).__name__, alive))
        made.append(weakref.ref(module))
        return module

    monkeypatch.setattr(WeightSource, "load", observed)
    return loads


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("a red circle --w 64 --h 64 --s 2 --d 7 --l 3 --n a blue square\n")
    return path


def test_each_component_is_freed_before_the_denoiser_is_loaded_and_later_runs_load_it_alone(
    each_miniature: Any, tmp_path: Path, loads: list[tuple[str, set[str]]]
) -> None:
    data = images(tmp_path / "images")
    first, *second = ENCODERS[each_miniature.family]
    encoders = [(VAES[each_miniature.family], set()), (first, set()), *((each, {first}) for each in second)]
    options = {"max_train_steps": 1, "train_data_dir": data, **ENCODED}
    assert train(each_miniature, tmp_path / "out", **options).status == 0
    (denoiser, alive) = loads.pop()
    assert loads == encoders
    assert alive == set(), denoiser
    loads.clear()
    assert train(each_miniature, tmp_path / "again", **options).status == 0
    assert [name for name, _ in loads] == [denoiser]


def test_samples_and_a_compiled_vae_load_the_vae_although_all_latents_are_on_disk(
    any_miniature: Any, tmp_path: Path, prompts: Path, loads: list[tuple[str, set[str]]]
) -> None:
    compiled = {"compile": True, "compile_vae": True, "compile_backend": "eager"}
    for options in ({}, {"sample_prompts": prompts}, compiled):  # the first fills the caches
        loads.clear()
        assert train(any_miniature, tmp_path / "out", max_train_steps=1, **ENCODED, **options).status == 0
        assert VAE in {name for name, _ in loads}


def test_samples_need_no_text_encoder_and_show_the_same_image(
    each_miniature: Any, tmp_path: Path, prompts: Path, loads: list[tuple[str, set[str]]]
) -> None:
    data = images(tmp_path / "images")
    options = {"sample_prompts": prompts, "sample_at_first": True, "train_data_dir": data, "max_train_steps": 1}
    ahead, vae = train(each_miniature, tmp_path / "ahead", **options), VAES[each_miniature.family]
    assert loads[-1][1] == {vae}
    in_the_step = train(each_miniature, tmp_path / "in_the_step", **options, **CAPTIONS_IN_THE_STEP)
    assert loads[-1][1] == {vae, *ENCODERS[each_miniature.family]}
    shown, wanted = (Path(run.events_of("sample")[0]["path"]).read_bytes() for run in (ahead, in_the_step))
    assert shown == wanted


def test_a_trained_encoder_stays_and_the_other_one_is_freed(
    flux_miniature: Any, tmp_path: Path, prompts: Path, loads: list[tuple[str, set[str]]]
) -> None:
    rates = {"text_encoder_lr": [1.0, 0.0], "network_train_unet_only": None}
    run = train(flux_miniature, tmp_path / "out", sample_prompts=prompts, sample_every_n_steps=1, **rates)
    assert loads[-1][1] == {VAE, "CLIPTextModel"}
    assert len({Path(event["path"]).read_bytes() for event in run.events_of("sample")}) == 3


def test_components_saved_with_a_whole_model_stay(
    each_miniature: Any, tmp_path: Path, loads: list[tuple[str, set[str]]]
) -> None:
    """SDXL is saved with VAE and text encoders."""
    assert train_whole(each_miniature, tmp_path / "out", max_train_steps=1).status == 0
    kept = {VAE, *ENCODERS["sdxl"]} if each_miniature.family == "sdxl" else set()
    assert loads[-1][1] == kept


def test_a_tensor_that_is_converted_is_freed_before_the_next_one() -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    wide = {name: weakref.ref(tensor) for name, tensor in state.items()}
    seen: list[list[str]] = []

    def keep(name: str, tensor: Tensor) -> bool:
        seen.append([other for other, each in wide.items() if each() is not None])
        return False

    empty = module.to("meta")
    source = WeightSource(
        empty=empty, make=lambda: empty, path="", read=lambda *_: state, dtype=torch.bfloat16, keep=keep
    )
    assert {p.dtype for p in source.load().parameters()} == {torch.bfloat16}
    names = list(wide)
    assert seen == [names[n:] for n in range(len(names))]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which files are open")
@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_of_thousands_of_tensors_is_read_with_few_open_files(tmp_path: Path, mmap: bool) -> None:
    """Full-size models have more tensors than a process may have open files."""
    dtypes = (torch.float32, torch.bfloat16, torch.uint8)
    tensors = {f"a{n}": torch.full((n % 3, 5), n % 100, dtype=dtypes[n % len(dtypes)]) for n in range(1, 3000)}
    safetensors.torch.save_file(tensors, tmp_path / "many.safetensors")
    before = len(list(Path("/proc/self/fd").iterdir()))
    state = read_weights(tmp_path / "many.safetensors", "model", mmap=mmap)
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[key], tensor) and state[key].dtype == tensor.dtype for key, tensor in tensors.items())
    some = read_weights(tmp_path / "many.safetensors", "model", mmap=mmap, prefix="a29")
    assert some.keys() == {key for key in tensors if key.startswith("a29")}
