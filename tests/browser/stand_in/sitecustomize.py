"""Python imports this first in all that a GUI under test starts: a training script then trains, or only reports, as
`training_comment` in its settings says, and the checks of the machine leave out the slow ones."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def main(config: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from sd_scripts.formats.toml_files import read_toml
    from sd_scripts.runs.folder import RunFolder

    settings = read_toml(config)
    folder = RunFolder(Path(settings.get("run_dir") or config.parent))
    match settings.get("training_comment"):
        case "tells":
            from tests.browser import stand_in_trainer

            stand_in_trainer.train(settings, folder)
            leave(0)
        case "fails":
            error = "optimizer_type: cannot find 'nowhere.Optimizer'"
            folder.log()("failed", error=error, remedy="install it")
            leave(1)
        case comment:
            del sys.path[0]
            if comment == "breaks":  # its network is a module of the tests
                os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])
                sys.path.append(str(ROOT))


def start_tools_warm() -> None:
    """Let this GUI fork its tools and the process that generates. Runs, measured ones too, begin from nothing: they are
    known by the environment that they were started with."""
    sys.path.insert(0, str(ROOT))
    import subprocess

    from tests.support.suite.fresh import can_fork
    from tests.support.suite.warm_python import WarmPython

    if not can_fork():
        return

    class WarmTools(WarmPython):
        def takes(self, words: list[str]) -> bool:
            tool = words[0] == "-m" and words[1].startswith("sd_scripts.tools.")
            return words[0].endswith("_generate.py") or (tool and not words[1].endswith(("doctor", "measure_compile")))

    subprocess.Popen = WarmTools


def leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_program, _flags = Path(sys.orig_argv[1] if len(sys.orig_argv) > 1 else ""), sys.orig_argv[2:]
_trains = "--config_file" in _flags and "--plan" not in _flags  # the page's plan asks the same script
if _program.parent.name == "sd_scripts" and "_train" in _program.name and _trains:
    main(Path(_flags[_flags.index("--config_file") + 1]))
if _program.name == "gui.py" and sys.platform == "linux":
    start_tools_warm()
if sys.orig_argv[1:3] == ["-m", "sd_scripts.tools.doctor"]:
    sys.argv.append("--quick")
