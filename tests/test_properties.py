"""Rules that hold for all captions, images, settings and files of kohya_ss, on generated examples (hypothesis)."""

import json
import math
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kohya_gui.kohya.legacy_config import from_kohya, is_dropped
from kohya_gui.kohya.legacy_keys import KOHYA_TABS, ZERO_IS_UNSET, own_keys
from sd_scripts.data.plan.buckets import BucketRules, Buckets
from sd_scripts.data.sources.captions import CaptionRules, process_caption
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.spec import Option
from sd_scripts.settings.catalog import SCRIPTS
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings
from tests.support.scripts import FLUX_LORA, SDXL_LORA

settings.register_profile(
    "same at every run",
    derandomize=True,
    database=None,
    deadline=None,  # this and the next: a busy machine is not a failure
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100,
)
settings.load_profile("same at every run")

KOHYA_DEFAULTS = json.loads((Path(__file__).parent / "reference/kohya_lora_defaults.json").read_text(encoding="utf-8"))
TAG = st.text(st.characters(categories=["L", "N"], include_characters=" -_'"), min_size=1).map(str.strip).filter(bool)
TAGS = st.lists(TAG, min_size=1, max_size=8)
CHANCE = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
WITH_OTHER_KEYS = {
    *("multires_noise_iterations", "multires_noise_discount", "max_train_steps", "max_train_epochs", "max_timestep"),
    *("log_with", "wandb_run_name", "save_model_as", "lr_warmup_steps", "text_encoder_lr", "unet_lr"),
}
"""Keys of kohya_ss whose meaning depends on others, or that know fewer values than the option here."""
SIDE = st.integers(1, 4096)


def parts(caption: str) -> list[str]:
    return caption.split(", ") if caption else []


@given(TAGS, st.integers(0, 10), st.integers(0, 99))
def test_shuffling_moves_tags_and_keeps_the_first(tags: list[str], kept: int, seed: int) -> None:
    rules = CaptionRules(shuffle_caption=True, keep_tokens=kept)
    found = parts(process_caption(", ".join(tags), rules, Random(seed), epoch=1, step=0, max_train_steps=10))
    assert found[:kept] == tags[:kept]
    assert Counter(found) == Counter(tags)


@given(TAGS, st.integers(0, 10), CHANCE, st.booleans(), st.integers(0, 99))
def test_tag_dropout_removes_some_and_adds_none(
    tags: list[str], kept: int, rate: float, shuffled: bool, seed: int
) -> None:
    rules = CaptionRules(caption_tag_dropout_rate=rate, keep_tokens=kept, shuffle_caption=shuffled)
    found = parts(process_caption(", ".join(tags), rules, Random(seed), epoch=1, step=0, max_train_steps=10))
    assert found[:kept] == tags[:kept]
    assert Counter(found) <= Counter(tags)
    assert shuffled or rate > 0 or found == tags
    assert rate < 1 or found == tags[:kept]


@given(TAGS, TAGS, TAGS, st.booleans(), st.integers(0, 99))
def test_tags_outside_the_separators_stay_where_they_are(
    head: list[str], flexible: list[str], tail: list[str], dropped: bool, seed: int
) -> None:
    rules = CaptionRules(keep_tokens_separator="|||", shuffle_caption=True, caption_tag_dropout_rate=float(dropped))
    caption = " ||| ".join(", ".join(each) for each in (head, flexible, tail))
    found = parts(process_caption(caption, rules, Random(seed), epoch=1, step=0, max_train_steps=10))
    between = found[len(head) : len(found) - len(tail)]
    assert found == head + between + tail
    assert Counter(between) == (Counter() if dropped else Counter(flexible))


@given(TAGS, CHANCE, st.integers(0, 4), st.integers(1, 12), st.integers(0, 99))
def test_dropout_removes_the_whole_caption_or_nothing(
    tags: list[str], rate: float, every: int, epoch: int, seed: int
) -> None:
    caption = ", ".join(tags)
    rules = CaptionRules(caption_dropout_rate=rate, caption_dropout_every_n_epochs=every)
    found = process_caption(caption, rules, Random(seed), epoch=epoch, step=0, max_train_steps=10)
    assert found in ("", caption)
    assert found == "" or not every or epoch % every
    assert found == caption or rate or (every and epoch % every == 0)


@given(TAGS, st.integers(1, 8), st.integers(1, 20), st.lists(st.integers(0, 25), min_size=2, max_size=2).map(sorted))
def test_warm_up_shows_ever_more_tags_from_the_front(tags: list[str], least: int, over: int, at: list[int]) -> None:
    rules = CaptionRules(token_warmup_min=min(least, len(tags)), token_warmup_step=over)
    sooner, later = (
        parts(process_caption(", ".join(tags), rules, Random(0), epoch=1, step=step, max_train_steps=50)) for step in at
    )
    assert rules.token_warmup_min <= len(sooner) <= len(later)
    assert sooner == tags[: len(sooner)]
    assert later == (tags if at[1] >= over else tags[: len(later)])


@st.composite
def bucket_rules(draw: Any, **fixed: Any) -> BucketRules:
    steps = draw(st.integers(1, 16)) * 8
    resolution = draw(st.tuples(*[st.integers(128, 1536)] * 2))
    low = draw(st.integers(1, min(resolution)))
    high = draw(st.integers(max(resolution), 3000))
    return BucketRules(
        resolution=resolution,
        enable_bucket=True,
        min_bucket_reso=low,
        max_bucket_reso=high,
        bucket_reso_steps=steps,
        **fixed,
    )


@given(bucket_rules(), SIDE, SIDE)
def test_every_image_covers_its_bucket_which_keeps_within_the_limits(
    rules: BucketRules, width: int, height: int
) -> None:
    fit = Buckets(rules).fit((width, height))
    assert fit is not None
    bucket, (low, high) = fit.bucket.size, rules.bounds
    assert math.prod(bucket) <= math.prod(rules.resolution)
    assert all(side % rules.bucket_reso_steps == 0 and low <= side <= high for side in bucket)
    assert fit.resized[0] >= bucket[0]
    assert fit.resized[1] >= bucket[1]
    assert fit.resized[0] == bucket[0] or fit.resized[1] == bucket[1], "one side is not cropped"


@given(bucket_rules(bucket_no_upscale=True), SIDE, SIDE)
@example(BucketRules(enable_bucket=True, bucket_no_upscale=True, resolution=(209, 128), bucket_reso_steps=8), 40, 672)
def test_without_upscaling_a_bucket_is_never_larger_than_the_image(rules: BucketRules, width: int, height: int) -> None:
    fit = Buckets(rules).fit((width, height))
    if fit is None:
        assert min(width, height) < rules.bucket_reso_steps or width * height > math.prod(rules.resolution)
        return
    bucket = fit.bucket.size
    assert all(side > 0 and side % rules.bucket_reso_steps == 0 for side in bucket)
    assert bucket[0] <= fit.resized[0] <= width
    assert bucket[1] <= fit.resized[1] <= height
    # sides of a shrunk image are rounded to whole pixels first, as sd-scripts does
    assert math.prod(bucket) <= math.prod(rules.resolution) + sum(bucket) / 2 + 1


@given(bucket_rules(), st.sampled_from([16, 32, 64]), SIDE, SIDE)
def test_buckets_of_a_family_are_multiples_of_its_own(
    rules: BucketRules, multiple: int, width: int, height: int
) -> None:
    fit = Buckets(rules.rounded(multiple)).fit((width, height))
    assert fit is not None
    assert all(side % multiple == 0 for side in fit.bucket.size)


def values_of(option: Option, *, unset: bool = True) -> st.SearchStrategy[Any]:
    """Values that the option takes, with `unset` also None."""
    low, high = option.within or (-1_000_000, 1_000_000)
    one: st.SearchStrategy[Any]
    if option.choices:
        one = st.sampled_from(option.choices)
    elif option.type is bool:
        one = st.booleans()
    elif option.type is int or option.steps_or_fraction:
        one = st.integers(math.ceil(low), math.floor(high))
    elif option.type is float:
        one = st.floats(low, high)
    else:
        # a configuration is text that people type: no control characters, no lone surrogates
        one = st.text(st.characters(exclude_categories=["C"]), min_size=1).map(str.strip).filter(bool)
    if option.many:
        return st.lists(one, max_size=4)
    return one | st.none() if option.nullable and unset else one


def settings_for(script: Script) -> st.SearchStrategy[Settings]:
    """Settings as reading gives them, of many options at a time: reading and writing take longest."""
    options = Settings(script, {}).options
    some = st.lists(st.sampled_from(sorted(options)), min_size=8, max_size=28, unique=True)
    chosen = some.flatmap(lambda names: st.fixed_dictionaries({name: values_of(options[name]) for name in names}))
    return chosen.map(lambda values: from_values(script, values))


def saved_and_read(chosen: Settings) -> tuple[Settings, dict[str, Any]]:
    """The settings after a save, and the file's contents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        write_toml(path, chosen.saved())
        written = read_toml(path)
    return from_values(chosen.script, written), written


def not_secret(chosen: Settings) -> dict[str, Any]:
    return {name: value for name, value in chosen.values().items() if not chosen.options[name].secret}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.file)
@settings(max_examples=12)
@given(data=st.data())
def test_saved_settings_round_trip_and_leave_out_defaults(script: Script, data: st.DataObject) -> None:
    chosen = data.draw(settings_for(script))
    again, written = saved_and_read(chosen)
    assert not_secret(again) == not_secret(chosen)
    assert (written.pop("family"), written.pop("method")) == (script.family, script.method)
    assert [name for name, value in written.items() if value == chosen.options[name].default] == []
    assert [name for name in written if chosen.options[name].secret] == []


@pytest.mark.parametrize(("script", "flag"), [(SDXL_LORA, "sdxl"), (FLUX_LORA, "flux1_checkbox")], ids=["sdxl", "flux"])
@settings(max_examples=12)
@given(data=st.data())
def test_a_kohya_file_keeps_the_meaning_of_its_values_and_is_saved_so(
    script: Script, flag: str, data: st.DataObject
) -> None:
    """Of the keys that hold the value of one option."""
    tab = KOHYA_TABS["lora"] | own_keys("lora", script.family)
    options = Settings(script, {}).options
    same = [key for key in KOHYA_DEFAULTS if key in options and not is_dropped(key, script.family)]
    keys = {**{key: key for key in same}, **tab.renamed}
    named = {
        key: options[name]
        for key, name in keys.items()
        if key not in WITH_OTHER_KEYS and not options[name].secret and not options[name].many
    }
    one_key_each = st.lists(
        st.sampled_from(sorted(named)), min_size=8, max_size=28, unique_by=lambda key: named[key].name
    )
    some = data.draw(one_key_each)
    typed = {key: data.draw(values_of(named[key], unset=False)) for key in some}
    legacy = json.loads(json.dumps({**KOHYA_DEFAULTS, flag: True, **typed}))
    found = from_values(script, from_kohya(legacy).values)
    for key, value in typed.items():
        name = named[key].name
        meant = {} if key in ZERO_IS_UNSET and value == 0 else {name: value}
        assert found.values()[name] == from_values(script, meant).values()[name], key
    again, _ = saved_and_read(found)
    assert not_secret(again) == not_secret(found)
