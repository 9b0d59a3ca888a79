"""The plan of a run matches the run, and its times come from earlier runs."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sd_scripts.families.cards.model_file import describe
from sd_scripts.families.cards.registry import cards
from sd_scripts.formats import text_limit
from sd_scripts.formats.words import duration
from sd_scripts.machine import measurements
from sd_scripts.machine.compile_fingerprint import torch_version
from sd_scripts.machine.measurements import Measurement, remember, remembered
from sd_scripts.machine.nvidia import CPU, Gpu
from sd_scripts.planning.run_plan import BreakEven, RunPlan, plan_run
from sd_scripts.planning.show import checked_plan
from sd_scripts.planning.speeds import COMPILING, DECIDING, NEARLY_EQUAL, deciding
from sd_scripts.planning.text import lines, pays
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import SCRIPTS, script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings
from tests.support.data import make_folder
from tests.support.scripts import FLUX_LORA, SDXL_FULL, SDXL_LORA

ROOT = Path(__file__).parents[2]
H200, NO_GPU = Gpu("NVIDIA H200"), Gpu(CPU)


def settings_for(folder: Path, sizes: Sequence[tuple[int, int]], script: Script = SDXL_LORA, **values: Any) -> Settings:
    make_folder(folder / "1_cat", sizes)
    data = {"train_data_dir": str(folder), "resolution": "1024,1024", "enable_bucket": True, "min_bucket_reso": 64}
    return from_values(script, {**data, "max_bucket_reso": 2048, "max_train_steps": 1000, **values})


def plan(settings: Settings, *known: Measurement, gpu: Gpu = NO_GPU) -> RunPlan:
    return plan_run(settings, gpu, known)


def measured(settings: Settings, seconds: dict[str, float], **more: Any) -> Measurement:
    values = {"device": "cpu", "torch": torch_version(), "model_size": 0, "first_seconds": 31.0, **more}
    script = settings.script
    return Measurement(
        family=script.family, method=script.method, settings=deciding(settings.changed()), seconds=seconds, **values
    )


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (
            {"max_train_epochs": 4},
            "max_train_epochs: 8 steps see 8 images, repeats included, which is few for a LoRA; about 1,500",
        ),
        (
            {"max_train_steps": 30},
            "max_train_steps: 30 steps see 30 images, repeats included, which is few for a LoRA; about 1,500 are usual",
        ),
        ({"max_train_steps": 90, "train_batch_size": 2}, "max_train_steps: 90 steps see 180 images"),
        ({"max_train_steps": 300, "train_batch_size": 2}, ""),
        ({"max_train_epochs": 300}, ""),
    ],
)
def test_a_short_lora_run_is_reported_with_the_usual_length(
    tmp_path: Path, values: dict[str, Any], advice: str
) -> None:
    settings = settings_for(tmp_path, [(100, 100)] * 2, **values)
    found = [warning for warning in plan(settings).warnings if "for a LoRA" in warning]
    assert len(found) == bool(advice)
    assert not found or found[0].startswith(advice)


def test_a_flat_folder_of_few_images_is_repeated_more_often(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "flat", [(100, 100)] * 3, num_repeats=2, max_train_epochs=5)
    settings = from_values(settings.script, {**settings.changed(), "train_data_dir": str(tmp_path / "flat" / "1_cat")})
    assert any("set num_repeats = 100" in warning for warning in plan(settings).warnings)


def test_images_buckets_and_steps_are_counted(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [(100, 100)] * 3 + [(200, 100)] * 2, train_batch_size=2, max_train_epochs=4)
    found = plan(settings)
    assert (found.images, found.images_per_epoch) == (5, 5)
    assert [(each.size, each.per_epoch) for each in found.buckets] == [("1024x1024", 3), ("1408x704", 2)]
    assert [(each.size, each.images, each.batches) for each in found.shapes] == [
        ("1024x1024", 1, 1),
        ("1024x1024", 2, 1),
        ("1408x704", 2, 1),
    ]
    assert (found.batches_per_epoch, found.steps_per_epoch, found.epochs, found.steps) == (3, 3, 4, 12)


@pytest.mark.parametrize(
    ("script", "words", "limit"),
    [
        (SDXL_LORA, {}, "75 tokens and is cut: 00.png (at least 76 tokens); shorten it, or set max_token_length = 225"),
        (SDXL_LORA, {"max_token_length": 225}, ""),
        (FLUX_LORA, {"t5xxl_max_token_length": 60}, "60 tokens and is cut: 00.png (at least 76 tokens); shorten it"),
        (FLUX_LORA, {}, ""),
    ],
)
def test_captions_with_more_words_than_the_encoder_reads_tokens_are_counted(
    tmp_path: Path, script: Script, words: dict[str, Any], limit: str
) -> None:
    settings = settings_for(tmp_path, [(64, 64)] * 2, script, caption_extension=".txt", **words)
    for name, count in {"00.txt": 76, "01.txt": 60}.items():
        (tmp_path / "1_cat" / name).write_text("a " * count)
    found = [text for text in plan(settings).warnings if "longer than" in text]
    assert len(found) == bool(limit)
    assert all(text.startswith(f"At least 1 of 2 captions is longer than {limit}") for text in found)


@pytest.mark.parametrize("method", ["textual_inversion", "lora"])
def test_images_whose_captions_lack_the_new_token_are_reported_by_the_plan(tmp_path: Path, method: str) -> None:
    values = {"token_string": "zwx", "network_train_unet_only": True} if method == "lora" else {"token_string": "zwx"}
    settings = settings_for(tmp_path, [(64, 64)] * 3, script_for("sdxl", method), caption_extension=".txt", **values)
    captions = [tmp_path / "1_cat" / f"0{number}.txt" for number in range(3)]
    for caption in captions:
        caption.write_text("a dog")
    with pytest.raises(ValueError, match=r"^token_string: no caption contains 'zwx', so nothing would be trained"):
        plan(settings)
    captions[1].write_text("a ZWX")
    (told,) = (text for text in plan(settings).warnings if text.startswith("token_string"))
    assert told.startswith("token_string: 2 of 3 captions do not contain 'zwx'")
    assert not any("token_string" in text for text in plan(settings.replaced({"use_style_template": True})).warnings)


SDXL_MARK = "conditioner.embedders.1.model.ln_final.weight"


def header_only(path: Path, *keys: str) -> str:
    save_file({key: torch.zeros(1, 1) for key in keys}, path)
    return str(path)


@pytest.mark.parametrize("guidance", [3.5, 1.0])
def test_a_plan_reports_what_the_headers_of_its_files_show(tmp_path: Path, guidance: float) -> None:
    files = {
        "pretrained_model_name_or_path": header_only(tmp_path / "a.safetensors", "double_blocks.0.img_attn.qkv.weight"),
        "network_weights": header_only(
            tmp_path / "b.safetensors",
            *(f"lora_unet_double_blocks_0_img_mlp_0.{each}.weight" for each in ("lora_down", "lora_up")),
            *("bundle_emb.mycat.t5", "global_step", "vae_scale"),
        ),
        "sample_prompts": str(tmp_path / "p.txt"),
    }
    settings = settings_for(tmp_path, [(64, 64)], FLUX_LORA, caption_extension=".txt", guidance_scale=guidance, **files)
    (tmp_path / "1_cat" / "00.txt").write_text("a " * 300)
    (tmp_path / "p.txt").write_text("a cat\n" + "a dog " * 140 + "--l 1 --n " + "blurry " * 280)
    told = checked_plan(settings).warnings
    without_guidance = "guidance_scale: has no effect on FLUX.1 schnell, which has no guidance"
    assert (without_guidance in told) == (guidance != 3.5)
    lora = files["network_weights"]
    assert f"network_weights: 2 tensors of '{lora}' are unknown and left out: global_step, vae_scale" in told
    assert any(each.startswith(f"network_weights: the embeddings in '{lora}' are left out") for each in told)
    cut = [each for each in told if "longer than 256 tokens" in each]  # dev reads 512
    assert [each.partition(" is ")[0] for each in cut] == ["At least 1 of 1 caption", "At least 1 of 2 prompts"]


@pytest.mark.parametrize(
    ("script", "path", "blocks", "told"),
    [
        (FLUX_LORA, "double_blocks.{}.img_attn.qkv", (0, 57, 9), "2 layers of '{}' are not in the model: lora_unet_do"),
        (FLUX_LORA, "double_blocks.{}.img_attn.qkv", (0, 1), ""),
        (FLUX_LORA, "double_blocks.{}.img_attn.qkv", (2, 3), ""),  # of a model with different layer names
        (SDXL_LORA, "input_blocks.4.1.transformer_blocks.{}.attn1.to_q", (1, 4), "1 layer of '{}' is not in the model"),
    ],
)
def test_layers_of_a_lora_that_the_model_lacks_are_reported_by_the_plan(
    tmp_path: Path, script: Script, path: str, blocks: tuple[int, ...], told: str
) -> None:
    prefix = "model.diffusion_model." if script is SDXL_LORA else ""
    marks = [SDXL_MARK, "model.diffusion_model.label_emb.0.0.weight"] if script is SDXL_LORA else []
    model = header_only(
        tmp_path / "model.safetensors", *marks, *(f"{prefix}{path.format(number)}.weight" for number in (0, 1))
    )
    names = [f"lora_unet_{path.format(number).replace('.', '_')}" for number in blocks]
    ends = ("lora_down", "lora_up")
    lora = header_only(tmp_path / "lora.safetensors", *(f"{name}.{end}.weight" for name in names for end in ends))
    settings = from_values(script, {"pretrained_model_name_or_path": model, "base_weights": [lora]})
    found = [each for each in preflight.remarks(settings) if "not in the model" in each]
    assert len(found) == bool(told)
    assert all(each.startswith(f"base_weights: {told.format(lora)}") for each in found)


def test_a_sharded_model_is_recognised_from_all_shards(tmp_path: Path) -> None:
    header_only(tmp_path / "x-00002-of-00002.safetensors", "guidance_in.in_layer.weight")
    first = header_only(tmp_path / "x-00001-of-00002.safetensors", "double_blocks.0.img_attn.qkv.weight")
    assert describe(Path(first)).variant == "FLUX.1 dev"


def test_captions_are_counted_from_the_longest_on_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 captions that fit cost no more than a few; of very many that are cut only a part is counted."""
    monkeypatch.setattr(text_limit, "AT_ONCE", 10)
    monkeypatch.setattr(text_limit, "MOST", 40)
    counted: list[int] = []

    def count(texts: Sequence[str]) -> list[int]:
        counted.append(len(texts))
        return [len(text) // 2 for text in texts]

    limit = text_limit.TextLimit(tokens=50, count=count, short=50)
    fitting = [(Path(f"{number}.png"), "x" * (60 + number % 30)) for number in range(500)]
    assert limit.caption_remark(fitting) is None
    assert counted == [10]
    counted.clear()
    cut = [(Path(f"cut{number}.png"), f"{number:03} " + "x" * 100) for number in range(100)]
    remark = limit.caption_remark([*fitting, *cut[:15]])
    assert remark is not None
    assert remark.startswith("15 of 515 captions are longer than 50 tokens")
    assert counted == [10, 10, 10]
    assert (limit.caption_remark(cut) or "").startswith("At least 40 of 100 captions are longer")


def test_accumulation_and_processes_reduce_the_steps(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [(64, 64)] * 12, gradient_accumulation_steps=2, max_train_epochs=1)
    assert plan(settings).steps == 6
    assert plan(from_values(SDXL_LORA, {**settings.changed(), "num_processes": 3})).steps == 2


SQUARE, WIDE, TALL = (64, 64), (128, 32), (32, 128)


@pytest.mark.parametrize(
    ("script", "sizes", "values", "graphs"),
    [
        (SDXL_LORA, [SQUARE], {}, 14),
        (SDXL_LORA, [SQUARE, SQUARE], {"train_batch_size": 2}, 14),
        (SDXL_LORA, [WIDE, TALL], {}, 26),  # the same number of tokens
        (SDXL_FULL, [SQUARE], {}, 14),
        (SDXL_LORA, [SQUARE], {"compile_dynamic": "true"}, 14),
        (FLUX_LORA, [WIDE, TALL], {}, 2),
        (FLUX_LORA, [SQUARE, (200, 100)], {}, 4),
    ],
)
def test_graphs_follow_shapes_and_tokens(
    script: Script, sizes: list[tuple[int, int]], values: dict[str, Any], graphs: int, tmp_path: Path
) -> None:
    found = plan(settings_for(tmp_path, sizes, script, compile=True, **values)).compile
    assert found is not None
    assert (found.graphs, found.recompiles) == (graphs, graphs - 2)


def test_short_batches_are_advised_against_only_where_they_cost_graphs(tmp_path: Path) -> None:
    odd = settings_for(tmp_path / "odd", [SQUARE] * 3, train_batch_size=2, compile=True)
    found = plan(odd).compile
    assert found is not None
    assert found.advice == (
        "short_batches: the smaller last batch of a bucket counts as a shape of its own; fill or drop gives 14 graphs "
        "instead of 28",
    )
    filled = plan(from_values(SDXL_LORA, {**odd.changed(), "short_batches": "fill"})).compile
    assert filled is not None
    assert filled.advice == ()


EQUAL = {"equal_token_buckets": True}
PHOTOS = [(100, 100), (160, 120), (120, 160), (150, 100), (100, 150), (192, 108), (108, 192), (250, 100), (100, 300)]


@pytest.mark.parametrize(
    ("script", "copies", "values", "graphs"),
    [
        (FLUX_LORA, 1, {}, 5),
        (FLUX_LORA, 1, EQUAL, 2),
        (FLUX_LORA, 3, {**EQUAL, "train_batch_size": 2}, 4),  # and once more for the last batch of each bucket
        (SDXL_LORA, 1, {}, 16),
        (SDXL_LORA, 1, EQUAL, 15),
        (SDXL_LORA, 1, {**EQUAL, "compile_dynamic": "false"}, 6 * 12 + 2),
    ],
)
def test_buckets_with_equal_tokens_share_graphs(
    script: Script, copies: int, values: dict[str, Any], graphs: int, tmp_path: Path
) -> None:
    found = plan(settings_for(tmp_path, PHOTOS * copies, script, compile=True, **values))
    assert found.compile is not None
    assert found.compile.graphs == graphs
    assert (len({shape.tokens for shape in found.shapes}) == 1) == ("equal_token_buckets" in values)


def test_cropping_is_reported_compared_with_ordinary_buckets(tmp_path: Path) -> None:
    ordinary = settings_for(tmp_path, [(1024, 1024), (2048, 1024)])
    equal = from_values(SDXL_LORA, {**ordinary.changed(), **EQUAL})
    before, found = plan(ordinary), plan(equal)
    assert before.crops.ordinary is None
    assert found.crops.ordinary == before.crops.all
    assert (found.crops.all.worst, found.crops.all.file) == (0.1667, "01.png")
    shown = [(image.file, image.size, image.bucket, image.cropped) for image in found.crops.images]
    assert shown == [("01.png", "2048x1024", "1280x768", 0.1667), ("00.png", "1024x1024", "960x1024", 0.0625)]
    assert [(bucket.size, bucket.crop.worst) for bucket in found.buckets] == [
        ("960x1024", 0.0625),
        ("1280x768", 0.1667),
    ]
    (line,) = [line for line in lines(found) if line.startswith("Cropped")]
    assert line == "Cropped       11.5 % of the image area on average, at most 16.7 % (01.png); ordinary buckets: none"


def test_equal_tokens_are_advised_where_graphs_would_take_any_shape(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, PHOTOS, FLUX_LORA, compile=True)
    found = plan(settings).compile
    assert found is not None
    assert found.advice == (
        "equal_token_buckets: gives 2 graphs for one shape, which run faster than graphs that take any, and crops "
        "images more",
    )
    equal = plan(from_values(FLUX_LORA, {**settings.changed(), **EQUAL})).compile
    assert equal is not None
    assert (equal.advice, equal.dynamic) == ((), False)


def test_a_bucket_with_fewer_images_than_a_batch_is_filled_too(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [SQUARE] * 4 + [WIDE] * 3, FLUX_LORA, compile=True, train_batch_size=4, **EQUAL)
    found = plan(settings).compile
    assert found is not None
    assert found.advice == (
        "short_batches: the smaller last batch of a bucket counts as a shape of its own; fill or drop gives 2 graphs "
        "instead of 4",
    )


def test_without_compiling_the_plan_does_not_mention_it(tmp_path: Path) -> None:
    found = plan(settings_for(tmp_path, [SQUARE]), gpu=H200)
    assert (found.compile, found.compile_time, found.break_even, found.elsewhere) == (None, None, None, "")
    assert not any(line.startswith(("Graphs", "Compiling", "Pays off")) for line in lines(found))


def test_a_step_takes_the_time_of_the_last_run_with_these_settings(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [SQUARE, SQUARE, WIDE], network_dim=8)
    shapes = {"1024x1024x1": 0.2, "2048x512x1": 0.5}
    found = plan(settings, measured(settings, shapes), measured(settings, {"1024x1024x1": 9.0}))
    assert found.step_time is not None
    assert found.step_time.source == "remembered"
    assert math.isclose(found.step_time.seconds, (0.2 + 0.2 + 0.5) / 3)
    assert found.total_time is not None
    assert math.isclose(found.total_time.seconds, 300)


@pytest.mark.parametrize(
    "other",
    [
        {"device": H200.name},
        {"torch": "1.13"},
        {"model_size": 7},
        {"family": "flux"},
        {"method": "full"},
        {"settings": {"network_dim": 9}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_run_of_a_different_kind_is_not_used_as_an_estimate(other: dict[str, Any], tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [SQUARE], network_dim=8)
    found = vars(measured(settings, {"1024x1024x1": 0.2})) | other
    assert plan(settings, Measurement(**found)).step_time is None


def test_other_sizes_are_estimated_in_proportion(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, [SQUARE])
    found = plan(settings, measured(settings, {"512x512x1": 0.1, "64x64x1": 9.0})).step_time
    assert found is not None
    assert found.source == "estimated"
    assert math.isclose(found.seconds, 0.4)


def test_when_compiling_pays_is_computed_from_an_eager_and_a_compiled_run(tmp_path: Path) -> None:
    eager = settings_for(tmp_path, [SQUARE])
    compiled = from_values(SDXL_LORA, {**eager.changed(), "compile": True})
    slow, fast = measured(eager, {"1024x1024x1": 0.2}), measured(compiled, {"1024x1024x1": 0.1}, first_seconds=30.1)
    found = plan(compiled, slow, fast)
    assert found.break_even is not None
    assert found.break_even.step == 301
    assert math.isclose(found.break_even.saved, 70)
    assert "after step 301 of 1,000; saves 70 s" in "\n".join(lines(found))
    # a single run with other compile settings is not used for these
    changed = from_values(SDXL_LORA, {**compiled.changed(), "compile_mode": "reduce-overhead"})
    assert plan(changed, slow, fast).break_even is None


def test_compiling_that_does_not_pay_off_is_reported() -> None:
    assert (
        pays(BreakEven(step=500, saved=-12.0), 200)
        == "not in this run of 200 steps: it would take 500, and costs 12 s more"
    )
    assert pays(BreakEven(step=0, saved=-30.0), 200) == "never: compiled steps are not faster here"


def test_the_measured_table_is_for_its_gpu_and_size_alone(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "a", [SQUARE], compile=True)
    steps = {}
    for records, seconds in ((True, 0.0607), (False, 0.1396)):
        found = plan(settings.replaced({"record_steps": records}), gpu=H200)
        assert found.step_time is not None
        assert (found.step_time.seconds, found.step_time.source) == (seconds, "estimated")
        assert found.break_even is not None
        steps[records] = found.break_even.step
    assert 480 < steps[False] < 500
    assert 1350 < steps[True] < 1400
    here = plan(settings)
    assert (here.step_time, here.break_even) == (None, None)
    assert "paid after about 1360 steps" in here.elsewhere
    checkpointed = from_values(SDXL_LORA, {**settings.changed(), "gradient_checkpointing": True, "train_batch_size": 4})
    assert plan(checkpointed, gpu=H200).step_time is None
    small = from_values(SDXL_LORA, {**settings.changed(), "resolution": "512,512"})
    assert plan(small, gpu=H200).step_time is None


def test_steps_at_high_noise_are_planned_at_their_smaller_size(tmp_path: Path) -> None:
    recommended = {"timestep_sampling": "shift", "discrete_flow_shift": 3.1582, "compile": True}
    settings = settings_for(tmp_path, [SQUARE] * 10, FLUX_LORA, **recommended)
    whole = plan(settings, gpu=H200)
    mixed = plan(settings.replaced({"highnoise_resolution": "768"}), gpu=H200)
    assert mixed.smaller_share == pytest.approx(0.619, abs=0.001)
    assert "High noise    61.9 % of the images at a smaller size, on average" in lines(mixed)
    assert [(shape.size, shape.batches) for shape in mixed.shapes] == [("768x768", 6), ("1024x1024", 4)]
    assert (mixed.batches_per_epoch, mixed.steps_per_epoch, mixed.epochs) == (10, 10, 100)
    assert whole.compile
    assert mixed.compile
    assert mixed.compile.graphs == 2 * (whole.compile.graphs or 0)
    assert mixed.memory == whole.memory
    assert whole.step_time
    assert mixed.step_time
    assert mixed.step_time.seconds / whole.step_time.seconds == pytest.approx(1 - 0.619 * (1 - 0.75**2), abs=0.001)


@pytest.mark.parametrize(
    ("script", "values", "sentence"),
    [
        (SDXL_LORA, {}, "highnoise_resolution: SDXL is not trained by flow matching; remove it"),
        (
            script_for("wan", "lora"),
            {},
            "highnoise_resolution: Wan is trained on clips, which have one size; remove it",
        ),
        (FLUX_LORA, {"max_timestep": 700}, "max_timestep = 700 is not above highnoise_sigma"),
        (FLUX_LORA, {"min_timestep": 700}, "min_timestep = 700 is not below highnoise_sigma"),
        (FLUX_LORA, {"highnoise_resolution": "1,x"}, "highnoise_resolution: '1,x' is neither one number nor width"),
        (FLUX_LORA, {"highnoise_resolution": None, "highnoise_sigma": 0.5}, "highnoise_sigma: has no effect without"),
    ],
)
def test_a_smaller_size_that_cannot_be_trained_is_reported(
    script: Script, values: dict[str, Any], sentence: str
) -> None:
    settings = from_values(script, {"highnoise_resolution": "768", **values})
    texts = map(str, (*settings.problems(), *settings.remarks))
    assert any(sentence in text for text in texts)


def test_every_deciding_option_exists() -> None:
    names = {o.name for script in SCRIPTS for group in script.groups for o in each_option(group)}
    assert {*DECIDING, *COMPILING, *NEARLY_EQUAL} <= names
    assert {name for card in cards() for speed in card.plan.speeds for name in speed.options} <= names


def test_measurements_are_kept_and_damage_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path))
    settings = settings_for(tmp_path / "data", [SQUARE])
    first, second = (measured(settings, {"64x64x1": seconds}) for seconds in (0.5, 0.25))
    remember(first)
    with measurements.measurements_file().open("a") as file:
        file.write('{"device": "cpu", "settings": []}\n[1]\n{"cut')
        file.write("\n")
    remember(second)
    assert remembered() == [second, first]
    monkeypatch.setattr(measurements, "MOST_BYTES", 100)
    remember(first)
    assert remembered()[0] == first
    assert len(remembered()) < 3


def test_a_read_only_folder_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", str(tmp_path / "file"))
    settings = settings_for(tmp_path / "data", [SQUARE])
    remember(measured(settings, {"64x64x1": 0.5}))
    assert remembered() == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0396, "40 ms"), (2.04, "2.0 s"), (31.4, "31 s"), (750, "12 min"), (12000, "3 h 20 min")]
)
def test_times_read_naturally(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def script(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "sd_scripts/sdxl_train_network.py", "--plan", "--resolution", "64,64", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_script_prints_the_plan_without_torch_and_writes_nothing(tmp_path: Path) -> None:
    make_folder(tmp_path / "data" / "2_cat", [SQUARE])
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not for a plan')")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sd_scripts import sdxl_train_network as s; s.main()"
    flags = ["--plan", "--resolution", "64,64", "--train_data_dir", str(tmp_path / "data"), "--max_train_epochs", "3"]
    output = tmp_path / "out"
    command = [sys.executable, "-c", code, str(tmp_path), *flags, "--output_dir", str(output)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Steps         6 (3 epochs of 2 steps)" in told.stdout, told.stderr
    assert "Before it can start: pretrained_model_name_or_path" in told.stdout
    assert not output.exists()
    made = script(tmp_path, "--train_data_dir", str(tmp_path / "data"), "--json")
    assert json.loads(made.stdout)["images_per_epoch"] == 2


def test_wrong_data_and_flags_are_reported_together(tmp_path: Path) -> None:
    told = script(tmp_path, "--train_data_dir", str(tmp_path / "none"), "--netwrok_dim", "3")
    assert told.returncode == 2
    assert "--netwrok_dim: unknown option" in told.stderr
    assert f"train_data_dir: folder not found: '{tmp_path / 'none'}'" in told.stderr
    assert told.stdout == ""


def test_a_broken_image_is_a_note(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [SQUARE])
    (tmp_path / "1_cat" / "broken.png").write_text("no image")
    Image.new("RGB", (64, 64)).save(tmp_path / "1_cat" / "whole.png")
    settings = from_values(SDXL_LORA, {"train_data_dir": str(tmp_path), "resolution": "64,64"})
    assert any("broken.png cannot be read" in line for line in lines(plan(settings)))
