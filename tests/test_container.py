"""What the Dockerfile and compose.yaml promise, as far as it shows without building the image."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kohya_gui import command
from sd_scripts.machine.cuda_builds import BUILDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


def arguments(steps: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for name, rest in steps if name == instruction]


def test_the_image_gets_the_program_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    named = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {"gui.py", "kohya_gui", "sd_scripts", "presets", "pyproject.toml", "requirements.txt"} <= set(named)


def test_a_change_of_code_reinstalls_no_packages(steps) -> None:
    assert arguments(steps, "COPY") == ["requirements.txt requirements-no-deps.txt /app/", ". /app/"]
    installs = [
        rest for name, rest in steps[: steps.index(("COPY", ". /app/"))] if name == "RUN" and "pip install" in rest
    ]
    assert installs
    assert " ".join(installs[0].split()).endswith(
        "pip install -r /app/requirements.txt && pip install --no-deps -r /app/requirements-no-deps.txt"
    )


def test_the_container_does_not_run_as_root(steps) -> None:
    assert arguments(steps, "USER") == ["$UID"]
    assert "UID=1000" in arguments(steps, "ARG")


def test_the_container_serves_the_page_beyond_itself_with_a_token(steps) -> None:
    (served,) = arguments(steps, "CMD")
    flags = command.parser().parse_args(json.loads(served))
    assert command.open_to_others(flags)
    assert command.refusal(flags) is None
    assert [str(flags.server_port)] == arguments(steps, "EXPOSE")


def test_compose_publishes_the_page_to_this_machine_only_and_passes_the_gpus(steps) -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["studio"]
    (port,) = arguments(steps, "EXPOSE")
    (volume,) = arguments(steps, "VOLUME")
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert service["volumes"] == [f"./data:{volume}"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert set(service["build"]["args"]) == {rest.partition("=")[0] for rest in arguments(steps, "ARG")}


def test_the_index_for_drivers_of_cuda_12_is_the_one_that_setup_chooses() -> None:
    for name in ("Dockerfile", "docs/docker.md"):
        found = re.findall(r"TORCH_INDEX=(http\S+?)[\s`]", (ROOT / name).read_text(encoding="utf-8"))
        assert set(found) == {BUILDS[1].index}
