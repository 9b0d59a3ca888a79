"""What holds for every family: runs of the whole trainer on its miniature, from settings to file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from sd_scripts.families.cards.registry import card_of
from tests.support import miniatures
from tests.support.data import make_folder
from tests.support.training import GRAPHS, ON_REQUEST, TEXT_ENCODERS_TOO, Run, equal, images, train

ON_DISK = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
UNCACHED = {"cache_latents": None, "cache_text_encoder_outputs": None}
BY_CHANCE = {
    **TEXT_ENCODERS_TOO,
    **{"shuffle_caption": True, "network_dropout": 0.2, "network_args": ["rank_dropout=0.3"]},
    **{"max_train_steps": 4, "validation_split": 0.4, "validation_seed": 3, "validate_every_n_steps": 100},
}
"""Four steps, which draw all that a run can draw: of five images, three are an epoch and two are for validation."""


MINIATURES = {**miniatures.MINIATURES, "flux": "any_miniature"}
FAMILIES = sorted(MINIATURES, key=lambda family: bool(card_of(family).derived_from))
with_own_code = pytest.mark.parametrize(
    "each_miniature", [family for family in FAMILIES if not card_of(family).derived_from], indirect=True
)
"""For behaviour that a derived family inherits from another family's code."""

pytestmark = [
    pytest.mark.run,
    pytest.mark.usefixtures("no_graphs"),
]


@pytest.fixture(scope="module", params=FAMILIES)
def each_miniature(request: pytest.FixtureRequest) -> Any:
    """Every family, including derived ones, which come last."""
    return request.getfixturevalue(MINIATURES[request.param])


@pytest.fixture(scope="module")
def plain(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps without anything special; their caches are left on disk. Do not write to it."""
    return train(each_miniature, tmp_path_factory.mktemp("plain") / "out", **ON_DISK)


@pytest.fixture(scope="module")
def undisturbed(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps of text encoders and denoiser. Do not write to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    root = images(folder / "images", count=5)
    asked = ON_REQUEST.get(each_miniature.family, {})
    return train(each_miniature, folder / "out", train_data_dir=root, **BY_CHANCE, **asked)


@pytest.fixture(scope="module")
def watched(undisturbed: Run, each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same with samples, validation and states. Do not write to it."""
    folder = tmp_path_factory.mktemp("watched")
    one = " --f 1" if card_of(each_miniature.family).clips else ""  # of a clip the mp4 is read in other tests
    (folder / "prompts.txt").write_text(
        f"a red circle --w 64 --h 64 --s 2 --d 7{one}\na blue square --w 64 --h 128 --s 1 --l 1{one}\n"
    )
    watching = {
        **{"sample_prompts": folder / "prompts.txt", "sample_every_n_steps": 2, "sample_at_first": True},
        **{"validate_every_n_steps": 2, "save_state": True, "save_every_n_steps": 2},
    }
    root = undisturbed.output.parent / "images"
    return train(each_miniature, folder / "out", train_data_dir=root, **{**BY_CHANCE, **watching})


def test_a_run_leaves_a_lora_and_nothing_else_next_to_its_folder(plain: Run) -> None:
    assert plain.status == 0
    assert plain.files == ["short.safetensors"]
    assert plain.events_of("warning") == []


def test_every_layer_is_in_the_file_and_has_been_trained(plain: Run) -> None:
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in plain.tensors().items():
        layer, _, part = key.partition(".")
        layers.setdefault(layer, {})[part] = tensor
    assert all(name.startswith("lora_unet_") for name in layers)
    assert {frozenset(components) for components in layers.values()} == {
        frozenset({"alpha", "lora_down.weight", "lora_up.weight"})
    }
    assert all(len(components["lora_down.weight"]) == 2 and components["alpha"] == 1 for components in layers.values())
    moved = [components["lora_up.weight"].any() for components in layers.values()]
    assert sum(moved) > 0.8 * len(moved), "layers behind which nothing is read cannot learn"


def test_every_step_is_reported_once_in_order_with_a_finite_loss(plain: Run) -> None:
    assert plain.steps == [1, 2, 3]
    assert all(math.isfinite(loss) for loss in plain.losses)
    assert [event["lr"] for event in plain.events_of("step")] == [{"unet": 0.01}] * 3


def test_events_are_in_the_order_of_the_run(plain: Run) -> None:
    kinds = [event["kind"] for event in plain.events]
    assert kinds[0] == "phase"
    assert [kind for kind in kinds if kind != "phase"] == [
        "started", "step", "step", "epoch", "step", "epoch", "saved", "finished",
    ]  # fmt: skip
    (started,) = plain.events_of("started")
    assert (started["max_steps"], started["epochs"], started["batches_per_epoch"]) == (3, 2, 2)
    assert plain.events_of("finished")[0]["path"] == str(plain.output / "short.safetensors")


def test_the_file_records_its_training_steps(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    assert (told["ss_steps"], told["ss_seed"], told["ss_max_train_steps"]) == ("3", "1", "3")
    assert told["modelspec.architecture"].endswith("/lora")


@with_own_code
def test_training_continues_from_a_saved_file_and_lowers_the_loss(
    plain: Run, each_miniature: Any, tmp_path: Path
) -> None:
    """Compared with a run that sees the same images, noise and timesteps at rate 0: it saves the loaded weights."""
    longer = {"max_train_steps": 10, "network_weights": plain.output / "short.safetensors"}
    learning, standing = (
        train(each_miniature, tmp_path / str(rate), learning_rate=rate, **longer) for rate in (2e-2, 1e-12)
    )
    loaded, saved = plain.tensors(), standing.tensors()
    assert loaded.keys() == saved.keys()
    torch.testing.assert_close(saved, loaded, rtol=0, atol=1e-9)
    assert standing.losses[0] != plain.losses[0], "the first loss equals the file's"
    assert sum(learning.losses[5:]) < 0.97 * sum(standing.losses[5:])


def test_without_caches_and_with_checkpointing_losses_are_the_same(
    plain: Run, each_miniature: Any, tmp_path: Path
) -> None:
    """Images and captions are encoded in the step, and activations are recomputed in backward."""
    lean = train(each_miniature, tmp_path / "out", gradient_checkpointing=True, **UNCACHED)
    assert lean.losses == pytest.approx(plain.losses, rel=1e-5)


@with_own_code
def test_compiled_and_checkpointed_it_trains_identically_from_disk_caches(
    plain: Run, each_miniature: Any, tmp_path: Path
) -> None:
    """float32, same seed: six digits agree. Dynamo alone decides what the graphs are; AOTAutograd on blocks of SDXL
    and FLUX.1 is tested in test_compile.py and test_block_swap.py, with a LoRA of SDXL in test_folded_lora.py."""
    root = plain.output.parent / "images"
    made = {path: path.stat().st_mtime_ns for path in root.rglob("*.safetensors")}
    assert len(made) == 4
    backend = "aot_eager" if each_miniature.family == "qwen_image" else "eager"
    compiled = {"compile": True, "compile_backend": backend, "gradient_checkpointing": True}
    fast = train(each_miniature, tmp_path / "fast", train_data_dir=root, **ON_DISK, **compiled)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.safetensors")} == made
    assert fast.losses == pytest.approx(plain.losses, rel=1e-5)
    ours, theirs = fast.tensors(), plain.tensors()
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }
    (told,) = fast.events_of("compile")
    assert (told["graphs"], told["breaks"]) == (GRAPHS[each_miniature.family], 0)


@pytest.mark.parametrize("family", [family for family in FAMILIES if card_of(family).derived_from])
def test_images_of_two_sizes_share_a_run_and_each_size_gets_its_graphs_once(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """None is left to run eagerly, with control images of both sizes. Of the other families test_planned_runs.py
    counts the graphs of several sizes."""
    miniature = request.getfixturevalue(MINIATURES[family])
    make_folder(tmp_path / "mixed" / "1_both", [(96, 96), (96, 96), (128, 64)])
    values = {
        "resolution": "96,96",
        "train_data_dir": tmp_path / "mixed",
        "train_batch_size": 2,
    }
    eager = train(miniature, tmp_path / "eager", **values)
    traced = train(miniature, tmp_path / "traced", **values, compile=True, compile_backend="eager")
    assert len(traced.events_of("started")[0]["shapes"]) == 2
    assert traced.losses == pytest.approx(eager.losses, rel=1e-5)
    graphs = GRAPHS[family]
    assert [(event["graphs"], event["breaks"]) for event in traced.events_of("compile")] == [
        (graphs, 0),
        (2 * graphs, 0),
    ]


@with_own_code
def test_samples_validation_and_states_change_no_loss(undisturbed: Run, watched: Run) -> None:
    assert undisturbed.events_of("sample") == undisturbed.events_of("validation") == []
    assert [event["step"] for event in watched.events_of("validation")] == [2, 4]
    assert watched.losses == undisturbed.losses
    assert equal(watched.tensors(), undisturbed.tensors())


@with_own_code
def test_samples_show_the_trained_weights(watched: Run) -> None:
    shown = watched.events_of("sample")
    assert len(shown) == 6
    of_seed_7 = [np.asarray(Image.open(event["path"])).astype(int) for event in shown[::2]]
    assert of_seed_7[0].shape == (64, 64, 3)
    assert np.abs(of_seed_7[0] - of_seed_7[-1]).max() > 0


def test_a_text_encoder_is_trained(undisturbed: Run) -> None:
    ups = [t for key, t in undisturbed.tensors().items() if key.startswith("lora_te") and key.endswith("up.weight")]
    assert ups
    assert any(up.any() for up in ups)


@with_own_code
def test_a_resumed_run_equals_an_uninterrupted_one(
    undisturbed: Run, watched: Run, each_miniature: Any, tmp_path: Path
) -> None:
    """From the middle of an epoch to the next."""
    root = undisturbed.output.parent / "images"
    state = watched.output / "short-step00000002-state"
    again = train(each_miniature, tmp_path / "out", train_data_dir=root, resume=state, **BY_CHANCE)
    assert [(event["step"], event["epoch"]) for event in again.events_of("step")] == [(3, 1), (4, 2)]
    assert again.losses == undisturbed.losses[2:]
    assert equal(again.tensors(), undisturbed.tensors())
