"""A base model that is named by its Hugging Face id is downloaded in a phase of its own."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from sd_scripts.families.common.loading import progress_bar
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.run_state import RunState
from sd_scripts.training.process.model_download import PHASE, DownloadPhase
from tests.support.hub.files import ModelSite, model_site

__all__ = ["model_site"]
REPO = "them/tiny"
FILES = {"unet.safetensors": bytes(3_000_000), "vae.safetensors": b"x" * 1_000_000}


@pytest.fixture
def site(model_site: ModelSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModelSite:
    model_site.files |= {f"{REPO}/{name}": content for name, content in FILES.items()}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in is not a Xet store
    return model_site


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def fetch(folder: RunFolder) -> Path:
    """Download as diffusers does, whose pipelines take seconds to import."""
    return Path(snapshot_download(REPO, tqdm_class=progress_bar(DownloadPhase(Reporter(folder)))))


def state_of(folder: RunFolder) -> RunState:
    state = RunState()
    for event in folder.events():
        state.apply(event)
    return state


def test_the_phase_counts_the_bytes_of_all_files(site: ModelSite, folder: RunFolder) -> None:
    assert {file.name: file.read_bytes() for file in fetch(folder).iterdir()} == FILES
    state = state_of(folder)
    assert (state.phase, state.done, state.total, state.phase_note) == (PHASE, 4, 4, "MB")


def test_a_model_in_the_cache_has_no_such_phase(site: ModelSite, folder: RunFolder) -> None:
    snapshot_download(REPO)
    fetch(folder)
    assert state_of(folder).phase == ""


def test_a_stop_ends_the_download(site: ModelSite, folder: RunFolder) -> None:
    folder.command("stop")
    with pytest.raises(KeyboardInterrupt):
        fetch(folder)


def test_diffusers_downloads_by_the_function_that_is_given_the_progress_bar() -> None:
    spec = find_spec("diffusers")
    assert spec
    assert spec.origin
    pipelines = Path(spec.origin).parent / "pipelines" / "pipeline_utils.py"
    assert "= snapshot_download(" in pipelines.read_text(encoding="utf-8")
