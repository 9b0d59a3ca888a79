"""What holds for every family: runs of the whole trainer on its miniature, from settings to file."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MINIATURES
from data_help import make_folder
from safetensors import safe_open
from training_help import CAPTIONS_IN_THE_STEP, GRAPHS, TEXT_ENCODERS_TOO, Run, equal, images, train

COMPILED = {"compile": True, "compile_backend": "aot_eager"}
TRACED = {"compile": True, "compile_backend": "eager"}
STATES = {"save_state": True, "max_train_steps": 6, "save_every_n_steps": 1, "network_args": ["rank_dropout=0.3"]}
"""A state after each of six steps; epochs have three, and LoRA's dropout draws in each."""


pytestmark = pytest.mark.usefixtures("no_graphs")


@pytest.fixture(scope="module", params=MINIATURES)
def each_miniature(request: pytest.FixtureRequest) -> Any:
    """Every family, those included that share the code of another."""
    return request.getfixturevalue(MINIATURES[request.param])


@pytest.fixture(scope="module")
def plain(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps without anything special. Do not write to it."""
    return train(each_miniature, tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="module")
def undisturbed(each_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Do not write to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(each_miniature, folder / "out", train_data_dir=images(folder / "images", count=3), **STATES)


def test_a_run_leaves_a_lora_and_nothing_else_beside_its_own_folder(plain: Run) -> None:
    assert plain.status == 0
    assert plain.files == ["short.safetensors"]
    assert plain.told("warning") == []


def test_every_layer_is_in_the_file_and_has_learned(plain: Run) -> None:
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


def test_every_step_is_told_once_in_order_with_a_finite_loss(plain: Run) -> None:
    assert plain.steps == [1, 2, 3]
    assert all(math.isfinite(loss) for loss in plain.losses)
    assert [event["lr"] for event in plain.told("step")] == [{"unet": 0.01}] * 3


def test_events_come_in_the_order_of_the_run(plain: Run) -> None:
    kinds = [event["kind"] for event in plain.events]
    assert kinds[0] == "phase"
    assert [kind for kind in kinds if kind != "phase"] == [
        "started", "step", "step", "epoch", "step", "epoch", "saved", "finished",
    ]  # fmt: skip
    (started,) = plain.told("started")
    assert (started["max_steps"], started["epochs"], started["batches_per_epoch"]) == (3, 2, 2)
    assert plain.told("finished")[0]["path"] == str(plain.output / "short.safetensors")


def test_the_file_tells_how_far_it_was_trained(plain: Run) -> None:
    with safe_open(plain.output / "short.safetensors", "pt") as file:
        told = file.metadata()
    assert (told["ss_steps"], told["ss_seed"], told["ss_max_train_steps"]) == ("3", "1", "3")
    assert told["modelspec.architecture"].endswith("/lora")


def test_the_same_seed_gives_the_same_losses_and_the_same_tensors(
    plain: Run, each_miniature: Any, tmp_path: Path
) -> None:
    again = train(each_miniature, tmp_path / "again", train_data_dir=images(plain.output.parent / "images"))
    assert again.losses == plain.losses
    assert equal(again.tensors(), plain.tensors())


def test_learning_lowers_the_loss(each_miniature: Any, tmp_path: Path) -> None:
    """Beside a run that sees the same images, noise and timesteps and does not learn."""
    longer = {"max_train_steps": 15, "network_dim": 8, "network_alpha": 8.0}
    trainable = train(each_miniature, tmp_path / "learning", learning_rate=3e-3, **longer).losses
    standing = train(each_miniature, tmp_path / "standing", learning_rate=1e-12, **longer).losses
    assert sum(trainable[10:]) < 0.97 * sum(standing[10:])


def test_a_saved_file_is_where_the_next_run_goes_on(plain: Run, each_miniature: Any, tmp_path: Path) -> None:
    """At a rate that moves nothing, what is saved is what was loaded."""
    file = plain.output / "short.safetensors"
    again = train(each_miniature, tmp_path / "out", network_weights=file, learning_rate=1e-12, max_train_steps=1)
    loaded, saved = plain.tensors(), again.tensors()
    assert loaded.keys() == saved.keys()
    torch.testing.assert_close(saved, loaded, rtol=0, atol=1e-9)
    anew = train(each_miniature, tmp_path / "anew", learning_rate=1e-12, max_train_steps=1)
    assert again.losses != anew.losses


def test_cached_latents_give_the_losses_of_images(plain: Run, each_miniature: Any, tmp_path: Path) -> None:
    assert train(each_miniature, tmp_path / "out", cache_latents=None).losses == pytest.approx(plain.losses, rel=1e-5)


def test_cached_captions_give_the_losses_of_captions(plain: Run, each_miniature: Any, tmp_path: Path) -> None:
    in_the_step = train(each_miniature, tmp_path / "out", **CAPTIONS_IN_THE_STEP)
    assert in_the_step.losses == pytest.approx(plain.losses, rel=1e-5)


def test_caches_on_disk_are_read_by_the_second_run(plain: Run, each_miniature: Any, tmp_path: Path) -> None:
    cached = {"cache_latents_to_disk": True, "cache_text_encoder_outputs_to_disk": True}
    first = train(each_miniature, tmp_path / "first", **cached)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "images").rglob("*.safetensors")}
    second = train(each_miniature, tmp_path / "second", **cached)
    assert len(made) == 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "images").rglob("*.safetensors")} == made
    assert second.losses == first.losses == pytest.approx(plain.losses, rel=1e-5)


def test_images_of_two_sizes_share_a_run(each_miniature: Any, tmp_path: Path) -> None:
    make_folder(tmp_path / "mixed" / "1_both", [(64, 64), (64, 64), (128, 64)])
    mixed = train(each_miniature, tmp_path / "out", train_data_dir=tmp_path / "mixed", train_batch_size=2)
    assert mixed.status == 0
    assert len(mixed.told("started")[0]["shapes"]) == 2


def test_compiled_and_eager_runs_learn_the_same(plain: Run, each_miniature: Any, tmp_path: Path) -> None:
    """float32, same seed. aot_eager runs the same kernels in another order of sums: six digits agree."""
    fast = train(each_miniature, tmp_path / "fast", **COMPILED)
    assert fast.status == 0
    assert fast.losses == pytest.approx(plain.losses, rel=1e-5)
    ours, theirs = fast.tensors(), plain.tensors()
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }
    (told, *later) = fast.told("compile")
    assert (told["graphs"], told["breaks"]) == (GRAPHS[each_miniature.family], 0)
    assert later == []


def test_each_size_gets_its_graphs_once(each_miniature: Any, tmp_path: Path) -> None:
    """None is left to run eagerly; the miniature's blocks are all of one width."""
    make_folder(tmp_path / "two" / "1_noise", [(128, 128), (192, 64)])
    sizes = {"resolution": "128,128", "max_bucket_reso": 192, "max_train_steps": 4}
    run = train(each_miniature, tmp_path / "run", train_data_dir=tmp_path / "two", **sizes, **TRACED)
    assert len(run.told("started")[0]["shapes"]) == 2
    first, *others = [event["graphs"] for event in run.told("compile")]
    assert others == [2 * first]


@pytest.mark.parametrize("more", [{}, COMPILED], ids=["eager", "compiled"])
def test_gradient_checkpointing_changes_no_loss(
    more: dict[str, Any], plain: Run, each_miniature: Any, tmp_path: Path
) -> None:
    lean = train(each_miniature, tmp_path / "lean", gradient_checkpointing=True, **more)
    assert lean.losses == pytest.approx(plain.losses, rel=1e-5)
    assert [event["breaks"] for event in lean.told("compile")] == [0] * bool(more)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resumed_run_is_the_undisturbed_one(step: int, undisturbed: Run, each_miniature: Any, tmp_path: Path) -> None:
    """In the middle of an epoch, at its end, and just after."""
    state = undisturbed.output / f"short-step{step:08d}-state"
    root = undisturbed.output.parent / "images"
    again = train(each_miniature, tmp_path / "out", train_data_dir=root, resume=state, **STATES)
    assert again.steps == list(range(step + 1, 7))
    assert again.losses == undisturbed.losses[step:]
    assert equal(again.tensors(), undisturbed.tensors())
    assert [event["epoch"] for event in again.told("step")] == [(s - 1) // 3 + 1 for s in again.steps]


def test_text_encoders_learn_and_resume_exactly(each_miniature: Any, tmp_path: Path) -> None:
    options = {**TEXT_ENCODERS_TOO, "save_state": True, "max_train_steps": 4, "shuffle_caption": True}
    whole = train(each_miniature, tmp_path / "whole", save_every_n_steps=3, **options)
    state = whole.output / "short-step00000003-state"
    rest = train(each_miniature, tmp_path / "rest", resume=state, **options)
    assert rest.losses == whole.losses[3:]
    assert equal(rest.tensors(), whole.tensors())
    ups = [t for key, t in whole.tensors().items() if key.startswith("lora_te1_") and key.endswith("up.weight")]
    assert ups
    assert any(up.any() for up in ups)


def test_sampling_shows_what_was_learned_and_changes_no_loss(each_miniature: Any, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle --w 64 --h 64 --s 2 --d 7\na blue square --w 64 --h 128 --s 1 --l 1\n")
    options = {**TEXT_ENCODERS_TOO, "sample_prompts": prompts, "network_dropout": 0.2}
    often = train(each_miniature, tmp_path / "often", sample_every_n_steps=1, sample_at_first=True, **options)
    never = train(each_miniature, tmp_path / "never", **options)
    assert len(often.told("sample")) == 8
    assert often.losses == never.losses
    assert equal(often.tensors(), never.tensors())
    of_seed_7 = [np.asarray(Image.open(event["path"])).astype(int) for event in often.told("sample")][::2]
    assert of_seed_7[0].shape == (64, 64, 3)
    assert np.abs(of_seed_7[0] - of_seed_7[-1]).max() > 0


def test_validating_changes_no_loss_of_training(each_miniature: Any, tmp_path: Path) -> None:
    data = images(tmp_path / "data", count=5)
    options = {"validation_split": 0.4, "validation_seed": 3, "train_data_dir": data, "network_dropout": 0.2}
    often = train(each_miniature, tmp_path / "often", validate_every_n_steps=1, **options)
    never = train(each_miniature, tmp_path / "never", validate_every_n_steps=100, **options)
    assert [event["step"] for event in often.told("validation")] == [1, 2, 3]
    assert never.told("validation") == []
    assert often.losses == never.losses
    assert equal(often.tensors(), never.tensors())
