"""The command that trains: an argument list that shows everything relevant and hides secrets."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kohya_gui.runs.launch_command import LaunchCommand, build, setting_flags
from kohya_gui.runs.shell_line import cmd_line, posix_line, powershell_line
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.spec import Option
from sd_scripts.settings.catalog import SCRIPTS, script_path
from sd_scripts.settings.command_line import read_command_line
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script
from tests.support.scripts import FLUX_LORA, SDXL_LORA

OWN = SDXL_LORA.identity


def command(run_dir: Path | None = None, cpu: bool = False, **values) -> LaunchCommand:
    return build(from_values(SDXL_LORA, values), SDXL_LORA, Path("/my runs/cat.toml"), run_dir=run_dir, cpu=cpu)


def test_the_command_starts_the_script_through_accelerate_with_this_python():
    argv = command(mixed_precision="bf16").argv
    assert argv[:2] == [str(Path(sys.executable).with_name("accelerate")), "launch"]
    script = next(word for word in argv if word.endswith(".py"))
    assert Path(script).is_absolute()
    assert Path(script).name == "sdxl_train_network.py"
    assert argv[2 : argv.index(script)] == [
        *("--dynamo_backend", "no", "--num_processes", "1", "--num_machines", "1"),
        *("--num_cpu_threads_per_process", "2", "--mixed_precision", "bf16"),
    ]
    assert argv[argv.index(script) + 1 :] == ["--config_file", str(Path("/my runs/cat.toml"))]


def test_each_family_has_its_script():
    settings = from_values(FLUX_LORA, {"clip_l": "c.safetensors", "timestep_sampling": "shift", "compile": True})
    flux = build(settings, FLUX_LORA, Path("/my runs/cat.toml"), cpu=False)
    script = next(at for at, word in enumerate(flux.argv) if word.endswith(".py"))
    assert Path(flux.argv[script]).name == "flux_train_network.py"
    assert flux.argv[script + 1 :] == ["--config_file", str(Path("/my runs/cat.toml")), "--compile"]
    assert flux.toml == {
        **FLUX_LORA.identity,
        "clip_l": "c.safetensors",
        "timestep_sampling": "shift",
        "compile": True,
    }


def test_compile_and_its_options_are_flags_too():
    chosen = {
        "compile": True,
        "compile_mode": "reduce-overhead",
        "compile_dynamic": "false",
        "compile_fullgraph": True,
        "compile_cache_size_limit": 32,
    }
    both = command(**chosen, seed=1)
    assert both.argv[-8:] == [
        *("--compile", "--compile_mode", "reduce-overhead", "--compile_dynamic", "false"),
        *("--compile_fullgraph", "--compile_cache_size_limit", "32"),
    ]
    assert both.toml == OWN | chosen | {"seed": 1}
    off = command(compile=False, compile_mode="reduce-overhead")  # without effect, and kept for later
    assert off.argv[-1] == str(Path("/my runs/cat.toml"))
    assert off.toml == OWN | {"compile_mode": "reduce-overhead"}
    vae = command(compile_vae=True, compile_mode="max-autotune")
    assert vae.argv[-2:] == ["--compile_mode", "max-autotune"]
    assert vae.toml == OWN | {"compile_vae": True, "compile_mode": "max-autotune"}


def test_defaults_of_the_compile_options_are_in_neither_command_nor_file():
    built = command(compile=True, compile_backend="inductor", compile_dynamic="auto", compile_cache_size_limit=0)
    assert built.argv[-1] == "--compile"
    assert built.toml == OWN | {"compile": True}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
def test_the_settings_file_alone_is_the_same_run_as_the_command_that_names_it(script: Script, tmp_path: Path) -> None:
    compile_options = {o.name: other_value(o) for o in each_option(CompileOptions)}
    file = tmp_path / "config.toml"
    started = build(from_values(script, {**compile_options, "seed": 3}), script, file, cpu=False)
    write_toml(file, started.toml)
    words = started.argv[started.argv.index(str(script_path(script))) + 1 :]
    assert words[2:] == setting_flags(compile_options)
    of_command, _ = read_command_line(script, words)
    of_file, _ = read_command_line(script, ["--config_file", str(file)])
    assert of_file.values() == of_command.values()
    assert {name: of_file.values()[name] for name in compile_options} == compile_options


def other_value(o: Option) -> object:
    """Return a valid value of an option that is not its default."""
    if o.many:
        return ["shape_padding=True"]
    if o.type is bool:
        return not o.default
    return next((choice for choice in o.choices if choice != o.default), 32)


def test_several_processes_mean_several_gpus():
    argv = command(num_processes=2, gpu_ids="0, 1", main_process_port=29501).argv
    assert "--multi_gpu" in argv
    assert argv[argv.index("--gpu_ids") + 1] == "0,1"
    assert argv[argv.index("--main_process_port") + 1] == "29501"
    assert "--multi_gpu" not in command().argv
    sharded = command(num_processes=2, extra_accelerate_launch_args="--use_fsdp --fsdp_version 2").argv
    assert "--multi_gpu" not in sharded  # accelerate takes one of the two
    assert "--use_fsdp" in sharded


def test_without_its_program_next_to_python_accelerate_is_started_as_a_module(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    assert command().argv[:3] == ["/elsewhere/python", "-m", "accelerate.commands.launch"]


def test_more_accelerate_arguments_keep_their_quotes_together():
    argv = command(extra_accelerate_launch_args='--rdzv_conf "a b" --tee C:\\log').argv
    script = next(at for at, word in enumerate(argv) if word.endswith(".py"))
    assert argv[script - 4 : script] == ["--rdzv_conf", "a b", "--tee", "C:\\log"]


def test_secrets_are_passed_only_by_environment():
    secret = command(wandb_api_key="key", huggingface_token="token")
    assert secret.environment == {"WANDB_API_KEY": "key", "HF_TOKEN": "token"}
    assert not {"key", "token"} & set(secret.argv)
    assert not {"wandb_api_key", "huggingface_token"} & secret.toml.keys()


def test_several_processes_without_a_gpu_use_the_cpu():
    assert command(num_processes=2, cpu=True).environment == {"ACCELERATE_USE_CPU": "true"}
    assert command(cpu=True).environment == {}


def test_the_run_folder_is_handed_over():
    assert command(run_dir=Path("/runs/1")).argv[-2:] == ["--run_dir", str(Path("/runs/1"))]


def test_unknown_keys_of_the_file_stay_in_the_file():
    assert command(someones_key=3).toml == {**SDXL_LORA.identity, "someones_key": 3}


WORDS = [
    "--flag", "two words", 'it\'s "mine"', "$(touch INJ)", "`touch INJ`", "a;b", "a|b", "a&calc&b", "%PATH%", "50%",
    '50% "off" & more', "C:\\out\\a&calc&-command.toml", "C:\\a folder\\", "a^b", "!x!", "", "~", "*", "#", "a=b",
    "\u2019x", "\\\\server\\c$\\x", 'end\\"',
]  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("more", [[], ["two\nlines'", "tab\tand \x1b escape\\"]])
def test_a_line_pasted_into_a_shell_keeps_the_words(more):
    argv = [*WORDS, *more]
    line = posix_line([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *argv])
    assert len(line.splitlines()) == 1
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert ast.literal_eval(shown.stdout) == argv


def after_cmd(line: str) -> str:
    """What cmd.exe hands to a program; fails where it would take a character for its own."""
    for name in line.split("%")[1:-1]:
        assert "^" in name  # between two percent signs, such a name does not belong to a variable
    handed, quoted, rest = "", False, iter(line)
    for letter in rest:
        if letter == "^" and not quoted:
            handed += next(rest)
            continue
        quoted ^= letter == '"'
        assert quoted or letter not in "&|<>()%!", line
        handed += letter
    assert not quoted
    return handed


def as_windows_splits(line: str) -> list[str]:
    """The words that the C runtime of Windows finds in a line."""
    words, word, quoted, begun = [], "", False, False
    for slashes, letter in re.findall(r"(\\*)([^\\]|$)", line):
        if letter == '"':
            word += "\\" * (len(slashes) // 2)
            word, quoted = (word + '"', quoted) if len(slashes) % 2 else (word, not quoted)
            begun = True
            continue
        word, begun = word + slashes, begun or bool(slashes)
        if letter in (" ", "") and not quoted:
            words += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
    return words


def test_a_line_pasted_into_cmd_keeps_the_words():
    for word in WORDS:
        assert as_windows_splits(after_cmd(cmd_line(["python.exe", word, "end"]))) == ["python.exe", word, "end"]


def test_a_line_pasted_into_powershell_is_quoted_where_needed():
    line = powershell_line(["C:\\Program Files\\python.exe", "-c", "$(calc)", "it's", "\u2019;calc", 'a"b'])
    assert line == "& 'C:\\Program Files\\python.exe' -c '$(calc)' 'it''s' '\u2019\u2019;calc' 'a\\\"b'"
    assert powershell_line(["python.exe", "--x"]) == "python.exe --x"
