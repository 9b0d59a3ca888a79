"""The prompts of samples are edited in the page, and their descriptions match the training."""

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
import pytest
from gradio.components import FormComponent
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.controls import Form
from kohya_gui.form.field_links import FieldLinks
from kohya_gui.form.prompt_editor import LARGEST, PromptEditor, inserts, meaning, prompt_file, routes, saved_text
from kohya_gui.form.prompt_media import PromptMedia
from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.generating.prompt_lines import LINE_OPTIONS, SamplePrompt, read_prompt_file
from sd_scripts.runs.folder import new_run_folder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.family_options import each_option
from tests.support.clips import make_clip
from tests.support.scripts import SDXL_LORA

pytestmark = pytest.mark.run


class Page:
    """The editor with the controls of a form, and a browser's copy of them."""

    def __init__(self, allowed_paths: AllowedPaths, queue: RunQueue, **values: str) -> None:
        with gr.Blocks():
            self.form = Form("lora", SDXL_LORA.groups, "lora", allowed_paths=allowed_paths)
            self.form.place(["sample_prompts", "output_dir", "output_name", "sample_sampler"])
            self.family: FormComponent = gr.Radio(["sdxl", "flux"], value="sdxl")
            self.editor = PromptEditor(self.form, self.family, queue)
            self.editor.connect()
        self.data: dict[Any, Any] = {control: "" for control in self.form.controls.values()}
        self.data |= {self.family: "sdxl", self.editor._text: "", self.editor._opened: ("", "")}
        self.data[self.form.prompts] = ""
        self.set(**values)

    def set(self, **values: str) -> None:
        self.data |= {self.form.controls[name]: value for name, value in values.items()}

    def write(self, text: str) -> None:
        self.data[self.editor._text] = text

    def open(self) -> str:
        return self._took(self.editor._open(self.data))

    def save(self) -> str:
        return self._took(self.editor._write(self.data))

    def close(self) -> None:
        self._took(self.editor._shut())

    def _took(self, updates: dict[Any, Any]) -> str:
        """The page's messages after these updates."""
        self.data |= {c: value for c, value in updates.items() if c in self.data}
        return updates[self.editor._message]

    @property
    def text(self) -> str:
        return self.data[self.editor._text]

    @property
    def file(self) -> str:
        return self.data[self.form.controls["sample_prompts"]]


@pytest.fixture
def page(tmp_path: Path) -> Page:
    queue = RunQueue(RunStore(tmp_path / "runs.sqlite"))
    return Page(AllowedPaths.within([tmp_path]), queue, output_dir=str(tmp_path / "out"), output_name="cat")


def test_new_prompts_are_saved_next_to_the_results_and_filled_in(page, tmp_path):
    assert "is created when you save" in page.open()
    page.write("a cat --d 1\na dog\n\n")
    assert "2 prompts" in page.save()
    place = tmp_path / "out" / "cat-prompts.txt"
    assert page.file == str(place)
    assert [each.prompt for each in read_prompt_file(place).prompts(SamplePrompt())] == ["a cat", "a dog"]
    page.write("a bird")
    assert "1 prompt" in page.save()
    assert place.read_text() == "a bird\n"
    assert os.listdir(place.parent) == [place.name]


def test_prompts_that_are_in_no_file_yet_are_edited_and_saved_into_one(page, tmp_path):
    page.data[page.form.prompts] = "a cat of kohya_ss"
    page.open()
    assert page.text == "a cat of kohya_ss"
    page.save()
    assert (tmp_path / "out" / "cat-prompts.txt").read_text() == "a cat of kohya_ss\n"
    assert page.data[page.form.prompts] == ""


def test_a_named_file_is_edited_in_place(page, tmp_path):
    place = tmp_path / "mine.json"
    place.write_text('["a cat"]\n')
    page.set(sample_prompts=f'"{place}"')
    page.open()
    assert page.text == '["a cat"]\n'
    page.write('["a cat", "a dog"]')
    page.save()
    assert place.read_text() == '["a cat", "a dog"]\n'


def test_text_that_cannot_be_read_as_prompts_is_not_saved(page, tmp_path):
    place = tmp_path / "mine.toml"
    place.write_text('[[prompt.subset]]\nprompt = "a cat"\n')
    page.set(sample_prompts=str(place))
    page.open()
    for text in ("[[prompt.subset]\n", "", "prompt = 3"):
        page.write(text)
        said = page.save()
        assert "Not saved: " in said
        assert 'data-field="lora-sample_prompts"' in said
    assert "a cat" in place.read_text()
    assert page.text == "prompt = 3"


def test_prompts_changed_on_disk_are_overwritten_only_at_the_second_click(page, tmp_path):
    page.open()
    page.write("a cat")
    page.save()
    Path(page.file).write_text("from elsewhere\n")
    page.write("a dog")
    assert "changed since it was opened here" in page.save()
    assert Path(page.file).read_text() == "from elsewhere\n"
    assert "Saved to" in page.save()
    assert Path(page.file).read_text() == "a dog\n"


def test_a_file_that_was_not_opened_is_overwritten_only_after_a_second_save(page, tmp_path):
    page.open()
    (tmp_path / "other.txt").write_text("kept\n")
    page.set(sample_prompts=str(tmp_path / "other.txt"))
    page.write("a dog")
    assert "Save again" in page.save()
    assert (tmp_path / "other.txt").read_text() == "kept\n"


def test_unsaved_text_survives_closing(page):
    page.open()
    page.write("half a tho")
    page.close()
    assert "still here" in page.open()
    assert page.text == "half a tho"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("/etc/hostname.txt", "outside the allowed folders"),
        ("{}/x.yaml", "is not a .txt, .toml or .json file"),
        ("{}/folder.txt", "is a folder; name a file"),
        ("{}/big.txt", "more than 1 MB"),
        ("{}/bytes.txt", "is not UTF-8 text"),
        ("{}/link.txt", "outside the allowed folders"),
    ],
)
def test_a_file_that_cannot_be_edited_is_refused_in_one_sentence(page, tmp_path, named, why):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "big.txt").write_bytes(b"x" * (LARGEST + 1))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "link.txt").symlink_to("/etc/hostname")
    page.set(sample_prompts=named.format(tmp_path))
    assert why in page.open()
    page.write("a cat")
    assert why in page.save()


def test_an_output_name_that_escapes_the_folder_is_refused_for_prompts(tmp_path):
    with pytest.raises(ValueError, match=r"output_name: .* outside the allowed folders"):
        prompt_file({"output_dir": str(tmp_path), "output_name": "../../x"}, AllowedPaths.within([tmp_path]))
    assert saved_text(tmp_path / "none.txt") == ""


def test_each_prompt_is_described_in_words():
    text = "a <b> cat --w 768 --h 1024 --d 7 --s 20 --l 5 --n bad --ss euler_a\n# no\n\na dog"
    said = meaning(text, Path("x.txt"), "sdxl", "ddim")
    assert "a &lt;b&gt; cat" in said
    assert "768 × 1024, 20 steps, seed 7, CFG 5, sampler euler_a, negative prompt: bad" in said
    assert "512 × 512, 30 steps, random seed, CFG 7.5, sampler ddim" in said
    assert said.count("<li>") == 2
    assert "warn" not in said


@pytest.mark.parametrize(
    ("line", "family", "why"),
    [
        ("a --q 3", "sdxl", "--q: unknown option"),
        ("a --g 3", "sdxl", "--g has no effect for SDXL"),
        ("a --ss euler", "flux", "--ss has no effect for FLUX.1"),
        ("a --n bad", "flux", "the negative prompt has no effect at CFG scale (--l) 1"),
        ("a --n bad --l 1", "sdxl", "the negative prompt has no effect"),
        ("a --w 1001", "sdxl", "1001 × 512 becomes 1000 × 512: sides are multiples of 8"),
        ("a --w 1000", "flux", "1000 × 512 becomes 992 × 512: sides are multiples of 16"),
        ("a --h 8", "sdxl", "512 × 8 becomes 512 × 64"),
        ("a --ss best", "sdxl", "unknown sampler best"),
        ("a", "framepack", "without a start image (--i), the clip begins with a grey image"),
        ("a --f 1", "framepack", "without a control image (--ci), the image is made from the text alone"),
        ("a --i /gone.png", "framepack", "--i: file not found: &#x27;/gone.png&#x27;"),
    ],
)
def test_likely_mistakes_are_reported(line, family, why):
    assert why in meaning(line, Path("x.txt"), family, "ddim")


def test_flux_has_its_own_steps_and_scale():
    assert "20 steps, random seed, guidance 2.5, CFG 3, negative prompt: bad" in meaning(
        "a --g 2.5 --l 3 --n bad", Path("x.txt"), "flux", ""
    )


@pytest.mark.parametrize(
    ("model", "read"),
    [
        ("", "28 steps, random seed, CFG 5.5"),
        ("/models/krea2_raw.safetensors", "28 steps, random seed, CFG 5.5"),
        ("/models/krea2_turbo_bf16.safetensors", "8 steps, random seed, CFG 1, shift 3.16"),
    ],
)
def test_prompts_have_the_defaults_of_the_model_that_samples_are_made_with(model: str, read: str) -> None:
    assert read in meaning("a cat", Path("x.txt"), "krea2", "", model)


def test_every_option_of_the_family_can_be_added():
    for family in ("sdxl", "flux"):
        offered = {option.letters for option in LINE_OPTIONS if f'data-insert="{option.letters}"' in inserts(family)}
        assert offered == {option.letters for option in LINE_OPTIONS if option.works_with(card_of(family).capabilities)}
    for option in LINE_OPTIONS:  # an example is valid
        assert option.match(f"{option.letters} {option.example}")


def test_the_page_checks_while_typing(tmp_path):
    options = {o.name: o for group in SDXL_LORA.groups for o in each_option(group)}
    queue, links = RunQueue(RunStore(tmp_path / "runs.sqlite")), {"lora": FieldLinks("lora", options)}
    client = TestClient(Starlette(routes=routes(queue, EVERYWHERE, links)))
    asked = {"tab": "lora", "text": "a cat --w 64", "file": "", "family": "sdxl", "sampler": "ddim", "sample_model": ""}
    answer = client.post("/studio/prompts", json=asked).json()
    assert "64 × 512" in answer["check"]
    assert "data-insert" in answer["options"]
    as_json = client.post("/studio/prompts", json={**asked, "text": "[", "file": "/x/y.json"}).json()
    assert as_json["options"] == ""
    assert "cannot be read" in as_json["check"]
    assert 'data-field="lora-sample_prompts"' in as_json["check"]
    turbo = {"family": "krea2", "sample_model": ' "/models/krea2_turbo.safetensors" '}
    assert "8 steps" in client.post("/studio/prompts", json={**asked, **turbo}).json()["check"]
    unknown = client.post("/studio/prompts", json={**asked, "text": "a dog --ss dpm9"}).json()
    assert 'data-field="lora-sample_sampler"' in unknown["check"]
    for wrong in ({}, [], {**asked, "family": "none"}):
        assert client.post("/studio/prompts", json=wrong).status_code == 400
    for body in (b"{", b"[" * 100_000, b"\xff"):
        assert client.post("/studio/prompts", content=body).status_code == 400


def test_a_prompt_is_shown_with_its_newest_sample_and_its_images(tmp_path):
    queue, allowed = RunQueue(RunStore(tmp_path / "runs.sqlite")), tmp_path / "allowed"
    for family, name, samples in (
        ("framepack", "older", [("a cat", 1, "cat.mp4")]),
        ("framepack", "newer", [("a cat", 1, "cat.mp4"), ("a cat", 1, "cat.mp4"), ("<b>", None, "b.png")]),
        ("wan", "other", [("a cat", 1, "cat.mp4")]),
        ("framepack", "odd", [(["a cat"], [1], "cat.mp4"), ("a dog", 1, "gone.png")]),
    ):
        run = new_run_folder(tmp_path / "runs", name)
        log = run.log()
        for step, (prompt, seed, file) in enumerate(samples, 1):
            log("sample", step=step, path=str(tmp_path / file), prompt=prompt, seed=seed)
        log.close()
        queue.store.add(run, name=name, family=family, state="finished")
    for path in (allowed / "first one.png", tmp_path / "outside.png"):
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    (allowed / "broken.png").write_text("no image")
    for sample in ("cat.mp4", "b.png"):
        (tmp_path / sample).touch()
    media = PromptMedia(card_of("framepack"), queue, AllowedPaths.within([allowed]))
    cat = media.html(SamplePrompt(prompt="a cat", seed=1, start_image=f"{allowed}/first one.png"))
    assert re.findall(r'src="([^"]*)"', cat) == [
        "studio/run/2/sample/1",
        f"studio/generate/control?path={quote(f'{allowed}/first one.png', safe='')}",
    ]
    assert "<video" in cat
    assert 'title="Sample at step 2 of newer"' in cat
    assert 'title="Start image: first one.png"' in cat
    assert "<img" in media.html(SamplePrompt(prompt="<b>"))
    assert media.html(SamplePrompt(prompt="a cat", seed=2)) == ""
    assert media.html(SamplePrompt(prompt="a dog", seed=1)) == "", "its file is gone"
    clip = make_clip(allowed / "poses.mp4")
    followed = PromptMedia(card_of("wan"), queue, AllowedPaths.within([allowed])).html
    played = followed(SamplePrompt(prompt="a", control_clip=str(clip)))
    address = f"studio/generate/control?path={quote(str(clip), safe='')}"
    assert f'<video src="{address}" data-poster="{address}&amp;poster=1"' in played
    assert 'title="Control clip: poses.mp4"' in played
    assert "<img" in followed(SamplePrompt(prompt="a", control_clip=str(make_clip(allowed / "poses.mkv"))))
    (allowed / "frames").mkdir()
    Image.new("RGB", (8, 8)).save(allowed / "frames" / "1.png")
    assert "<img" in followed(SamplePrompt(prompt="a", control_clip=str(allowed / "frames")))
    for name, why in (("outside.png", "outside the allowed folders"), ("allowed/broken.png", "cannot be read")):
        prompt = SamplePrompt(prompt="a dog", start_image=str(tmp_path / name))
        assert media.html(prompt) == ""
        (problem,) = media.problems(prompt)
        assert why in problem
