"""What a GUI under test starts as `accelerate launch`: it trains, or only tells, as `training_comment` says."""

import os
import sys
from pathlib import Path
from typing import Any

STAND_IN, TESTS, ROOT = Path(__file__).parents[2], Path(__file__).parents[4], Path(__file__).parents[5]


def main() -> None:
    sys.path[:] = [str(ROOT), str(TESTS), *(folder for folder in sys.path if folder != str(STAND_IN))]
    from sd_scripts.formats.toml_files import read_toml

    config = Path(sys.argv[sys.argv.index("--config_file") + 1])
    settings = read_toml(config)
    match settings.get("training_comment"):
        case "tells":
            tell(config.parent, settings)
        case "fails":
            fail(config.parent)
        case "breaks":
            train(TESTS)
        case _:
            train()


def tell(run: Path, settings: dict[str, Any]) -> None:
    import telling_trainer

    model = Path(settings["output_dir"]) / f"{settings['output_name']}.safetensors"
    steps, method = str(settings["max_train_steps"]), settings["method"]
    telling_trainer.main(str(run), steps, seconds="0.05", model=str(model), method=method)


def fail(run: Path) -> None:
    from sd_scripts.runs.folder import RunFolder

    RunFolder(run).log()("failed", error="optimizer_type: cannot find 'nowhere.Optimizer'", remedy="install it")
    raise SystemExit(1)


def train(*more: Path) -> None:
    """The real thing, in this process and in those that it starts, which also find modules in `more` folders."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        del sys.modules[name]
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    kept = [folder for folder in folders if folder != str(STAND_IN)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*kept, *map(str, more)])
    from accelerate.commands.accelerate_cli import main as launch

    launch()
