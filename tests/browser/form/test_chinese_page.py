"""The page in Chinese, where the browser or the switch asks for it; and in English, where it costs nothing."""

import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kohya_gui.app import OTHER_TABS
from kohya_gui.languages.catalogues import catalogue
from sd_scripts.families.common.loading import require_matching_shapes
from sd_scripts.families.common.placing import swap_problems
from sd_scripts.formats.disk import NotWritten
from sd_scripts.library.compile_utils import inductor_option_problems
from sd_scripts.library.optim.key_values import class_by_path
from sd_scripts.machine.nvidia import Gpu
from sd_scripts.networks.adapters.oft import Boft
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.spec import OptionGroup
from sd_scripts.planning.run_plan import BreakEven, plan_run
from sd_scripts.planning.text import headline, notes, rows
from sd_scripts.runs.store import RunStore
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import FAMILY_TITLES
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.tools.captioning.job import Result
from sd_scripts.training.process.error_hints import SAVED_BEFORE
from sd_scripts.training.saving.train_state import read_saved
from tests.browser.page_help import SLOW, Gui, expect, settled
from tests.support.data import make_folder
from tests.support.languages import page_texts
from tests.support.scripts import FLUX_LORA

ENGLISH = r"""() => {
  const found = new Set();
  const isEnglish = (text) => /[a-z]{2}/i.test(text) && !/\p{Script=Han}/u.test(text);
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const { data, parentElement } = walk.currentNode;
    const isLeft = parentElement.closest("script, style, code, pre, [translate=no], .result-panel");
    if (isEnglish(data) && parentElement.offsetParent && !isLeft) found.add(data.trim());
  }
  return [...found];
}"""
"""Texts that are seen and have no Chinese word in them, but for results of jobs that other tests started."""
PAYS = (BreakEven(step=0, saved=0), BreakEven(step=4000, saved=-60), BreakEven(step=400, saved=60))
UNITS = {"token", "latent"}
NAMES = {"SD Scripts Studio", "LoRA", "LoRAs", "DreamBooth", "MIT", "OpenRAIL++-M", "CFG scale", "(--ss)"}


@pytest.fixture(scope="module")
def chinese(chromium: Any, gui: Gui) -> Iterator[Any]:
    """A page in a browser whose user prefers Chinese."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000}, locale="zh-CN", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(SLOW)
    page.goto(gui.address)
    expect(page.locator("#train-train_data_dir")).to_be_visible()
    expect(page.get_by_text("还没有训练").first).to_be_visible()
    yield page
    context.close()


def is_name(text: str) -> bool:
    """Return whether a text is a name, which is the same in Chinese."""
    known = {*NAMES, *FAMILY_TITLES.values(), *page_texts.LEFT, *_choices(OptionGroup)}
    return text in known or catalogue("zh-CN").get(text) == text or bool(page_texts.NAME.fullmatch(text))


def _choices(of: type[OptionGroup]) -> Iterator[str]:
    for group in of.__subclasses__():
        yield from (str(choice) for option in each_option(group) for choice in option.choices)
        yield from _choices(group)


def test_no_tab_has_an_english_text(chinese: Any) -> None:
    english = {}
    for tab in OTHER_TABS:
        chinese.locator(f"#{tab}-button").click()
        expect(chinese.locator(f"#{tab}[role=tabpanel]")).to_be_visible()
        settled(chinese, f"#{tab}[role=tabpanel]")
        english[tab] = [text for text in chinese.evaluate(ENGLISH) if not is_name(text) and "/" not in text]
    assert {tab: texts for tab, texts in english.items() if texts} == {}


def test_the_form_in_chinese_has_its_keys_and_values(chinese: Any) -> None:
    chinese.locator("#lora-button").click()
    chinese.get_by_text("全部设置", exact=True).click()
    field = chinese.locator("#lora-network_alpha")
    expect(field).to_contain_text("network_alpha")
    expect(field).to_contain_text("LoRA 按 Alpha / 网络维度 缩放")
    assert field.locator("em").all_text_contents() == ["Alpha", "网络维度"]
    assert chinese.locator("#lora-optimizer_type input").input_value() == "AdamW"


def test_the_search_finds_chinese_words(chinese: Any) -> None:
    chinese.keyboard.press("Control+k")
    chinese.locator("#settings-search input").first.fill("梯度累积")
    expect(chinese.locator("#search-hit-0")).to_contain_text("梯度累积步数")
    chinese.keyboard.press("Escape")


def test_the_switch_is_remembered_and_an_english_page_loads_no_catalogue(chinese: Any) -> None:
    asked: list[str] = []
    chinese.on("request", lambda request: asked.append(request.url))
    chinese.locator("#language-switch").click()
    expect(chinese.locator("#lora-start")).to_have_text("Start training")
    assert not [url for url in asked if "/language/" in url]
    expect(chinese.locator("#language-switch")).to_have_text("中文", use_inner_text=True)
    chinese.locator("#language-switch").click()
    expect(chinese.locator("#lora-start")).to_have_text("开始训练")
    assert chinese.evaluate("document.documentElement.lang") == "zh-CN"


def test_the_browser_translates_every_text_of_the_catalogue(chinese: Any) -> None:
    """Those with values, too; the rules in Python are tested with the texts in the code."""
    texts = {english: words for english, words in catalogue("zh-CN").items() if "{" not in words and "`" not in english}
    shown = chinese.evaluate("(texts) => texts.map(Language.text)", list(texts))
    assert [english for english, words in zip(texts, shown, strict=True) if words != texts[english]] == []


def test_every_line_of_a_plan_and_of_the_result_of_a_job_is_translated(chinese: Any, tmp_path: Path) -> None:
    """They are composed, which the texts in the code do not show."""
    make_folder(tmp_path / "1_cat", [(1000, 800), (512, 481), (128, 64)])
    values = {
        "train_data_dir": str(tmp_path),
        "resolution": "1024,1024",
        "max_train_steps": 1000,
        "enable_bucket": True,
    }
    more = {"compile": True, "compile_auto": True, "gradient_accumulation_steps": 2, "equal_token_buckets": True}
    gpu = Gpu("NVIDIA H200", 141 * 2**30)
    plans = [plan_run(from_values(FLUX_LORA, values | some), gpu, ()) for some in ({}, more)]
    plans += [dataclasses.replace(plans[1], measured_gpu_bytes=2**34, processes=2, break_even=pays) for pays in PAYS]
    texts = [text for plan in plans for text in (headline(plan), *(text for _, text in rows(plan)), *notes(plan))]
    texts += [Result(written=12, unchanged=3, captioned=2, spared=1, resumed=4, failed={"a.png": ""}).sentence()]
    shown = dict(zip(texts, chinese.evaluate("(texts) => texts.map(Language.text)", texts), strict=True))
    words = re.compile(r"(?<![\w_.'-])[a-z]{4,}(?![\w_./-])(?! = )")
    english = {text: found for text, words_of in shown.items() if (found := set(words.findall(words_of)) - UNITS)}
    assert english == {}


def failures(folder: Path) -> Iterator[str]:
    """Yield messages of loading, networks, settings, resuming and the disk, as the code composes them."""
    flux, other = folder / "flux.safetensors", folder / "other.safetensors"
    save_file({"double_blocks.0.img_attn.qkv.weight": torch.zeros(2, 2)}, flux)
    other.write_bytes(flux.read_bytes()[:-3])
    settings = {"pretrained_model_name_or_path": str(other), "network_weights": str(flux), "output_dir": "/proc/none"}
    for values in ({}, settings, {"train_data_dir": "/none", "optimizer_type": "torch.optim.AdamX", "resume": "/none"}):
        yield from map(str, preflight.problems(from_values(FLUX_LORA, values)))
        yield from preflight.notes(preflight.remarks(from_values(FLUX_LORA, values)))
    expected = {"a": torch.zeros(2, 2)}
    for shapes in ({}, {"a": torch.Size((2, 2)), "b": torch.Size((1,))}, {"a": torch.Size((2, 3))}):
        yield from refused(partial(require_matching_shapes, shapes, expected, "vae", flux, "VAE"))
    yield from refused(lambda: Boft.shape("lora_unet_x", 48, 2, None))
    yield from refused(lambda: read_saved(str(folder)))
    yield from refused(lambda: class_by_path("optimizer_type", "torch.optim.AdamX"))
    yield from swap_problems(MemoryOptions(blocks_to_swap=9), 3, "a model with 5 blocks")
    yield from inductor_option_problems(["max_autotun=true"])
    written = NotWritten(flux, OSError(errno.EIO, os.strerror(errno.EIO)))
    yield f"output_dir: {written}. The run continues; {SAVED_BEFORE}, and the next save tries again"


def refused(call: Callable[[], object]) -> Iterator[str]:
    """Yield the message with which a call refuses; it is a mistake of the test if it does not."""
    try:
        call()
        raise AssertionError(call)
    except ValueError as error:
        yield str(error)


def test_every_composed_message_of_a_run_is_translated(chinese: Any, tmp_path: Path) -> None:
    """Words in quotes and in parentheses may be of someone else."""
    texts = list(failures(tmp_path))
    shown = dict(zip(texts, chinese.evaluate("(texts) => texts.map(Language.text)", texts), strict=True))
    plain = {text: re.sub(r"'[^']*'|“[^”]*”|\([^)]*\)", "", words) for text, words in shown.items()}
    english = [text for text, words in plain.items() if re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", words)]
    assert {text: shown[text] for text in english} == {}
    assert [text for text, words in shown.items() if not re.search(r"[\u4e00-\u9fff]", words)] == []


def test_a_value_stays_and_is_never_a_sentence(chinese: Any) -> None:
    english = "vae: '/x is not y.safetensors' is a FLUX.1 autoencoder, not a base model for SDXL; set it in vae"
    words = "vae：“/x is not y.safetensors”是 FLUX.1 自编码器，不是 SDXL 的底模；请填在 vae 中"
    unknown = "the weather of today is not nice"
    shown = chinese.evaluate("(texts) => texts.map(Language.text)", [english, unknown])
    assert shown == [words, unknown]


def test_names_in_quotes_and_words_that_only_begin_like_a_text_stay(chinese: Any) -> None:
    expected = {
        "Use '3 images'": "使用“3 images”",
        "'Learning rate': 0.5 at step 6": "“Learning rate”：第 6 步为 0.5",
        "'a': 0.5 at step 6; 'b': 0.4 at step 7": "“a”：第 6 步为 0.5；“b”：第 7 步为 0.4",
        "The output name 'in rain' is already in use: 'in rain.safetensors' in '/of cats'; a run that is queued": (
            "输出名称“in rain”已被使用：“/of cats”中的 'in rain.safetensors'；一个排队中的训练任务"
        ),
        "about 12 min": "约 12 min",
    }
    own = ("in the rain", "with love", "of masks", "but images", "without captions", "about cats", "step by step")
    texts = [*expected, *own]
    assert chinese.evaluate("(texts) => texts.map(Language.text)", texts) == [*expected.values(), *own]


def test_a_run_and_a_preset_keep_their_names(chinese: Any, gui: Gui, tmp_path: Path) -> None:
    """These are also texts of the page."""
    store = RunStore(gui.runs)
    run = store.add(tmp_path / "Masks", name="Learning rate", tab="lora", family="flux", state="finished")
    store.close()
    chinese.locator("#runs-button").click()
    link = chinese.locator(f".history [data-run='{run.id}'] .run-link")
    expect(link).to_have_text("Learning rate")
    expect(chinese.locator(f".history [data-run='{run.id}'] input")).to_have_attribute(
        "aria-label", "选择“Learning rate”"
    )
    chinese.locator("#lora-button").click()
    preset = {"tab": "lora", "family": "sdxl", "name": "mask", "about": "Learning rate", "values": {"network_dim": 5}}
    gui.ask("presets/save", preset)
    chinese.get_by_text("全部设置", exact=True).click()
    chinese.locator("#lora-presets").click()
    row = chinese.locator("dialog[open] .preset", has_text="Learning rate")
    expect(row.locator("b")).to_have_text("mask")
    expect(row.get_by_role("button").first).to_have_attribute("aria-label", "使用“mask”")
    chinese.keyboard.press("Escape")


def test_a_long_text_of_someone_else_is_left_and_holds_nothing_up(chinese: Any) -> None:
    """Matched with all texts that have values, this one would take a minute."""
    text = "x is not y; " * 200
    took = "(text) => { const start = performance.now(); Language.text(text); return performance.now() - start; }"
    assert chinese.evaluate("Language.text", text) == text
    assert chinese.evaluate(took, f"{text}.") < 1000
