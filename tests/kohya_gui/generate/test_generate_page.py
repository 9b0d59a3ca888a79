"""The tab Generate without a browser: its routes, and the resident process that they start."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.generate.control_uploads import CONTROL_FOLDER, KEPT_SECONDS, keep_control, remove_unused
from kohya_gui.generate.generate_form import ROWS, form, options_of, values_of
from kohya_gui.generate.generate_job import Request as Asked
from kohya_gui.generate.generate_routes import GenerateRoutes, as_form, routes
from sd_scripts.families.flux.family import FLUX
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.images.image_parameters import read_chunks, text_chunks
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.generating.serve import Server
from sd_scripts.library.diffusion.media import Media
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.process import STARTED_BY
from sd_scripts.runs.queue import PlannedRun, RunQueue, gpu_set
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.store import RunStore, state_folder
from sd_scripts.settings.catalog import GENERATE_SCRIPTS
from sd_scripts.settings.launching.accelerate_command import sees_no_gpu
from tests.support.clips import make_clip
from tests.support.data import make_image
from tests.support.runs import wait_for

pytestmark = pytest.mark.run

PROMPT = "a red circle"
PARAMETERS: dict[str, Any] = {
    "prompt": 'a cat, "tom"\nin the sun: 2',
    "negative_prompt": "bad, worse",
    "steps": 20,
    "sampler": "euler_a",
    "scale": 7.5,
    "guidance": None,
    "seed": 5,
    "width": 512,
    "height": 768,
    "model": "my, model",
    "adapters": [{"name": "a b", "strength": 0.8}],
}
OF_WEBUI = """a cat <lora:tom:0.6>
on a chair
Negative prompt: blurry,
lowres
Steps: 25, Sampler: DPM++ 2M Karras, CFG scale: 6.5, Seed: 42, Size: 832x1216, Model hash: 31e35c80fc, Model: sd_xl, \
Lora hashes: "tom: 1a2b, x: 3c", Version: v1.10"""


class Tab:
    """The routes, as a browser reaches them, with a list of runs."""

    def __init__(self, folder: Path, allowed_paths: AllowedPaths = EVERYWHERE) -> None:
        self.folder = folder
        self.queue = RunQueue(RunStore(folder / "runs.sqlite"), every=0.05)
        self.browser = TestClient(Starlette(routes=routes(self.queue, allowed_paths)))

    def get(self, path: str = "") -> Any:
        return self.browser.get(f"/studio/generate{path}")

    def post(self, path: str = "", **body: Any) -> Any:
        return self.browser.post(f"/studio/generate{path}", json=body)

    def request(self) -> dict[str, Any]:
        """The newest request."""
        found: dict[str, Any] = self.get().json()["requests"][0]
        return found

    def over(self) -> dict[str, Any]:
        """The newest request, once it is done or has failed."""
        wait_for(lambda: self.request()["state"] in ("done", "failed"))
        return self.request()


@pytest.fixture
def tab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tab = Tab(tmp_path)
    yield tab
    tab.post("/free")
    wait_for(lambda: not tab.get().json()["alive"])


def typed(miniature: Any, folder: Path, **more: Any) -> dict[str, Any]:
    files = {name: str(path) for name, path in miniature.files.items()}
    small = {"width": "64", "height": "64", "steps": "2", "dtype": "fp32", "t5xxl_max_token_length": "16"}
    return {**files, **small, "prompt": PROMPT, "image_dir": str(folder / "images"), **more}


@pytest.mark.usefixtures("warm_python")
def test_the_process_answers_requests_and_gives_way_to_a_run(tab: Tab, flux_miniature: Any, tmp_path: Path) -> None:
    values = typed(flux_miniature, tmp_path)
    assert tab.post(family="flux", values={**values, "images_per_prompt": "2"}).status_code == 200
    first = tab.over()
    assert (first["error"], len(first["files"])) == ("", 2)
    where = f"?image_dir={tmp_path / 'images'}"
    gallery = tab.get(f"/gallery{where}").json()
    assert gallery["total"] == 2
    told = gallery["images"][0]
    assert (told["parameters"]["prompt"], told["width"], told["form"]["family"]) == (PROMPT, 64, "flux")
    assert tab.get(f"/image/{told['name']}{where}").headers["content-type"] == "image/png"
    assert tab.get(f"/image/..%2fruns.sqlite{where}").status_code == 404

    # a request that cannot be done ends nothing
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes((8).to_bytes(8, "little") + b'{"a":{}}')
    assert tab.post(family="flux", values={**values, "lora_weights": str(adapter)}).status_code == 400
    tab.post(family="flux", values={**values, "prompt": f"{PROMPT} --s 900"})
    wait_for(lambda: tab.request()["state"] == "generating" and tab.request()["total"] == 900)
    assert [tab.request()[name] for name in ("image", "last", "images")] == [1, 1, 1]
    tab.post(family="flux", values=values)
    tab.post("/cancel", id=tab.request()["id"])
    assert tab.over()["error"] == "Cancelled"

    def working() -> Any:
        return tab.get().json()["requests"][1]

    assert working()["state"] == "generating"  # which a request that is cancelled in the queue does not wait for
    wait_for(lambda: working()["preview"] > 0)
    assert tab.get("/preview").headers["content-type"] == "image/webp"
    tab.post("/cancel", id=working()["id"])
    wait_for(lambda: working()["state"] == "failed")
    assert working()["error"] == "Cancelled"
    assert tab.get().json()["alive"]

    run = new_run_folder(tmp_path / "runs", "next")
    write_toml(run.config, {})
    tab.queue.add(PlannedRun(folder=run, argv=["true"], name="next", gpus=gpu_set("", sees_no_gpu())))
    tab.queue.open()
    wait_for(lambda: not tab.get().json()["alive"])
    wait_for(lambda: not tab.queue.store.queued())
    tab.queue.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": ""}, "prompt: not set"),
        ({"width": "100"}, "prompt: width 100 is not a multiple of 16; choose 96 or 112"),
        ({"steps": "many"}, "steps: 'many' is not a whole number"),
        ({"ae": "/nowhere"}, "ae: file or folder not found: '/nowhere'"),
        ({"lora_weights": "/nowhere"}, "lora_weights: file not found: '/nowhere'"),
    ],
)
def test_a_wrong_form_is_refused_before_anything_starts(
    tab: Tab, flux_miniature: Any, tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    answer = tab.post(family="flux", values={**typed(flux_miniature, tmp_path), **changes})
    assert answer.status_code == 400
    assert why in answer.json()["error"]
    assert f'data-field="generate-{why.partition(":")[0]}"' in answer.json()["html"]
    assert tab.get().json()["requests"] == []


GUI = """
import json, sys, time
from pathlib import Path
from kohya_gui.generate.generate_job import GenerateJob
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore, state_folder
job = GenerateJob(RunQueue(RunStore(Path(sys.argv[1]))))
for values in json.loads(sys.argv[2]):
    job.generate("flux", values)
time.sleep(600)
"""


@pytest.mark.usefixtures("warm_python")
def test_the_page_of_a_restarted_gui_shows_unfinished_images(
    flux_miniature: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    form = typed(flux_miniature, tmp_path)
    asked = json.dumps([values_of("flux", {**form, "prompt": f"{PROMPT} --s {steps}"}) for steps in (900, 2)])
    command = [sys.executable, "-c", GUI, str(tmp_path / "runs.sqlite"), asked]
    first = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
    wait_for(
        lambda: [file for file in (tmp_path / "state").rglob("commands.jsonl") if file.read_text().count("\n") == 2]
    )
    other = Tab(tmp_path)
    assert other.get().json()["requests"] == []  # the GUI that has them is alive
    first.kill()
    first.wait()

    tab = Tab(tmp_path)
    wait_for(lambda: tab.get().json()["requests"][1]["total"] == 900)
    last, began = tab.get().json()["requests"]
    assert (tab.get().json()["family"], began["state"], last["state"]) == ("flux", "generating", "waiting")
    tab.post("/cancel", id=began["id"])
    assert (tab.over()["state"], len(tab.request()["files"])) == ("done", 1)
    wait_for(lambda: not tab.get().json()["alive"])


def test_the_gallery_shows_the_folder_of_the_form_if_the_page_may_see_it(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        make_image(tmp_path / name / "a.png", (48, 32))
    tab = Tab(tmp_path, AllowedPaths.within([tmp_path / "mine"]))
    seen = {name: f"?image_dir={tmp_path / name}" for name in ("mine", "theirs", "nothing", "%00")}
    assert [tab.get(f"/gallery{where}").json()["total"] for where in seen.values()] == [1, 0, 0, 0]
    assert [tab.get(f"/image/a.png{where}").status_code for where in seen.values()] == [200, 404, 404, 404]


def test_comments_and_empty_lines_among_the_prompts_make_no_images() -> None:
    lines = "# summer\n\na red circle --d 1\n  # autumn\na leaf #2\n"
    assert values_of("flux", {"prompt": lines})["prompt"] == ["a red circle --d 1", "a leaf #2"]
    assert not values_of("flux", {"prompt": "# nothing yet"}).get("prompt")


def test_paths_outside_the_allowed_folders_are_refused(tmp_path: Path, flux_miniature: Any) -> None:
    tab = Tab(tmp_path, AllowedPaths.within([tmp_path / "inside"]))
    answer = tab.post(family="flux", values=typed(flux_miniature, tmp_path))
    assert answer.status_code == 400
    assert "is outside the allowed folders" in answer.json()["error"]


def test_a_control_image_is_saved_next_to_the_images_and_returns_with_their_parameters(
    tab: Tab, tmp_path: Path
) -> None:
    image = make_image(tmp_path / "my cat.png", (48, 32))

    def sent(name: str, content: bytes) -> Any:
        where = f"/studio/generate/control?name={name}&image_dir={tmp_path / 'images'}"
        return tab.browser.post(where, content=content)

    kept = Path(sent("my cat.png", image.read_bytes()).json()["path"])
    assert kept.parent == tmp_path / "images" / "control_images"
    assert kept.name.startswith("my cat-")
    assert kept.read_bytes() == image.read_bytes()
    assert sent("../../my cat.png", image.read_bytes()).json()["path"] == str(kept)
    assert tab.get(f"/control?path={kept}").headers["content-type"] == "image/png"
    assert tab.get(f"/control?path={tmp_path / 'runs.sqlite'}").status_code == 404
    Image.open(image).convert("RGB").save(tmp_path / "cat.jfif", format="JPEG")
    photo = sent("cat.jfif", (tmp_path / "cat.jfif").read_bytes()).json()["path"]
    assert tab.get(f"/control?path={photo}").headers["content-type"] == "image/jpeg"
    assert "text.png cannot be read as an image" in sent("text.png", b"no image").json()["error"]
    assert "cat.txt is not a PNG, JPEG or WebP file" in sent("cat.txt", image.read_bytes()).json()["error"]
    told = as_form({"family": "flux_kontext", "prompt": "a", "control_images": [{"name": "a.png", "path": str(kept)}]})
    assert told["controls"] == [str(kept)]


def test_a_control_clip_is_played_and_of_frames_in_a_folder_the_first_is_shown(tab: Tab, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "poses.mp4", fps=12.5)
    where = f"/control?path={clip}"
    assert tab.get(where).headers["content-type"] == "video/mp4"
    assert tab.get(f"{where}&poster=1").headers["content-type"] == "image/jpeg"
    (tmp_path / "broken.webm").write_bytes(b"no clip")
    assert tab.get(f"/control?path={tmp_path / 'broken.webm'}&poster=1").status_code == 404
    (tmp_path / "empty").mkdir()
    assert tab.get(f"/control?path={tmp_path / 'empty'}").status_code == 404
    first = make_image(tmp_path / "frames" / "1.png", (48, 32))
    make_image(tmp_path / "frames" / "2.png", (48, 32), seed=1)
    assert tab.get(f"/control?path={first.parent}&poster=1").content == first.read_bytes()


def test_the_gallery_has_clips_with_their_parameters(tab: Tab, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    made = {**PARAMETERS, "prompt": "<img src=x onerror=alert(1)>", "frames": 3, "fps": 12.5, "family": "flux"}
    clip = make_clip(folder / "a.mp4", fps=12.5, texts=text_chunks(made))
    make_clip(folder / "huge.mp4", texts={"sd_scripts": "[" * 2_000_000})
    (folder / "broken.mp4").write_bytes(clip.read_bytes()[:500])
    (folder / "old.MP4").write_bytes(clip.read_bytes())
    where = f"?image_dir={folder}"
    images = {each["name"]: each for each in tab.get(f"/gallery{where}").json()["images"]}
    assert [images["a.mp4"][name] for name in ("width", "height", "frames", "fps")] == [64, 48, 3, 12.5]
    assert images["a.mp4"]["parameters"] == made
    assert images["old.MP4"]["form"] == images["a.mp4"]["form"]
    assert images["a.mp4"]["form"]["values"]["image_seed"] in (5, "5")
    assert images["huge.mp4"].keys() == {"name", "time", "width", "height", "frames", "fps"}
    assert images["broken.mp4"].keys() == {"name", "time"}
    assert tab.get(f"/image/a.mp4{where}").headers["content-type"] == "video/mp4"
    assert tab.get(f"/image/a.mp4{where}&poster=1").headers["content-type"] == "image/jpeg"


def test_an_old_upload_is_removed_unless_an_image_was_made_with_it(tmp_path: Path) -> None:
    content = make_image(tmp_path / "cat.png", (48, 32)).read_bytes()
    other = make_image(tmp_path / "dog.png", (48, 32), seed=1).read_bytes()
    images = tmp_path / "images"
    folder = images / CONTROL_FOLDER
    used, unused = keep_control(folder, "a.png", content), keep_control(folder, "b.png", other)
    begins = keep_control(folder, "d.png", content)
    own = folder / "photo-20260101.png"  # looks like an upload
    own.write_bytes(content)
    long_ago = time.time() - KEPT_SECONDS - 60
    for path in (used, unused, own, begins):
        os.utime(path, (long_ago, long_ago))
    recent = keep_control(folder, "c.png", content)
    (images / "sorted").mkdir()
    made = {**PARAMETERS, "control_images": [{"name": used.name, "path": f"/moved/{used.name}"}]}
    frames = torch.zeros(1, 16, 16, 3, dtype=torch.uint8)
    Media(frames=frames).write(images / "sorted" / "1.png", text_chunks(made))
    start = {"name": begins.name, "path": str(begins)}
    make_clip(images / "clip.mp4", texts=text_chunks({**PARAMETERS, "start_image": start}))
    (images / "broken.png").write_bytes(b"no image")
    remove_unused(images)
    assert sorted(folder.iterdir()) == sorted((used, own, recent, begins))
    assert used.stat().st_mtime > long_ago
    remove_unused(tmp_path / "nowhere")


def test_control_images_outside_the_allowed_folders_are_refused(tmp_path: Path) -> None:
    make_image(tmp_path / "cat.png", (48, 32))
    inside = tmp_path / "inside"
    inside.mkdir()
    tab = Tab(tmp_path, AllowedPaths.within([inside]))
    for prompt, more in (
        (f"a --ci {tmp_path / 'cat.png'}", {}),
        ("a", {"control_image_path": f"{tmp_path / 'cat.png'}"}),
    ):
        values = {"prompt": prompt, "image_dir": str(inside), **more}
        answer = tab.post(family="flux_kontext", values=values)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("control_image_path: ")
        assert "is outside the allowed folders" in answer.json()["error"]
    assert tab.get(f"/control?path={tmp_path / 'cat.png'}").status_code == 404
    refused = tab.browser.post(f"/studio/generate/control?name=a.png&image_dir={tmp_path}", content=b"")
    assert "is outside the allowed folders" in refused.json()["error"]


def test_parameters_survive_a_png_and_the_webuis_are_read(tmp_path: Path, tab: Tab) -> None:
    assert read_chunks(text_chunks(PARAMETERS)) == PARAMETERS
    clip = {**PARAMETERS, "frames": 81, "fps": 16.0}
    assert {"frames": 81, "fps": 16.0}.items() <= read_chunks({"parameters": text_chunks(clip)["parameters"]}).items()
    of_webui = read_chunks({"parameters": text_chunks(PARAMETERS)["parameters"]})
    assert of_webui == {name: value for name, value in PARAMETERS.items() if value is not None}
    assert read_chunks({"parameters": OF_WEBUI}) == {
        "prompt": "a cat \non a chair",
        "negative_prompt": "blurry,\nlowres",
        "adapters": [{"name": "tom", "strength": 0.6}],
        "model": "sd_xl",
        "sampler": "dpmsolver++",
        "steps": 25,
        "scale": 6.5,
        "seed": 42,
        "width": 832,
        "height": 1216,
    }
    assert tab.post("/read", chunks={"parameters": OF_WEBUI}).json()["values"]["image_seed"] == "42"
    answer = tab.post("/read", chunks={"Software": "GIMP"})
    assert answer.json()["error"].startswith("The image contains no parameters")


def test_an_image_that_no_form_could_have_made_still_fills_matching_fields() -> None:
    told = as_form({"prompt": 3, "width": "wide", "family": "unknown", "adapters": "none", "seed": None})
    assert told["family"] is None
    assert told["values"]["prompt"] == "3"


def test_failures_and_warnings_lead_to_the_fields_of_the_family(tab: Tab) -> None:
    page = GenerateRoutes(tab.queue, EVERYWHERE)
    page._job.record = {"family": "flux"}
    page._job.requests["1"] = Asked("1", "a cat", state="failed", error="guidance: <too> high\nae: not found")
    page._job.warnings = ["t5xxl_max_token_length: cuts 1 prompt", "slow"]
    told = page.state(Request({"type": "http", "query_string": b""}))
    assert told
    (failed,) = told["requests"]
    assert re.findall('data-field="([^"]+)"', failed["html"]) == ["generate-guidance", "generate-ae"]
    assert "&lt;too&gt; high" in failed["html"]
    leading, plain = told["warnings"]
    assert 'data-field="generate-t5xxl_max_token_length"' in leading
    assert plain == "slow"


def test_the_last_lora_of_each_run_of_the_family_and_those_in_folders_are_offered(tab: Tab, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.safetensors" for name in ("first", "second", "model", "sdxl", "lost")}
    for name, (kind, family) in {
        "first": ("lora", "flux"),
        "second": ("lora", "flux"),
        "model": ("dreambooth", "flux"),
        "sdxl": ("lora", "sdxl"),
        "lost": ("lora", "flux"),
    }.items():
        run = tab.queue.store.add(tmp_path / "runs" / name, name=name, tab=kind, family=family, state="finished")
        tab.queue.store.update(run.id, results=[tmp_path / "earlier.safetensors", files[name]])
        files[name].touch()
    files["lost"].unlink()
    bought = tmp_path / "library" / "bought.safetensors"
    bought.parent.mkdir()
    layer = "lora_unet_double_blocks_0_img_attn_proj"
    weights = {"lora_down.weight": torch.zeros(2, 3072), "lora_up.weight": torch.zeros(3072, 2)}
    save_file({f"{layer}.{name}": each for name, each in weights.items()}, bought, {"modelspec.trigger_phrase": "tom"})
    state_folder().mkdir(parents=True, exist_ok=True)
    write_whole(state_folder() / "models.json", json.dumps({"folders": [str(bought.parent)]}))
    offered = [{"path": str(files[name]), "run": name, "words": ""} for name in ("second", "first")]
    offered.append({"path": str(bought), "run": "", "words": "tom"})
    assert tab.get("/adapters?family=flux").json() == offered
    elsewhere = Tab(tmp_path, AllowedPaths.within([tmp_path / "runs"]))
    assert elsewhere.get("/adapters?family=flux").json() == []


def test_the_preview_of_a_lora_is_the_file_next_to_it_or_the_last_sample_of_its_run(tab: Tab, tmp_path: Path) -> None:
    saved, other = tmp_path / "cat.safetensors", tmp_path / "other.safetensors"
    for file in (saved, other):
        file.touch()
    folder = new_run_folder(tmp_path / "runs", "cat")
    id = tab.queue.add(PlannedRun(folder=folder, argv=["true"], name="cat", tab="lora", family="flux", gpus="cpu"))
    tab.queue.store.update(id, state="finished", results=[saved])
    log = folder.log()
    for name in ("first", "last", "gone"):
        log("sample", path=str(tmp_path / f"{name}.png"), step=1, prompt="a cat")
    log.close()
    for number, name in enumerate(("first.png", "last.png"), 1):
        make_image(tmp_path / name, (8 * number, 8))

    def width(file: Path) -> int | str:
        answer = tab.get(f"/adapter-preview?path={file}")
        return Image.open(io.BytesIO(answer.content)).width if answer.status_code == 200 else answer.json()["error"]

    assert width(saved) == 16
    assert width(other) == "There is no preview of this file"
    make_image(tmp_path / "cat.png", (24, 8))
    assert width(saved) == 24
    make_image(tmp_path / "cat.preview.png", (32, 8))
    assert width(saved) == 32
    elsewhere = Tab(tmp_path, AllowedPaths.within([tmp_path / "runs"]))
    assert elsewhere.get(f"/adapter-preview?path={saved}").status_code == 404


def test_an_adapter_file_shows_its_trigger_words(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "cat.safetensors"
    save_file({"a": torch.zeros(1)}, file, {"modelspec.trigger_phrase": "sks <cat>"})
    (tmp_path / "broken.safetensors").write_bytes(b"<html>")
    assert tab.get(f"/trigger?path={file}").json() == {"words": "sks <cat>"}
    assert tab.get(f"/trigger?path={tmp_path / 'broken.safetensors'}").json() == {"words": ""}
    elsewhere = Tab(tmp_path, AllowedPaths.within([tmp_path / "runs"]))
    assert "sks" not in elsewhere.get(f"/trigger?path={file}").text


def test_try_it_fills_in_the_trained_file(tab: Tab, flux_miniature: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a dog\na cat --ci /before/cat.png --ci /before/style.png\n")
    run = new_run_folder(tmp_path / "runs", "cat")
    files = {name: str(path) for name, path in flux_miniature.files.items()}
    write_toml(
        run.config,
        {
            **{"family": "flux_kontext", "method": "lora", "learning_rate": 1e-4, "seed": 3},
            **{"control_directory": "/before", "sample_prompts": str(prompts), **files},
        },
    )
    saved = tmp_path / "cat.safetensors"
    saved.write_bytes(b"")
    id = tab.queue.add(PlannedRun(folder=run, argv=["true"], name="cat", tab="lora", family="flux_kontext", gpus="cpu"))
    log = run.log()
    log("started", max_steps=1)
    log("saved", path=str(saved), step=1)
    log("sample", path=str(tmp_path / "1.png"), step=1, number=1, prompt="a cat", width=320, height=192, seed=9)
    log("finished", step=1, path=str(saved))
    log.close()
    tab.queue.store.update(id, state="finished")
    told = tab.get(f"/run/{id}").json()
    assert told["family"] == "flux_kontext"
    assert told["adapters"] == [{"path": str(saved), "strength": 1.0}]
    assert told["values"] == {**files, "prompt": "a cat", "width": "320", "height": "192", "image_seed": "9"}
    assert told["controls"] == ["/before/cat.png", "/before/style.png"]
    saved.unlink()
    assert "its files no longer exist" in tab.get(f"/run/{id}").json()["error"]


@pytest.mark.parametrize("script", GENERATE_SCRIPTS, ids=lambda script: script.family)
def test_the_form_has_each_option_of_the_script_once(script: Any) -> None:
    (panels,) = [each["panels"] for each in form() if each["name"] == script.family]
    names = [field["name"] for panel in panels for field in panel["fields"]]
    assert len(names) == len(set(names))
    assert {*names, *ROWS} == {*options_of(script.family), *ROWS}
    assert not {*names}.intersection(ROWS)


def test_a_png_keeps_its_texts(tmp_path: Path) -> None:
    import torch

    from sd_scripts.library.diffusion.media import Media

    file = tmp_path / "a.png"
    Media(frames=torch.zeros(1, 8, 8, 3, dtype=torch.uint8)).write(file, text_chunks({**PARAMETERS, "prompt": "猫"}))
    with Image.open(file) as image:
        assert read_chunks(image.text)["prompt"] == "猫"  # type: ignore[attr-defined]


@pytest.mark.skipif(os.name != "posix", reason="process ids of parents")
def test_a_process_whose_gui_ended_while_it_was_starting_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter(new_run_folder(tmp_path, "resident"))
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setenv(STARTED_BY, str(gone.pid))
    server = Server(FLUX, reporter, (), idle=5)
    began = time.monotonic()
    server.run()
    assert time.monotonic() - began < 4
