"""The benchmark times runs of the training scripts: on miniatures of both families, from the command line."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import nn

from benchmarks import buckets as benchmark_buckets
from benchmarks import presets as measure_presets
from benchmarks.full_size import full_size
from benchmarks.full_size.common.weights import BRANCH_GAINS, operations_per_image, random_weights, unknown
from benchmarks.observed_run import launch_processes
from benchmarks.side_by_side import supported
from benchmarks.steps import COMMON, GIB, HEADINGS, WARM_UP, ObservedRun, curve_table, main, table
from sd_scripts.families.cards.registry import module_of
from sd_scripts.families.common.components import DENOISER
from sd_scripts.families.flux.model import FluxParams, FluxTransformer
from sd_scripts.families.framepack.model import FramePackParams, FramePackTransformer
from sd_scripts.families.qwen_image.model import QwenImageParams, QwenImageTransformer
from sd_scripts.families.sdxl.full_size import SDXL_CONFIG
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script

pytestmark = pytest.mark.run


def row_cells(markdown: str) -> dict[str, str]:
    cells = [cell.strip() for cell in markdown.splitlines()[-1].strip("|").split("|")]
    return dict(zip(HEADINGS, cells, strict=True))


@pytest.mark.usefixtures("warm_python")
def test_a_row_is_a_run_of_the_training_script_that_saves_nothing(tmp_path: Path) -> None:
    found, family = tmp_path / "table.md", "flux"
    small = ["--miniature", "--folder", str(tmp_path), "--markdown", str(found), "--steps", "3", "--rows", "eager"]
    flags = ["--t5xxl_max_token_length", "16", "--train_batch_size", "2"]
    assert main(["--family", family, *small, *flags]) == 0
    cells = row_cells(found.read_text())
    assert cells["row"] == "eager"
    assert float(cells["images/s"]) == pytest.approx(2000 / float(cells["median ms"]), rel=0.01)
    assert float(cells["start s"]) > float(cells["first s"]) > 0
    assert 0 < float(cells["loss"]) < 10
    assert {path.name for path in (tmp_path / family).iterdir() if path.is_dir()}.isdisjoint({"row", "run"})
    assert not list(tmp_path.rglob("benchmark*.safetensors"))


@pytest.mark.usefixtures("warm_python")
def test_a_failed_row_shows_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--miniature", "--folder", str(tmp_path), "--rows", "eager", "--optimizer_type", "Nonsense"]
    assert main(flags) == 1
    assert "optimizer_type" in capsys.readouterr().err


def test_an_unknown_row_is_reported_with_the_valid_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "eagre"]) == 2
    assert "eagre; choose from eager, " in capsys.readouterr().err


def test_a_method_the_family_lacks_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "flux", "--method", "textual_inversion"]) == 2
    assert capsys.readouterr().err == "--method: there is no textual inversion for FLUX.1 yet\n"


def test_runs_of_several_processes_are_not_timed_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "eager", "--processes", "1", "2", "--turns", "2"]) == 2
    assert "--turns" in capsys.readouterr().err


@pytest.mark.parametrize("fsdp", [False, True])
def test_accelerate_accepts_the_flags_that_start_several_processes(fsdp: bool) -> None:
    assert launch_processes(1, fsdp=fsdp) == []
    module, *flags = launch_processes(2, fsdp=fsdp)[1:]
    taken = import_module(module).launch_command_parser().parse_args([*flags, "script.py"])
    assert (taken.num_processes, taken.use_fsdp, taken.multi_gpu) == (2, fsdp, not fsdp)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_every_row_differs_from_the_others_by_options_of_its_script(script: Script) -> None:
    module = full_size(script.family)
    rows = module.ROWS[script.method]
    read = [from_values(script, COMMON | module.OPTIONS[script.method] | row).values() for row in rows.values()]
    assert all(settings not in read[:n] for n, settings in enumerate(read))


def test_operations_are_counted_for_products_and_attention() -> None:
    """A block of 16 tokens: twice 16 x 32 x 64 for the product, the same for its input's gradient, and for the
    weight's if it is trained."""
    for learns, products in ((False, 2), (True, 3)):
        layer = nn.Linear(32, 64, bias=False, device="meta")
        found = operations_per_image(layer, lambda m, width, height: m(unknown(16, 32)), 64, 64, learns=learns)
        assert found == products * 2 * 16 * 32 * 64


def test_operations_of_a_transformer_are_counted_for_its_layers_and_attention() -> None:
    """Of FLUX.1 with one block of each kind: each layer for its tokens, and once more for its input's gradient; q k'
    and p v for all pairs of tokens, and twice more for the gradients of both sides."""
    with torch.device("meta"):
        model = FluxTransformer(FluxParams(double_blocks=1, single_blocks=1))
    width, image, text = 3072, 16, 512
    double = (3 + 1 + 4 + 4) * width**2 * (image + text) + 12 * width**2  # modulations see one token
    single = (7 + 5) * width**2 * (image + text) + 3 * width**2
    ends = 64 * width * image * 2 + 4096 * width * text + 2 * width**2 + (2 * 256 + 768 + 3 * width) * width
    pairs = 2 * 2 * width * (image + text) ** 2
    found = operations_per_image(model, full_size("flux").predict, 64, 64, learns=False)
    assert found == 2 * (2 * (double + single + ends) + 3 * pairs)


ONE_OF_EACH = {"transformer_layers_per_block": 1, "layers_per_block": 1}


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("sdxl", lambda: UNet2DConditionModel(**SDXL_CONFIG | ONE_OF_EACH)),
        ("flux_kontext", lambda: FluxTransformer(FluxParams(double_blocks=1, single_blocks=1))),
        ("qwen_image", lambda: QwenImageTransformer(QwenImageParams(blocks=1))),
        ("framepack", lambda: FramePackTransformer(FramePackParams(double_blocks=1, single_blocks=1))),
    ],
)
def test_twice_the_pixels_need_at_least_twice_the_operations_of_the_image(family: str, model: Any) -> None:
    with torch.device("meta"):
        denoiser = model()
    predict = full_size(family).predict
    square, wide, larger = (operations_per_image(denoiser, predict, 512 * n, 512, learns=False) for n in (1, 2, 3))
    assert larger - wide >= wide - square > 0


def test_a_step_of_framepack_is_one_section_of_a_clip_of_any_length() -> None:
    with torch.device("meta"):
        model = FramePackTransformer(FramePackParams(double_blocks=1, single_blocks=1))
    predict = full_size("framepack").predict
    image, short, long = (
        operations_per_image(model, partial(predict, frames=frames), 64, 64, learns=False) for frames in (1, 37, 73)
    )
    assert image < short == long


def test_the_table_leaves_out_the_warm_up_and_joins_the_rounds() -> None:
    runs = [seen_run(seconds=0.1, vram=3 * GIB, busy=80.0), seen_run(seconds=0.3, vram=2 * GIB, busy=60.0)]
    cells = row_cells(table({"graphs": {"compile": True, "compile_mode": "reduce-overhead"}}, {"graphs": runs}, 2e12))
    assert cells == {
        "row": "graphs",
        "options": "compile, compile_mode = reduce-overhead",
        "median ms": "200.0",
        "mean ms": "200.0",
        "of rounds": "100.0, 300.0",
        "min to p90": "100.0 to 300.0",
        "images/s": "20.00",
        "TFLOP/s": "40",
        "GiB allocated": "3.00",
        "GiB caching": "4.00",
        "GiB in use": "5.00",
        "GPU busy": "70 %",
        "CPU ms": "150",
        "GiB RAM": "1.0",
        "first s": "9.0",
        "start s": "14.0",
        "recording s": "80.1",
        "graphs": "14",
        "recompiles": "2",
        "breaks": "0",
        "loss": "0.5000",
    }


def seen_run(seconds: float, vram: int, busy: float) -> ObservedRun:
    steps: list[dict[str, Any]] = [{"kind": "step", "step": 1, "seconds": 9.0, "loss": 1.0, "vram": GIB}] * WARM_UP
    steps += [{"kind": "step", "step": 2, "seconds": seconds, "loss": 0.5, "vram": vram}] * 10
    events = [
        {"kind": "phase", "name": "caching latents"},
        {
            "kind": "phase",
            "name": "compiling",
            "time": 103.0,
            "vram": 4 * GIB,
        },  # blocks are made ready, then a trial save takes 2 s
        {"kind": "started", "images_per_step": 4},
        {"kind": "phase", "name": "compiling", "time": 105.0},
        {"kind": "phase", "name": "compiling", "time": 107.0, "note": "7 of about 14 graphs"},
        {"kind": "compile", "graphs": 7, "recompiles": 0, "breaks": 0},
        {"kind": "compile", "graphs": 14, "recompiles": 2, "breaks": 0},
    ]
    return ObservedRun(began=100.0, events=events + steps, resident=GIB, gpu=[(busy, 5.0 * GIB)], cpu=(1.5, 10))


def test_steps_of_a_turn_that_settle_are_not_timed() -> None:
    run = seen_run(seconds=0.1, vram=GIB, busy=80.0)
    run.left_out.update(range(WARM_UP + 4, WARM_UP + 8))
    assert [len(part) for part in run.parts] == [4, 2]
    assert run.timed == [0.1] * 6


@pytest.mark.skipif(not supported(), reason="Windows cannot stop a process for a while")
@pytest.mark.usefixtures("warm_python")
def test_rows_are_timed_side_by_side(tmp_path: Path) -> None:
    found, family = tmp_path / "table.md", "flux"
    small = ["--miniature", "--folder", str(tmp_path), "--markdown", str(found), "--steps", "4", "--turns", "2"]
    flags = ["--t5xxl_max_token_length", "16"]
    assert main(["--family", family, *small, "--rows", "eager", *flags]) == 0
    cells = row_cells(found.read_text())
    assert len(cells["of rounds"].split(", ")) == 2
    assert float(cells["median ms"]) > 0


@pytest.mark.usefixtures("warm_python")
def test_a_preset_runs_with_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--miniature", "--folder", str(tmp_path), "--steps", "1"]
    assert measure_presets.main(["--presets", "dreambooth/*_8gb", *small]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    cells = dict(zip(measure_presets.HEADINGS, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
    assert (cells["preset"], cells["result"]) == ("dreambooth/sdxl_low_memory_8gb", "trains")
    assert cells["may use GB"] == "8 (7.45 GiB)"
    assert 0 < float(cells["planned GiB"]) < 7.45
    assert float(cells["ms"]) > 0
    assert not list(tmp_path.rglob("preset*.safetensors"))


def test_a_preset_that_does_not_fit_is_reported() -> None:
    (preset,) = (each for each in measure_presets.presets_of("flux") if each.name == "lora/flux_low_memory_8gb")
    events = [
        {"kind": "phase", "name": "caching text", "time": 1.0},
        {"kind": "phase", "name": "compiling", "time": 2.0, "vram": 3 * GIB, "reserved": 4 * GIB},
        {"kind": "phase", "name": "training", "time": 3.0, "vram": 5 * GIB, "reserved": 6 * GIB},
        {"kind": "failed", "error": "CUDA out of memory", "time": 4.0},
    ]
    row = measure_presets.line(preset, ObservedRun(began=0.0, events=events), "failed: out of memory")
    assert row.startswith("| lora/flux_low_memory_8gb | 8 (7.45 GiB) |")
    assert "| 3.00 | 5.00 | 6.00 |" in row
    assert row.endswith("| failed: out of memory |")
    assert row.count("|") == len(measure_presets.HEADINGS) + 1


def test_a_pattern_that_matches_no_preset_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_presets.main(["--presets", "lora/*7gb"]) == 2
    assert "none fits lora/*7gb; there are lora/sdxl_low_memory_6gb, " in capsys.readouterr().err


def test_images_for_many_buckets_spread_over_all_aspect_ratios() -> None:
    sizes = benchmark_buckets.ratios(COMMON, 41)
    assert len(set(sizes)) == 41
    eight = benchmark_buckets.ratios(COMMON, 8)
    assert set(eight) < set(sizes)
    assert (eight[0], eight[-1]) == (sizes[0], sizes[-1]) == ((256, 2048), (2048, 256))
    with pytest.raises(ValueError, match="--buckets: choose from 2 to 41, not 42"):
        benchmark_buckets.ratios(COMMON, 42)


def test_steps_over_buckets_are_timed_by_shape_after_the_first_epoch() -> None:
    shapes = ("1024x1024x1", "1152x896x1")
    seconds = [(9.0, shapes[0]), (8.0, shapes[1]), (0.1, shapes[1]), (0.3, None), (0.4, shapes[0])]
    steps = [{"kind": "step", "seconds": time, **({"shape": shape} if shape else {})} for time, shape in seconds]
    compiled = {"kind": "compile", "graphs": 4, "recompiles": 2, "breaks": 0, "seconds": 12.4}
    run = ObservedRun(began=0.0, events=[{"kind": "started", "shapes": [*shapes]}, compiled, *steps])
    cells = [cell.strip() for cell in benchmark_buckets.line("flux", 2, False, "compiled", run).strip("|").split("|")]
    assert dict(zip(benchmark_buckets.HEADINGS, cells, strict=True)) == {
        "images' ratios": "2",
        "equal_token_buckets": "off",
        "row": "compiled",
        "batch shapes": "2",
        "tokens": "4,032 to 4,096",
        "graphs": "4",
        "recompiles": "2",
        "breaks": "0",
        "compile s": "12",
        "first epoch s": "17",
        "later step ms": "300.0",
        "by shape": "200.0 to 400.0",
    }


def test_curves_are_printed_side_by_side_as_means() -> None:
    losses = {"one": [2.0] * 20 + [1.0] * 10, "other": [4.0] * 30}
    assert curve_table(losses).splitlines()[2:] == ["| 1 to 20 | 2.0000 | 4.0000 |", "| 21 to 30 | 1.0000 | 4.0000 |"]


def test_random_weights_preserve_the_variance_of_activations() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(512, 256), nn.LayerNorm(256), nn.Conv2d(4, 8, 3))
    weights = random_weights(module, torch.float32)
    assert {name: t.shape for name, t in weights.items()} == {name: t.shape for name, t in module.state_dict().items()}
    x = torch.randn(1000, 512, generator=torch.Generator().manual_seed(1))
    assert (x @ weights["0.weight"].T).std() == pytest.approx(1.0, rel=0.05)
    assert weights["2.weight"].std() == pytest.approx(36**-0.5, rel=0.2)
    assert weights["1.weight"].mean() == pytest.approx(1.0, abs=0.03)
    assert 0 < float(weights["1.weight"].std()) < 0.2
    assert all(0 < float(weights[f"{n}.bias"].abs().max()) < 0.1 for n in range(3))


class Attention(nn.Module):
    """Layers of one shape, as attention has them."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k = nn.Linear(64, 64), nn.Linear(64, 64)
        self.to_out = nn.ModuleList([nn.Linear(64, 64)])


def test_random_weights_differ_from_layer_to_layer_and_branches_end_smaller() -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({"attn": Attention()})
    weights = random_weights(module, torch.float32)
    q, k, out = (weights[f"attn.{name}.weight"].flatten() for name in ("to_q", "to_k", "to_out.0"))
    assert abs(float(torch.corrcoef(torch.stack([q, k]))[0, 1])) < 0.1
    assert float(out.std() / q.std()) == pytest.approx(0.5, rel=0.05)
    again = random_weights(module, torch.float32)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize(
    ("family", "branches"),
    [("sdxl", 2 * 70 + 70 + 17), ("flux", 19 * 4 + 38), ("qwen_image", 60 * 4)],  # attention, MLPs, resnets
)
def test_each_branch_of_a_denoiser_has_an_end(family: str, branches: int) -> None:
    denoiser = module_of(family, "full_size").modules()[DENOISER]
    assert sum(name.endswith(tuple(BRANCH_GAINS)) for name, _ in denoiser.named_modules()) == branches
