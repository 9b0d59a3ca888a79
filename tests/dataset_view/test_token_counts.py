"""The page counts the tokens of captions as training does, and cuts where it does."""

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


def test_settings_change_limit_and_length() -> None:
    found = counted("sdxl", [LONG], max_token_length=225, caption_prefix="ohwx, a photo of")
    (((long,),), limit) = found["lines"], found["limit"]  # type: ignore[misc]
    plain = counted("sdxl", [LONG], max_token_length=225)["lines"][0][0]  # type: ignore[index]
    assert limit == 225
    assert long["tokens"] > plain["tokens"]
    assert 0 < long["letters"] < plain["letters"]
