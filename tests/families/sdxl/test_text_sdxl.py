"""Captions to tokens and text states, against what diffusers' own SDXL pipeline reads."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.common.opening import load_tokenizers
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.families.sdxl.text import encode_text, text_limit, tokenize
from sd_scripts.library.text.tokenizers import CLIP, OPEN_CLIP, shipped_clip
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.miniatures import sdxl_settings

pytestmark = pytest.mark.run

CAPTIONS = ["a red circle on a white background", "", "red " * 100]


@pytest.fixture(scope="module")
def components(miniature: Any) -> Components:
    return SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load()


def settings(**values: Any) -> Any:
    return sdxl_settings("model", **values)


def tokenizers(folder: Path, cache: str | None, rows: int) -> list[Any]:
    encoders = {"text_encoder1": rows, "text_encoder2": rows}
    return load_tokenizers(SDXL.card, SDXL.layouts, encoders, folder / "model.safetensors", cache)


def test_the_shipped_vocabulary_is_clips() -> None:
    tokenizer = shipped_clip()
    assert len(tokenizer) == 49408
    assert tokenizer("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]


def test_the_shipped_tokenizers_are_used_by_default_and_the_second_pads_with_0(tmp_path: Path) -> None:
    first, second = tokenizers(tmp_path, None, 49408)
    assert (first.pad_token_id, second.pad_token_id) == (49407, 0)


def test_tokenizers_are_found_in_the_cache_folder_of_sd_scripts(components: Components, tmp_path: Path) -> None:
    for kind, tokenizer in zip((CLIP, OPEN_CLIP), components.tokenizers, strict=True):
        tokenizer.save_pretrained(tmp_path / "cache" / kind.cache_folder)
    size = len(components.tokenizers[0])
    found = tokenizers(tmp_path, str(tmp_path / "cache"), size)
    assert [len(tokenizer) for tokenizer in found] == [size, size]


def test_states_match_diffusers(components: Components) -> None:
    pipeline = pipeline_of(components)
    with torch.no_grad():
        ours = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings())))
        hidden, _, pooled, _ = pipeline.encode_prompt(CAPTIONS, do_classifier_free_guidance=False, device="cpu")
    torch.testing.assert_close(torch.cat([ours["hidden_state1"], ours["hidden_state2"]], -1), hidden)
    torch.testing.assert_close(ours["pool2"], pooled)


@pytest.mark.parametrize(("clip_skip", "layer"), [(None, -2), (1, -2), (2, -2), (3, -3), (12, -4)])
def test_clip_skip_reads_an_earlier_layer_but_never_the_last(miniature: Any, clip_skip: int | None, layer: int) -> None:
    """The miniature's encoders have three layers, so four states; their input is the first."""
    components = SDXL.open(sdxl_settings(miniature.checkpoint, clip_skip=clip_skip), torch.float32).load()
    with torch.no_grad():
        tokens = tokenize(components, [*map(Caption, CAPTIONS[:1])], TextOptions.of(settings()))
        ours = encode_text(components, tokens)["hidden_state1"]
        states = components.text_encoders[0](tokens[0]["ids"].flatten(0, 1), output_hidden_states=True).hidden_states
    torch.testing.assert_close(ours, states[layer])


@pytest.mark.parametrize(("length", "positions"), [(None, 77), (150, 152), (225, 227)])
def test_every_75_tokens_are_a_chunk_and_join_to_one_sequence(
    components: Components, length: int, positions: int
) -> None:
    tokens = tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(settings(max_token_length=length)))
    states = encode_text(components, tokens)
    assert tokens[0]["ids"].shape == (3, (positions - 2) // 75, 77)
    assert states["hidden_state1"].shape == (3, positions, 64)
    assert states["hidden_state2"].shape == (3, positions, 128)
    assert states["pool2"].shape == (3, 128)


def test_a_long_caption_continues_in_the_next_chunk(components: Components) -> None:
    tokenizer = components.tokenizers[1]
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    (red,) = tokenizer("red", add_special_tokens=False).input_ids
    first, second = tokenize(components, [Caption("red " * 100)], TextOptions.of(settings(max_token_length=150)))[1][
        "ids"
    ][0].tolist()
    assert first == [start, *[red] * 75, end]
    assert second == [start, *[red] * 25, end, *[0] * 50]


def test_the_first_chunk_of_a_long_budget_is_read_as_if_alone(components: Components) -> None:
    caption = CAPTIONS[:1]
    short = encode_text(components, tokenize(components, [*map(Caption, caption)], TextOptions.of(settings())))
    long = encode_text(
        components, tokenize(components, [*map(Caption, caption)], TextOptions.of(settings(max_token_length=225)))
    )
    torch.testing.assert_close(long["hidden_state1"][:, :76], short["hidden_state1"][:, :76])
    torch.testing.assert_close(long["pool2"], short["pool2"])


def test_a_weight_multiplies_the_states_of_its_words_and_nothing_else(components: Components) -> None:
    plain = encode_text(components, tokenize(components, [Caption("a red circle")], TextOptions.of(settings())))
    weighted = encode_text(
        components,
        tokenize(components, [Caption("a (red:1.5) circle")], TextOptions.of(settings(weighted_captions=True))),
    )
    factor = torch.ones(77, 1)
    factor[2] = 1.5  # after the start and "a"
    for name in ("hidden_state1", "hidden_state2"):
        torch.testing.assert_close(weighted[name], plain[name] * factor)
    torch.testing.assert_close(weighted["pool2"], plain["pool2"])


def test_brackets_are_plain_text_without_weighted_captions(components: Components) -> None:
    plain = tokenize(components, [Caption("a (red:1.5) circle")], TextOptions.of(settings()))
    assert [set(each) for each in plain.values()] == [{"ids"}, {"ids"}]
    weighted = tokenize(components, [Caption("a (red:1.5) circle")], TextOptions.of(settings(weighted_captions=True)))
    assert not torch.equal(plain[0]["ids"], weighted[0]["ids"])


@pytest.mark.parametrize(("length", "remedy"), [(None, "max_token_length = 225"), (150, "225"), (225, "shorten them")])
def test_captions_that_lose_tokens_are_counted_and_the_longest_named_first(
    components: Components, length: int | None, remedy: str
) -> None:
    ours, most = settings(max_token_length=length, weighted_captions=True), length or 75
    texts = {"fits": "red " * most, "long": "(red:1.2) " * (most + 1), "longest": "red, " * most, "short": "a"}
    cut = {
        name: tokenize(components, [Caption(text), Caption(f"{text} (blue:0.5)")], TextOptions.of(ours))[0]["ids"]
        for name, text in texts.items()
    }
    assert [name for name, (one, other) in cut.items() if torch.equal(one, other)] == ["fits", "long", "longest"]
    captions = [(Path(name), text) for name, text in texts.items()]
    remark = text_limit(components, TextOptions.of(ours)).caption_remark(captions)
    counts = f"longest ({2 * most} tokens), long ({most + 1} tokens)"
    assert remark is not None
    assert remark.startswith(f"2 of 4 captions are longer than {most} tokens and are cut: {counts}; ")
    assert remark.endswith(remedy)
    assert text_limit(components, TextOptions.of(ours)).caption_remark(captions[:1]) is None


def test_gradients_reach_both_encoders(components: Components, miniature: Any) -> None:
    trainable = SDXL.open(sdxl_settings(miniature.checkpoint), torch.float32).load()
    for encoder in trainable.text_encoders:
        encoder.requires_grad_(True)
    states = encode_text(trainable, tokenize(trainable, [*map(Caption, CAPTIONS)], TextOptions.of(settings())))
    sum(state.sum() for state in states.values()).backward()
    for encoder in trainable.text_encoders:
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
