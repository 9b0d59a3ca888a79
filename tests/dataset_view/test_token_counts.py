"""The page counts the tokens of captions as training does, and cuts where it does."""

from typing import Any

from sd_scripts.dataset_view.serve import answer
from sd_scripts.library.text.tokenizers import shipped_clip, shipped_t5

LONG = "a very long caption about cats, " * 90


def counted(family: str, texts: list[str], **settings: object) -> dict[str, object]:
    saved = {"family": family, "method": "lora", **settings}
    return answer({"do": "tokens", "settings": saved, "texts": texts})


def test_a_caption_is_cut_where_its_tokenizer_reaches_the_limit() -> None:
    for family, tokenizer, limit, special in (("sdxl", shipped_clip(), 75, False), ("flux", shipped_t5(), 512, True)):
        found = counted(family, ["a cat\na dog", LONG])
        assert found["limit"] == limit
        short, ((long,),) = found["lines"][0], found["lines"][1:]  # type: ignore[index]

        def tokens(text: str) -> int:
            return len(tokenizer(text, add_special_tokens=special, verbose=False).input_ids)  # noqa: B023

        assert [line["tokens"] for line in short] == [tokens("a cat"), tokens("a dog")]
        assert long["tokens"] == tokens(LONG)
        assert tokens(LONG[: long["letters"]]) <= limit < tokens(LONG[: long["letters"] + 1])


def test_each_encoder_reads_the_tokens_that_are_shown() -> None:
    text = "a cat 🐈, on a sofa"
    for family, most in (("sdxl", [75, 75]), ("flux", [75, 511])):
        saved = {"family": family, "method": "lora"}
        found = answer({"do": "tokens", "settings": saved, "texts": [text, LONG], "spans": True})
        assert [encoder["most"] for encoder in found["encoders"]] == most
        for place, tokenizer in enumerate((shipped_clip(), shipped_clip() if family == "sdxl" else shipped_t5())):
            short, long = (each["tokens"][place] for each in found["texts"])
            assert len(long) == len(tokenizer(LONG, add_special_tokens=False, verbose=False).input_ids)
            letters = "".join(text[max(start, before) : end] for (_, before), (start, end) in pairs(short))
            assert letters.replace(" ", "") == text.replace(" ", "")
            special = 2 if most[place] == 75 else 1  # CLIP's start and end, T5's end
            cut = tokenizer(LONG, truncation=True, max_length=most[place] + special).input_ids
            read = tokenizer(LONG, add_special_tokens=False, verbose=False).input_ids[: most[place]]
            assert [each for each in cut if each in {*read}] == read


def test_weights_of_a_caption_are_not_tokens() -> None:
    saved = {"family": "sdxl", "method": "lora", "weighted_captions": True}
    found = answer({"do": "tokens", "settings": saved, "texts": ["a (red:1.3) cat"], "spans": True})
    assert found["texts"][0]["text"] == "a red cat"
    assert [*map(tuple, found["texts"][0]["tokens"][0])] == [(0, 1), (2, 5), (6, 9)]


def pairs(spans: list[Any]) -> list[Any]:
    """Each token with the one before it."""
    return [*zip([(0, 0), *spans[:-1]], spans, strict=True)]


def test_settings_change_limit_and_length() -> None:
    found = counted("sdxl", [LONG], max_token_length=225, caption_prefix="ohwx, a photo of")
    (((long,),), limit) = found["lines"], found["limit"]  # type: ignore[misc]
    plain = counted("sdxl", [LONG], max_token_length=225)["lines"][0][0]  # type: ignore[index]
    assert limit == 225
    assert long["tokens"] > plain["tokens"]
    assert 0 < long["letters"] < plain["letters"]
