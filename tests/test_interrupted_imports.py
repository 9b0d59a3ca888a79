"""Ctrl-C while a program is still being imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite.fresh import found_by_processes

ROOT = Path(__file__).parents[1]
INTERRUPT = """
import os, sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""


def interrupted(folder: Path, module: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python in which Ctrl-C comes when it imports the module."""
    (folder / "sitecustomize.py").write_text(INTERRUPT)
    found = found_by_processes()
    path = os.pathsep.join((str(folder), found["PYTHONPATH"]))
    env = {**os.environ, **found, "PYTHONPATH": path, "INTERRUPTED_IMPORT": module}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another exit code")
@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["sd_scripts/finetune/merge_captions_to_metadata.py"], "sd_scripts.tools.captioning.merging"),
        (["-m", "sd_scripts.finetune.merge_dd_tags_to_metadata"], "sd_scripts.runs.tool"),
        (["sd_scripts/finetune/prepare_buckets_latents.py"], "sd_scripts.families.cards.model_file"),
        (["-m", "sd_scripts.tools.svd_merge_lora"], "sd_scripts.settings.tools.lora_tools"),
        (["sd_scripts/flux_kontext_train_network.py"], "sd_scripts.training.launch"),
    ],
)
def test_an_interrupted_import_prints_one_line_and_exits_like_an_interrupted_program(
    command: list[str], module: str, tmp_path: Path
) -> None:
    done = interrupted(tmp_path, module, *command)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "Stopped\n", "")  # 130 in a shell


def test_a_program_that_imports_ours_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("import sd_scripts.settings.catalog")
    done = interrupted(tmp_path, "sd_scripts.settings.catalog", str(tmp_path / "theirs.py"))
    assert done.stdout == ""
    assert done.stderr.endswith("KeyboardInterrupt\n")
