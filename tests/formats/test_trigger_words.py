"""The trigger words that an adapter's metadata shows."""

import json

import pytest

from sd_scripts.formats.models.trigger_words import trigger_words

TAGS = {"ss_tag_frequency": json.dumps({"10_sks cat": {"outdoors": 3, "sks": 20}, "dogs": {"a dog runs": 1}})}
PREFIX = {"ss_datasets": json.dumps([{"subsets": [{"caption_prefix": "sks, "}, {"caption_prefix": None}]}])}
REGULARISATION = {
    "ss_datasets": json.dumps([{"subsets": [{"caption_prefix": "cat", "image_dir": "1_cat", "is_reg": True}]}])
}


def test_the_named_phrase_leads_then_the_caption_prefix_then_the_most_frequent_tags() -> None:
    assert trigger_words({"modelspec.trigger_phrase": "zwx person", **PREFIX, **TAGS}) == "zwx person"
    assert trigger_words({**PREFIX, "ss_tag_frequency": '{"a": {"other": 9}}'}) == "sks"
    assert trigger_words(TAGS) == "sks"


def test_regularisation_images_add_no_trigger_words() -> None:
    tags = {"ss_tag_frequency": json.dumps({"10_sks cat": {"sks": 20}, "1_cat": {"cat": 90}})}
    assert trigger_words({**REGULARISATION, **tags}) == "sks"


ODD = ("", "{", "[]", "[1]", '{"a": 3}', '{"a": {"b": "c"}}', '[{"subsets": 1}]', '[{"subsets": [1]}]', "[" * 100_000)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_metadata_shows_no_trigger_words(text: str) -> None:
    assert trigger_words({"ss_tag_frequency": text, "ss_datasets": text}) == ""
    assert trigger_words({"ss_tag_frequency": json.dumps({"a": {"x" * 300: 9}})}) == ""
