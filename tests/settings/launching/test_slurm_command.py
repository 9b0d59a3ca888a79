"""The command lines of a Slurm job: what sbatch is asked for, and what each node starts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import launch_command_parser

from kohya_gui.runs.launch_command import build
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.launch import LaunchOptions, SlurmOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.store import SLURM, RunStore
from sd_scripts.settings import preflight
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.launching import slurm, slurm_node
from sd_scripts.settings.launching.accelerate_command import processes_of
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Slurm does not run on Windows")

ROOT = Path(__file__).parents[3]


def settings(**values: Any) -> Settings:
    return from_values(SDXL_LORA, {"where": "slurm", **values})


def requests(folder: Path = Path("/runs/cat"), **values: Any) -> list[str]:
    chosen = settings(**values)
    command = slurm.sbatch_command(chosen[SlurmOptions], chosen[LaunchOptions], ["train.py"], RunFolder(folder))
    script = next(at for at, word in enumerate(command) if word.endswith(".sh"))
    assert command[:2] == ["sbatch", "--parsable"]
    assert command[script + 1 :] == [sys.executable, "-m", slurm_node.__name__, "train.py"]
    return command[2:script]


def test_a_job_requests_what_the_options_say() -> None:
    chosen = {"slurm_partition": "gpu,big", "slurm_nodes": 2, "slurm_gpus": "a100:4", "slurm_time": "12:00:00"}
    assert requests(**chosen, num_cpu_threads_per_process=3) == [
        *("--job-name=cat", "--output=/runs/cat/console.log", "--nodes=2", "--ntasks-per-node=1"),
        *("--partition=gpu,big", "--time=12:00:00", "--gpus-per-node=a100:4", "--cpus-per-task=12"),
    ]
    for values, processes in (({**chosen}, 8), ({"where": "here", "slurm_gpus": "8"}, 3)):
        run = settings(**values, num_processes=3)
        assert processes_of(run[LaunchOptions], run[SlurmOptions]) == processes


def test_options_of_this_machine_are_reported_as_without_effect() -> None:
    chosen = {"num_processes": 4, "gpu_ids": "0,1,2,3"}
    remarks = {remark.name: remark.text for remark in settings(**chosen).remarks}
    assert all("set slurm_nodes and slurm_gpus instead" in remarks[name] for name in chosen)
    assert not {remark.name for remark in settings(where="here", **chosen).remarks} & {*chosen}


def test_odd_characters_of_a_folder_stay_as_they_are() -> None:
    odd = requests(Path("/a %j b/$(touch x);ü'\"/cat"))
    assert odd[1] == "--output=/a %%j b/$(touch x);ü'\"/cat/console.log"


def test_resources_in_the_batch_script_replace_those_of_the_options(tmp_path: Path) -> None:
    script = tmp_path / "own.sh"
    script.write_text('#!/bin/bash\n#SBATCH --gres=gpu:a100:2 --cpus-per-task=16\nsrun "$@"  # --gpus\n')
    found = requests(slurm_template=str(script), slurm_gpus="2")
    assert not [flag for flag in found if flag.startswith(("--gpus", "--cpus"))]
    script.write_text('#!/bin/bash\n# --gres\nsrun "$@"\n')
    assert "--gpus-per-node=2" in requests(slurm_template=str(script), slurm_gpus="2")
    assert not any("gpus" in flag for flag in requests(slurm_gpus="0"))


def wrong(**values: Any) -> list[str]:
    own = {o.name for o in each_option(SlurmOptions)}
    return [name for problem in settings(**values).problems() for name in problem.names if name in own]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"slurm_gpus": "many"}, "slurm_gpus"),
        ({"slurm_gpus": "2 --wrap=x"}, "slurm_gpus"),
        ({"slurm_gpus": "²"}, "slurm_gpus"),
        ({"slurm_time": "tomorrow"}, "slurm_time"),
        ({"slurm_time": "1:00:00\n--uid=0"}, "slurm_time"),
        ({"slurm_partition": "gpu --uid=0"}, "slurm_partition"),
        ({"slurm_nodes": 0}, "slurm_nodes"),
        ({"where": "moon"}, "where"),
    ],
)
def test_wrong_values_are_refused_by_their_name(values: dict[str, Any], name: str) -> None:
    assert wrong(**values) == [name]


@pytest.mark.parametrize("time", ["90", "90:30", "12:00:00", "2-0", "2-00:00", "2-00:00:00", "UNLIMITED"])
def test_every_form_of_a_time_limit_is_accepted(time: str) -> None:
    assert wrong(slurm_time=time) == []


def test_what_a_job_cannot_have_is_refused_before_it_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = [*preflight.slurm(settings(slurm_template="/no/file.sh", wandb_api_key="abcdefghijkl"))]
    assert [sentence.partition(":")[0] for sentence in found] == ["where", "slurm_template", "wandb_api_key"]
    assert "abcdefghijkl" not in "".join(found)
    assert [*preflight.slurm(settings(where="here", wandb_api_key="abcdefghijkl"))] == []


def test_the_page_prints_a_command_that_submits_and_starts_sbatch(tmp_path: Path) -> None:
    printed = build(settings(slurm_gpus="2", main_process_port=29500), SDXL_LORA)
    assert printed.remarks[-1].name == "main_process_port"
    assert printed.argv[0] == sys.executable
    assert printed.argv[2:] == ["--where", "slurm", "--slurm_gpus", "2"]
    started = build(settings(), SDXL_LORA, tmp_path / "config.toml", run_dir=tmp_path).started
    assert (started.argv[0], started.argv[-1], started.environment) == ("sbatch", str(tmp_path), {})


def test_a_run_submitted_from_the_command_line_is_in_the_list_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 12\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    chosen = settings(output_dir=str(tmp_path / "out"), output_name="cat", seed=3)
    submitted = slurm.submit(chosen)
    slurm.add_to_list(submitted, "cat", "sdxl")
    (row,) = RunStore().living()
    assert (row.name, row.gpus, row.process, row.folder) == ("cat", SLURM, "slurm 12", submitted.folder.path)
    assert read_toml(submitted.folder.config) == chosen.saved()


def test_a_refused_run_leaves_no_folder_and_replaces_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="sbatch was not found"):
        slurm.submit(settings(output_dir=str(tmp_path)))
    assert [*(tmp_path / "runs").iterdir()] == []
    (tmp_path / "config.toml").write_text("seed = 1\n")
    with pytest.raises(ValueError, match=r"^run_dir: .* has the settings of another run"):
        slurm.submit(settings(run_dir=str(tmp_path)))
    assert (tmp_path / "config.toml").read_text() == "seed = 1\n"


# On a node


def node(tmp_path: Path, environment: dict[str, str] | None = None, on_cpu: bool = False, **values: Any) -> Any:
    write_toml(tmp_path / "config.toml", settings(**values).saved())
    script = str(ROOT / "sd_scripts" / SDXL_LORA.file)
    flags = ["--config_file", str(tmp_path / "config.toml"), "--run_dir", str(tmp_path)]
    return slurm_node.command([script, *flags], environment or {}, on_cpu)


def test_one_process_starts_without_a_launcher_and_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    start = node(tmp_path, gpu_ids="3")
    assert start.argv[0] == sys.executable
    assert start.argv[-2:] == ["--where", "here"]
    assert "CUDA_VISIBLE_DEVICES" not in start.environment  # Slurm's choice


def test_each_node_joins_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\n[ \"$*\" = 'show hostnames n[7-8]' ] && echo n7 && echo n8\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    of_task = {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_JOB_ID": "123456"}
    more = "--use_fsdp --fsdp_version 2"
    start = node(tmp_path, of_task, slurm_nodes=2, slurm_gpus="h100:8", extra_accelerate_launch_args=more)
    launch = launch_command_parser().parse_args(start.argv[start.argv.index("launch") + 1 :])
    assert (launch.num_machines, launch.num_processes, launch.machine_rank) == (2, 16, 1)
    assert (launch.main_process_ip, launch.main_process_port) == ("n7", 23456)
    assert (launch.use_fsdp, launch.fsdp_version, launch.multi_gpu) == (True, "2", False)
    assert Path(launch.training_script).name == SDXL_LORA.file


def test_several_processes_without_a_gpu_train_on_the_cpu(tmp_path: Path) -> None:
    start = node(tmp_path, on_cpu=True, slurm_gpus="2")
    assert start.environment == {"ACCELERATE_USE_CPU": "true"}
    assert "--multi_gpu" in start.argv


def test_a_requeued_run_resumes_only_if_it_has_saved_a_state(tmp_path: Path) -> None:
    again = {"SLURM_RESTART_COUNT": "1"}
    log = RunFolder(tmp_path).log()
    log("saved", path=str(tmp_path / "cat-step00000004.safetensors"), step=4)
    assert "--resume" not in node(tmp_path, again).argv
    log("saved", path=str(tmp_path / "cat-step00000004-state"), step=4)
    log.close()
    assert node(tmp_path, again).argv[-2:] == ["--resume", "latest"]
    assert "--resume" not in node(tmp_path).argv


def test_the_documented_batch_script_is_the_template_and_valid() -> None:
    template = slurm.TEMPLATE.read_text(encoding="utf-8")
    assert f"```sh\n{template}```" in (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(slurm.TEMPLATE)], check=True)
