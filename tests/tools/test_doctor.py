"""The checks of a machine: each reports a remedy, none takes the others down, and a bug report contains no secret."""

import json
import math
import os
import shlex
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import torch
from packaging.requirements import Requirement
from starlette.applications import Starlette
from starlette.testclient import TestClient
from torch import nn

from kohya_gui import doctor
from kohya_gui.tools.doctor_routes import CheckProcess, routes
from sd_scripts.library import compile_utils
from sd_scripts.machine import nvidia
from sd_scripts.machine.compile_cache import own_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.family_options import each_option
from sd_scripts.tools.doctor import __main__ as program
from sd_scripts.tools.doctor import block, diagnostics, machine, torch_checks
from sd_scripts.tools.doctor.check import Check, Finding, ok, problem, warning
from sd_scripts.tools.doctor.torch_process import TorchProcess
from tests.support.runs import wait_for

pytestmark = pytest.mark.run

ROOT = Path(__file__).parents[2]
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and scripts of POSIX")
CPU = torch.device("cpu")


def check(name: str) -> Check:
    return next(each for each in program.CHECKS if each.name == name)


def stub(folder: Path, **packages: str) -> Path:
    """A folder of packages that consist of these lines."""
    for name, code in packages.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(code, encoding="utf-8")
    return folder


def checked(found_first: Path, *flags: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run `gui.py --doctor` with a folder before all packages; return its exit code and its findings by name."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "gui.py"), "--doctor", "--json", *flags],
        env={**os.environ, "PYTHONPATH": str(found_first)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    titles, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert titles["checks"] == [each["title"] for each in found]
    return done.returncode, {each["name"]: each for each in found}


BROKEN = {
    "missing": ("raise ModuleNotFoundError('no', name='torch')", "torch is not installed."),
    "broken": ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open."),
    "no library": ("raise OSError('[WinError 126] c10.dll')", "OSError: [WinError 126] c10.dll."),
    "crashing": ("import os; os.kill(os.getpid(), 11)", "Its process ended with SIGSEGV."),
    "exiting": (
        "import os, sys; print('gone', file=sys.stderr); os._exit(3)",
        "Its process ended with exit code 3: gone.",
    ),
}


@POSIX
@pytest.mark.parametrize("how", BROKEN)
def test_a_pytorch_that_cannot_be_imported_is_one_problem(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = BROKEN[how]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stub(tmp_path, torch=code)), str(ROOT)]))
    (_, torch_found), *needing = program.findings(torch_checks.CHECKS)
    assert (torch_found.status, torch_found.text) == ("problem", said)
    assert torch_found.remedy
    assert {finding.text for _, finding in needing} == {"Not checked, since PyTorch has a problem."}


@POSIX
def test_the_doctor_works_without_torch_and_without_the_page(tmp_path: Path) -> None:
    needed = ("torch", "gradio", "psutil", "tomlkit", "PIL", "numpy")
    broken = stub(tmp_path, **dict.fromkeys(needed, "raise ImportError('broken')"))
    exit_code, found = checked(broken, "--zip", str(tmp_path / "d.zip"))
    assert exit_code == 1
    assert "PyTorch" in texts(tmp_path / "d.zip")["doctor.txt"]
    assert found["torch"]["text"] == "ImportError: broken."
    assert found["python"]["status"] == "ok"


@POSIX
def test_a_crash_of_native_code_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os\n__version__ = '2.13.0'\n"
    crash += "class version: cuda = hip = None\nclass cuda: is_available = lambda: os.kill(os.getpid(), 11)\n"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stub(tmp_path, torch=crash)), str(ROOT)]))
    monkeypatch.setattr(nvidia, "program", lambda: None)
    after = replace(check("torch"), title="after")
    found = {each.title: finding for each, finding in program.findings([check("torch"), check("gpu"), after])}
    assert [each.status for each in found.values()] == ["ok", "problem", "ok"]
    assert found["GPU"].text == "Its process ended with SIGSEGV."


def test_a_check_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = stub(tmp_path, torch="import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hangs), str(ROOT)]))
    with TorchProcess() as process:
        found = process.run(replace(check("torch"), seconds=1.0))
    assert found.text == "Its process did not answer within 1 s."


def test_library_output_is_not_taken_as_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = (
        "import os\nprint('{}'); os.system('echo loud')\n__version__ = '1'\nclass version: cuda, hip = '13.0', None\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stub(tmp_path, torch=loud)), str(ROOT)]))
    with TorchProcess() as process:
        assert process.run(check("torch")) == ok("PyTorch 1 for CUDA 13.0")


def test_the_checks_compile_into_the_folder_that_runs_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    named = "import os\n__version__ = os.environ['TORCHINDUCTOR_CACHE_DIR']\nclass version: cuda, hip = '13.0', None\n"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stub(tmp_path / "stub", torch=named)), str(ROOT)]))
    with TorchProcess() as process:
        assert process.run(check("torch")) == ok(f"PyTorch {own_folder()} for CUDA 13.0")


def raising(error: BaseException) -> Callable[[], Finding]:
    def find() -> Finding:
        raise error

    return find


@pytest.mark.parametrize(
    ("error", "text", "remedy"),
    [
        (ValueError("wrong.\nmore"), "ValueError: wrong.", "Repair it."),
        (SystemExit(), "SystemExit.", "Repair it."),
        (ModuleNotFoundError("no", name="numpy"), "numpy is not installed.", "Start gui.sh or gui.bat again"),
        (ModuleNotFoundError("no", name="torch._C"), "torch._C is not installed.", "Repair it."),
    ],
)
def test_a_check_that_raises_is_reported_in_a_line(error: BaseException, text: str, remedy: str) -> None:
    found = Check(name="a", title="A", find=raising(error), remedy="repair it").run()
    assert (found.status, found.text) == ("problem", text)
    assert found.remedy.startswith(remedy)


def test_the_exit_code_shows_whether_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, code, said in (
        ((ok("a"), warning("b", "do")), 0, "1 warning."),
        ((ok("a"), problem("b", "do"), problem("c", "do")), 1, "2 problems."),
        ((ok("a"),), 0, "No problems."),
    ):
        each = [Check(name=str(i), title="T", find=lambda f=f: f, remedy="do") for i, f in enumerate(found)]
        monkeypatch.setattr(program, "CHECKS", each)
        assert program.main([]) == code
        assert capsys.readouterr().out.endswith(f"\n{said}\n")
    for wrong in (["--bogus"], ["--run", "."], ["--zip", "a.zip", "--run", "/no/such/folder"]):
        with pytest.raises(SystemExit, match="2"):
            program.main(wrong)


def test_the_gui_hands_its_flags_on_and_returns_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import gui

    asked = []
    monkeypatch.setattr(doctor, "run", lambda flags: asked.append(flags) or 1)
    assert gui.main(["--headless", "--doctor", "--quick", "--zip", "a.zip"]) == 1
    assert asked == [["--quick", "--zip", "a.zip"]]


def test_lines_of_the_table_are_wrapped_below_their_text() -> None:
    lines = program.as_lines(check("gpu"), warning("words " * 20, "do it"), 60).splitlines()
    assert lines[0].startswith("warning  GPU             words")
    assert all(line.startswith(" " * 25) and len(line) <= 60 for line in lines[1:])
    assert len(lines) > 2


# What the checks find


@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 13)])
@pytest.mark.parametrize("system", ["linux", "win32"])
def test_required_packages_are_read_as_pip_reads_them(
    version: tuple[int, int], system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "sys", SimpleNamespace(version_info=version, platform=system))
    here = {"python_version": f"{version[0]}.{version[1]}", "sys_platform": system}
    text = (ROOT / "requirements.txt").read_text()
    wanted = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    expected = {r.name: str(r.specifier).removeprefix("==") for r in wanted if not r.marker or r.marker.evaluate(here)}
    assert machine.pinned(text) == expected


def test_missing_and_other_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.packages().status == "ok"
    monkeypatch.setattr(machine, "pinned", lambda text: {"torch": "1.0"})
    assert machine.packages().text.startswith("Versions that differ from the tested ones: torch 2.")
    monkeypatch.setattr(machine, "pinned", lambda text: {"torch": "1.0", "no-such": "1", "nor-this": "1"})
    assert machine.packages().text == "Not installed: no-such, nor-this."


@pytest.mark.parametrize(("version", "status"), [((3, 9), "problem"), ((3, 10), "ok"), ((3, 14), "problem")])
def test_an_unsupported_python_is_a_problem(version, status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "sys", SimpleNamespace(version_info=version, executable="python", maxsize=2**63))
    assert machine.python().status == status


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@POSIX
@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (
            "echo NVIDIA A, with a comma, 590.48.01, 24576",
            "ok",
            "Driver 590.48.01: NVIDIA A, with a comma with 24 GiB.",
        ),
        ("echo NVIDIA GB10, 580.1, [N/A]", "ok", "Driver 580.1: NVIDIA GB10 with 0 GiB."),
        (
            "echo NVIDIA A, 575.57, 24576",
            "ok",
            "Driver 575.57: NVIDIA A with 24 GiB; PyTorch must be built for CUDA 12.6, since CUDA 13.0 needs",
        ),
        (
            "echo NVIDIA A, 470.82, 24576",
            "problem",
            "Driver 470.82 for NVIDIA A with 24 GiB is too old: CUDA 12.6 needs driver 525 or newer.",
        ),
        ("echo No devices were found; exit 6", "problem", "nvidia-smi: No devices were found."),
        ("exit 9", "problem", "nvidia-smi: ended with exit code 9."),
        ("true", "warning", "The NVIDIA driver finds no GPU."),
    ],
)
def test_the_driver_is_found_without_torch(script, status, said, tmp_path, monkeypatch) -> None:
    smi(tmp_path, monkeypatch, script)
    found = machine.driver()
    assert found.status == status
    assert found.text.startswith(said)


@POSIX
def test_pytorch_without_cuda_next_to_a_gpu_is_a_problem(tmp_path, monkeypatch) -> None:
    smi(tmp_path, monkeypatch, "echo NVIDIA A, 590.48.01, 24576")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert torch_checks.torch_import().text.endswith("for the CPU only, although this machine has an NVIDIA GPU.")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", raising(RuntimeError("the driver is too old")))
    assert torch_checks.gpu().text == "PyTorch cannot use NVIDIA A: the driver is too old."
    assert torch_checks.gpu().remedy.startswith("Install the NVIDIA driver 580")


@POSIX
def test_a_driver_that_is_too_old_for_this_build_needs_another_one(tmp_path, monkeypatch) -> None:
    smi(tmp_path, monkeypatch, "echo NVIDIA A, 550.54, 24576")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch_checks.gpu().remedy.startswith("Install PyTorch for CUDA 12.6, since CUDA 13.0 needs driver 580")


@pytest.mark.parametrize(
    ("capability", "total", "free", "status", "said"),
    [
        ((9, 0), 80, 79, "ok", "GPU 0: RTX A, capability 9.0, 79.0 of 80.0 GiB free."),
        ((7, 5), 24, 23, "warning", "RTX A does not compute in bf16: set mixed_precision = fp16."),
        ((8, 6), 8, 7, "warning", "RTX A has little memory: choose a preset for low memory."),
        ((8, 9), 24, 6, "warning", "Other programs use the memory of RTX A: close them."),
        ((6, 1), 24, 23, "problem", "RTX A is too old for PyTorch"),
    ],
)
def test_a_gpu_is_described_with_its_missing_features(capability, total, free, status, said, monkeypatch) -> None:
    has = {
        "is_available": True,
        "device_count": 1,
        "get_arch_list": ["sm_75", "sm_90a", "compute_120"],
        "get_device_name": "RTX A",
        "get_device_capability": capability,
        "mem_get_info": (free << 30, total << 30),
    }
    for name, value in has.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    eye = torch.eye
    monkeypatch.setattr(torch, "eye", lambda size, device: eye(size))
    found = check("gpu").run()
    assert found.status == status
    assert said in f"{found.text} {found.remedy}"


def test_the_readme_names_the_driver_that_is_checked() -> None:
    assert f"({nvidia.LEAST_DRIVER} or newer)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_docs_have_a_row_for_each_check_in_order() -> None:
    rows = [line.split(" | ")[0] for line in (ROOT / "docs" / "doctor.md").read_text().splitlines() if line[:2] == "| "]
    assert rows[1:] == [f"| {each.title}" for each in program.CHECKS]


def test_missing_compile_requirements_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sd_scripts.machine.cpp_compiler.has_python_headers", lambda: False)
    monkeypatch.setattr("sd_scripts.machine.cpp_compiler.find_compiler", lambda: "g++")
    assert "Python.h is missing" in machine.compiler().text
    monkeypatch.setattr("sd_scripts.machine.cpp_compiler.find_compiler", lambda: None)
    assert machine.compiler().remedy == "Install a C++ compiler (g++; on Windows the Visual Studio Build Tools)."


def test_little_space_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((30e9, "ok"), (5e9, "warning"), (0.5e9, "problem")):
        monkeypatch.setattr(machine, "free_bytes", lambda folder, free=free: free)
        assert machine.disk().status == status
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform="linux"))
    for space, status in ((8 << 30, "ok"), (64 << 20, "warning")):
        monkeypatch.setattr(machine, "_space", lambda folder, space=space: (space, space))
        assert machine.shared_memory().status == status


def test_a_cache_folder_that_cannot_be_written_is_a_problem(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert check("cache").run().text.startswith(f"{tmp_path / 'cache'} has 0 B")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file"))
    found = check("cache").run()
    assert found.status == "problem"
    assert found.remedy.startswith("Set TORCHINDUCTOR_CACHE_DIR")


# The block that is computed in several ways


class Damaged(block.Block):
    """Computes the right output and a wrong gradient."""

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        x = super().forward(x, vec)
        return 1.01 * x - (0.01 * x).detach()


DAMAGE = {
    "": "Output and gradients agree with the eager block",
    "forward": "differs from the eager block by",
    "backward": "The gradient of",
    "nan": "The output has NaN or infinite values",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_compiled_block_that_computes_something_else_is_found(damage, tmp_path, monkeypatch) -> None:
    def compile_model(options: Any, model: nn.Module, *blocks: Any, **more: Any) -> nn.Module:
        assert options.compile
        if damage == "backward":
            model.__class__ = Damaged
        elif damage:
            model.down.bias.data += math.nan if damage == "nan" else 0.1
        return model

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_utils, "compile_model", compile_model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = check("compiled").run()
    assert found.status == ("problem" if damage else "ok"), found
    assert DAMAGE[damage] in found.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.inductor
def test_a_block_that_inductor_compiles_here_is_correct() -> None:
    found = check("compiled").run()
    assert (found.status, found.remedy) == ("ok", ""), found
    assert DAMAGE[""] in found.text


def test_a_compiler_that_fails_is_reported_with_its_remedy(tmp_path, monkeypatch) -> None:
    class InvalidCxxCompiler(RuntimeError):
        pass

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_utils, "compile_model", lambda *_, **__: raising(InvalidCxxCompiler("none found"))())
    found = check("compiled").run()
    assert found.text == "The compiler failed: InvalidCxxCompiler: none found."
    assert found.remedy.startswith("Install a C++ compiler")


def test_an_eager_block_is_compared_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("eager").run().status == "ok"
    made = block.make
    monkeypatch.setattr(block, "make", lambda device, dtype=None: damaged(*made(device, dtype)))
    assert "differs from float64" in check("eager").run().text


def damaged(model: nn.Module, inputs: block.Inputs) -> tuple[nn.Module, block.Inputs]:
    if inputs.x.dtype != torch.float64:
        model.__class__ = Damaged
    return model, inputs


def test_the_worst_difference_is_named_and_nan_first() -> None:
    expected = {name: torch.ones(4) for name in ("a", "b", "c")}
    assert block.difference({**expected, "b": torch.full((4,), 1.5)}, expected) == ("b", 0.5)
    with_nan = {"a": torch.full((4,), 9.0), "b": torch.full((4,), math.nan), "c": torch.full((4,), 99.0)}
    assert block.difference(with_nan, expected)[0] == "b"
    with pytest.raises(AssertionError, match="a gradient is missing"):
        block.difference({"a": torch.ones(4)}, expected)


def test_rounding_of_bf16_is_not_a_problem() -> None:
    def results(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        made, inputs = block.make(CPU, dtype)
        return block.results(made, lambda: block.forward_backward(made, inputs))

    found, expected = results(torch.bfloat16), results(torch.float64)
    assert 1e-3 < block.difference(found, expected)[1] < block.TOLERANCE[torch.bfloat16] / 2


@pytest.mark.parametrize(
    ("name", "quantize"), [("fp8", "fp8.quantize_"), ("int8", "quantized.quantize_"), ("nf4", "quantized.quantize_")]
)
def test_a_wrong_product_with_quantized_weights_is_found(
    name: str, quantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (found := check(name).run()).status == "skipped":
        pytest.skip(found.text)
    assert found.status == "ok", found
    monkeypatch.setattr(f"sd_scripts.library.quantization.{quantize}", lambda layer, *_, **__: layer.weight.mul_(1.3))
    assert check(name).run().status == "problem"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["gpu", "triton", "eager", "compiled", "cuda_graph", "bitsandbytes", "fp8", "int8", "nf4"]
)
def test_nothing_is_wrong_with_this_gpu(name: str) -> None:
    found = check(name).run()
    assert found.status in ("ok", "skipped", "warning"), found


# The zip for a bug report

KEYS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "MY_SERVICE_PASSWORD": "correct horse battery",
}
TYPED = "typed-in-the-page-and-seen-nowhere-else"
USER, HOST = "janedoe", "janes-tower"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of Jane, whose keys are in the environment and in files of other programs."""
    home = tmp_path / "home" / USER
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name in ("LOGNAME", "USER", "USERNAME"):
        monkeypatch.setenv(name, USER)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    state = home / ".local" / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("LOCALAPPDATA", str(state))
    monkeypatch.setattr("platform.node", lambda: f"{HOST}.lan")
    (state / "sd-scripts-studio").mkdir(parents=True)
    (state / "sd-scripts-studio" / "token").write_text("the-token-of-the-page\n")
    return home


def run_folder(home: Path, name: str = "cats") -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'wandb_api_key = "{TYPED}"\nkeep_tokens = 1\noutput_dir = "{home}/out"\n')
    argv = ["python", "--huggingface_token", TYPED, f"--logging_dir={home}"]
    (folder / "launch.json").write_text(json.dumps({"argv": argv, "environment": {"HF_TOKEN": TYPED}}))
    (folder / "events.jsonl").write_text(json.dumps({"kind": "started", "host": HOST, "key": KEYS["HF_TOKEN"]}) + "\n")
    lines = [*KEYS.values(), "the-token-of-the-page", f"http://{USER}:pw@proxy/", f"/tmp/torchinductor_{USER}/x.py"]
    (folder / "console.log").write_text("\n".join([*lines, f"?token={TYPED}", "step 1"]))
    return folder


def texts(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_bug_report_contains_no_secret_no_home_folder_and_no_name(home: Path, tmp_path: Path) -> None:
    folder = run_folder(home, f"20261123-{USER}")
    diagnostics.write(tmp_path / "d.zip", f"ok  Python  {home}/.venv/bin/python", [folder])
    found = texts(tmp_path / "d.zip")
    assert list(found) == ["doctor.txt", "packages.txt"] + [
        f"runs/1-20261123-user/{name}" for name in diagnostics.RUN_FILES
    ]
    everything = "\n".join([*found, *found.values()])
    private = [*KEYS.values(), TYPED, "the-token-of-the-page", str(home), USER, HOST]
    assert [word for word in private if word in everything] == []
    assert found["doctor.txt"] == "ok  Python  ~/.venv/bin/python\n"
    assert found["runs/1-20261123-user/config.toml"] == (
        'wandb_api_key = "<removed>"\nkeep_tokens = 1\noutput_dir = "~/out"\n'
    )
    assert json.loads(found["runs/1-20261123-user/launch.json"])["argv"][3] == "--logging_dir=~"
    assert found["runs/1-20261123-user/console.log"].endswith("\nstep 1")
    assert f"torch=={torch.__version__}" in found["packages.txt"].splitlines()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"path": "C:\\\\Users\\\\janedoe\\\\models"}', '{"path": "~\\\\models"}'),
        ("C:\\Users\\somebody\\x", "~\\x"),
        ("'/home/somebody else'", "'~ else'"),
        ("/Users/Somebody/x and /home/other", "~/x and ~"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer <removed>"),
        ("https://me:word@host/a?token=abc&b=1", "https://<removed>@host/a?token=<removed>&b=1"),
        ("HF_TOKEN=abc python", "HF_TOKEN=<removed> python"),
        ("smtp_pass=two words", "smtp_pass=<removed>"),
        ("passphrase:\tone two three", "passphrase:\t<removed>"),
        ("signing-key => tail of\nnext", "signing-key => <removed>\nnext"),
        ("Access token: eyJ0 eXAi", "Access token: <removed>"),
        ("CIVITAI_KEY_OLD := x y", "CIVITAI_KEY_OLD := <removed>"),
        ('{"dbPassword": "a\\"b c", "n": 1}', '{"dbPassword": "<removed>", "n": 1}'),
        ('"{\\"refreshToken\\": \\"it\\\\\\"s\\", \\"n\\": 1}"', '"{\\"refreshToken\\": \\"<removed>\\", \\"n\\": 1}"'),
        ("{'client_secret': 'it\\'s', 'n': 1}", "{'client_secret': '<removed>', 'n': 1}"),
        ("pwd = 'it's mine'", "pwd = '<removed>'"),
        ('{"pin_credentials": {"a": [1, 2]}, "n": 1}', '{"pin_credentials": <removed>, "n": 1}'),
        ("['--hub-token=a b', '--steps=4']", "['--hub-token=<removed>', '--steps=4']"),
        ("--api_key a b --steps 4", "--api_key <removed> --steps 4"),
        ("ftp://me:p@ss%2F@host/x?n=1&apikey=a%20b&m=2", "ftp://<removed>@host/x?n=1&apikey=<removed>&m=2"),
        ("Set-Cookie: session=abc; Path=/", "Set-Cookie: <removed>"),
        ("run FEDCBA9876543210FEDCBA9876543210FEDCBA98", "run <removed>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END", "-----BEGIN RSA PRIVATE KEY-----<removed>-----END"),
        ("backward pass: 3 ms, pad tokens: 4, MissingKey: a", "backward pass: 3 ms, pad tokens: 4, MissingKey: a"),
        ("/media/somebody/disk and /run/media/other/disk", "~/disk and ~/disk"),
        ("/Volumes/Somebody's/x E:\\Users\\Some Van Body\\x", "~'s/x ~\\x"),
        ("file:///home/J%C3%B6rg%20K/x a=%2Fhome%2Fother%2Fx", "file:~/x a=~%2Fx"),
        ('metadata_author = "Some Body"', 'metadata_author = "<removed>"'),
        ("['--wandb_api_key', 'a b']", "['--wandb_api_key', '<removed>']"),
        ("--password a --username b", "--password <removed> --username b"),
        ("key is sk-abcdefghijklmnopqrst", "key is <removed>"),
        ("keep_tokens = 1, max_token_length = 225", "keep_tokens = 1, max_token_length = 225"),
        ("t5xxl_max_token_length=512 cache_key: a", "t5xxl_max_token_length=512 cache_key: a"),
        (f"{'a' * 64} is a hash", f"{'a' * 64} is a hash"),
        ("JaneDoe's and janedoeish", "user's and janedoeish"),
        ("/root/x on root", "/root/x on root"),
    ],
)
@pytest.mark.usefixtures("home")
def test_only_private_data_is_removed(text: str, left: str) -> None:
    assert diagnostics.Scrubber()(text) == left


@pytest.mark.usefixtures("home")
def test_the_value_of_any_variable_named_like_a_secret_is_removed_however_it_is_written(monkeypatch) -> None:
    names = ("CIVITAI_KEY", "SMTP_PASS", "PGPWD", "GPG_PASSPHRASE", "OURSECRETS", "GH_TOKEN_OLD", "AwsCredentialsX")
    values = [f'{number} pl"ain/välue' for number in range(len(names))]
    for name, value in zip(names, values, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PWD", "/srv/loras")
    monkeypatch.setenv("COMPASS", "short")
    scrub = diagnostics.Scrubber()
    for value in values:
        forms = [value, quote(value), json.dumps(value), shlex.quote(value), value.replace(" ", "\\ ")]
        forms.append(unicodedata.normalize("NFD", value))
        assert [form for form in forms if "lain" in scrub(f"it printed {form} here")] == []
    assert scrub("/srv/loras is short") == "/srv/loras is short"


def test_a_secret_inside_a_line_of_json_does_not_remove_the_line(home: Path, tmp_path: Path) -> None:
    folder = run_folder(home)
    events = [
        {"kind": "started", "argv": ["--my-token", TYPED, "--steps=3"], "keys": {"apiKey": {"deep": [TYPED]}}},
        {"kind": "failed", "error": f"password: {TYPED} and more", "details": f'{{"token": "a\\"{TYPED}"}}', "step": 4},
        {"kind": "warning", "text": "in " + quote(str(home)) + "/x", "deep": json.loads("[" * 300 + "]" * 300)},
    ]
    cut = '{"kind": "step", "secret": "' + TYPED
    (folder / "events.jsonl").write_text("\n".join([*map(json.dumps, events), cut]))
    diagnostics.write(tmp_path / "d.zip", "", [folder])
    text = texts(tmp_path / "d.zip")["runs/1-cats/events.jsonl"]
    assert TYPED not in text
    started, failed, warning = map(json.loads, text.splitlines()[:3])
    assert started["argv"] == ["--my-token", "<removed>", "--steps=3"]
    assert (failed["error"], failed["step"]) == ("password: <removed>", 4)
    assert warning["text"] == "in ~/x"
    assert text.splitlines()[3].startswith('{"kind": "step", "secret": "')


def test_the_home_folder_of_root_is_removed_and_the_word_root_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("USERPROFILE", "/root")
    monkeypatch.setenv("LOGNAME", "root")
    scrub = diagnostics.Scrubber()
    assert scrub("/root/a root /rooted /mnt/root/b \\\\root\\\\c") == "~/a root /rooted /mnt/root/b ~\\\\c"


def test_every_secret_of_the_options_is_removed() -> None:
    secrets = {o.name for script in SCRIPTS for group in script.groups for o in each_option(group) if o.secret}
    others = {o.name for script in SCRIPTS for group in script.groups for o in each_option(group) if not o.secret}
    scrub = diagnostics.Scrubber()
    assert {name for name in secrets if scrub(f'{name} = "{TYPED}"') == f'{name} = "<removed>"'} == secrets
    assert {name for name in others if TYPED not in scrub(f'{name} = "{TYPED}"')} == {*diagnostics.NAMES_OF_PEOPLE}


def test_a_large_file_keeps_its_start_and_end_in_whole_lines(home: Path, tmp_path: Path) -> None:
    folder = run_folder(home)
    lines = [f"line {number} {KEYS['HF_TOKEN']}" for number in range(100_000)]
    (folder / "console.log").write_text("\n".join(lines))
    diagnostics.write(tmp_path / "d.zip", "", [folder])
    text = texts(tmp_path / "d.zip")["runs/1-cats/console.log"]
    assert text.startswith("line 0 <removed>\nline 1 ")
    assert text.endswith("line 99999 <removed>")
    assert all(line.endswith("<removed>") or "bytes left out" in line for line in text.splitlines())
    assert len(text) < diagnostics.FIRST + diagnostics.LAST


@POSIX
def test_a_link_in_a_run_folder_leads_nowhere(home: Path, tmp_path: Path) -> None:
    folder = run_folder(home)
    (tmp_path / "other").write_text("of somebody else")
    (folder / "console.log").unlink()
    (folder / "console.log").symlink_to(tmp_path / "other")
    diagnostics.write(tmp_path / "d.zip", "", [folder])
    assert "runs/1-cats/console.log" not in texts(tmp_path / "d.zip")


def test_the_last_runs_are_included_unless_one_is_named(home: Path, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(program, "CHECKS", [Check(name="a", title="A", find=lambda: ok("a"), remedy="do")])
    assert program.main(["--zip", str(tmp_path / "none.zip")]) == 0
    assert list(texts(tmp_path / "none.zip")) == ["doctor.txt", "packages.txt"]
    store = RunStore()
    for number in range(5):
        store.add(run_folder(home, f"run{number}"), state="queued" if number == 4 else "finished")
    store.close()
    assert program.main(["--zip", str(tmp_path / "last.zip")]) == 0
    taken = {name.split("/")[1] for name in texts(tmp_path / "last.zip") if name.startswith("runs/")}
    assert taken == {"1-run3", "2-run2", "3-run1"}
    assert program.main(["--zip", str(tmp_path / "one.zip"), "--run", str(home / "runs" / "run0")]) == 0
    assert "runs/1-run0/config.toml" in texts(tmp_path / "one.zip")
    assert str(tmp_path / "one.zip") in capsys.readouterr().err


def test_a_zip_is_written_completely_or_not_at_all(home: Path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(program, "CHECKS", [Check(name="a", title="A", find=lambda: ok("a"), remedy="do")])
    (tmp_path / "d.zip").write_text("the one before")
    monkeypatch.setattr(diagnostics, "_text_of", raising_for_any(OSError(28, "No space left on device")))
    assert program.main(["--zip", str(tmp_path / "d.zip"), "--run", str(run_folder(home))]) == 1
    assert (tmp_path / "d.zip").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zip", "home"]
    assert "cannot be written: No space left on device" in capsys.readouterr().err


def raising_for_any(error: Exception) -> Callable[..., Any]:
    return lambda *_: raising(error)()


# The routes of the page

PRINTS = """
import json, sys, time
print(json.dumps({"checks": ["A", "B"]}), flush=True)
for title in ("A", "B"):
    finding = {"name": title, "title": title, "status": "ok", "text": "fine.", "remedy": ""}
    print(json.dumps(finding), flush=True)
    MORE
if "--zip" in sys.argv:
    open(sys.argv[sys.argv.index("--zip") + 1], "w").write(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def page(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of the routes; `page.more` is called by the process after each finding."""
    queue, checks = RunQueue(RunStore()), CheckProcess()
    client = TestClient(Starlette(routes=routes(queue, checks)))
    page = SimpleNamespace(client=client, queue=queue, more="pass", home=home)
    page.look = lambda known="": client.get(f"/studio/doctor?known={known}")
    monkeypatch.setattr(
        doctor, "command", lambda *flags: [sys.executable, "-c", PRINTS.replace("MORE", page.more), *flags]
    )
    yield page
    checks.stop()


def ended(page: Any) -> dict[str, Any]:
    wait_for(lambda: not page.look().json()["running"])
    return page.look().json()


def test_the_page_shows_each_finding_as_it_arrives(page: Any) -> None:
    assert page.look().json()["findings"] == []
    page.more = "time.sleep(600)"
    assert page.client.post("/studio/doctor", json={}).status_code == 200
    wait_for(lambda: len(page.look().json()["findings"]) == 1)
    state = page.look().json()
    assert (state["running"], state["titles"]) == (True, ["A", "B"])
    assert page.look(state["known"]).status_code == 204
    refused = page.client.post("/studio/doctor", json={})
    assert (refused.status_code, refused.json()["error"]) == (400, "The checks are already running")
    assert page.client.post("/studio/doctor/cancel", json={}).status_code == 200
    assert ended(page)["error"] == "The checks were cancelled"


def test_a_process_that_dies_is_reported_with_its_last_output(page: Any) -> None:
    page.more = "sys.exit('out of luck')"
    page.client.post("/studio/doctor", json={})
    assert ended(page)["error"] == "out of luck"
    page.more = "pass"
    page.client.post("/studio/doctor", json={})
    state = ended(page)
    assert (state["error"], len(state["findings"])) == ("", 2)


def test_the_page_downloads_the_diagnostics_of_a_run_or_of_the_last(page: Any) -> None:
    assert page.client.get("/studio/doctor/zip").status_code == 404
    row = page.queue.store.add(run_folder(page.home), state="finished")
    for run, words in ((None, ""), (row.id, f" --run {row.folder}")):
        page.client.post("/studio/doctor", json={"zip": True, "run": run})
        assert ended(page)["zip"] is True
        answer = page.client.get("/studio/doctor/zip")
        assert answer.headers["content-disposition"].startswith('attachment; filename="diagnostics-')
        assert answer.text.endswith(f"diagnostics.zip{words}")
    assert page.client.post("/studio/doctor", json={"zip": True, "run": 99}).status_code == 404
    page.client.post("/studio/doctor", json={})
    assert ended(page)["zip"] is False
