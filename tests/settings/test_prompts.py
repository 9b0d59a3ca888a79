"""Prompt files are read as people know them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.families.cards.registry import card_of
from sd_scripts.options.generating.prompt_lines import (
    SamplePrompt,
    dropped_words,
    line_keys,
    parse_prompts,
    read_prompt_file,
    with_effect,
)

CASES = json.loads((Path(__file__).parents[1] / "reference" / "fixtures_prompt_lines.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["line"] for case in CASES])
def test_a_line_is_read_as_in_the_reference(case: dict[str, Any]) -> None:
    assert line_keys(case["line"]) == case["dict"]


def test_every_option_of_a_line_reaches_the_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(
        "\ufeff# a comment\n\n  a cat --w 768 --h 1024 --d 7 --s 2000 --l .5 --g 2 --n bad --ss euler_a \na dog\n",
        encoding="utf-8",
    )
    assert read_prompt_file(file).prompts(SamplePrompt(steps=20)) == [
        SamplePrompt(
            prompt="a cat",
            width=768,
            height=1024,
            seed=7,
            steps=999,
            scale=0.5,
            guidance=2.0,
            negative_prompt="bad",
            sampler="euler_a",
        ),
        SamplePrompt(prompt="a dog", steps=20),
    ]


def test_a_line_names_the_length_of_a_clip_its_shift_and_its_ends(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("I see a cat --f 81 --fps 23.976 --fs 5 --i first frame.png --ei last.png --ci a --ci b\n")
    (prompt,) = read_prompt_file(file).prompts(SamplePrompt(frames=5))
    assert prompt == SamplePrompt(
        prompt="I see a cat",
        frames=81,
        fps=23.976,
        flow_shift=5.0,
        start_image="first frame.png",
        end_image="last.png",
        control_images=("a", "b"),
    )
    assert prompt.image_files == [
        *(("control_image_path", name) for name in "ab"),
        ("image_path", "first frame.png"),
        ("end_image_path", "last.png"),
    ]


def test_keys_of_musubi_tuner_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text('[{"prompt": "x", "frame_count": 17, "discrete_flow_shift": 3, "cfg_scale": 5, "image_path": "a"}]')
    assert read_prompt_file(file).prompts(SamplePrompt()) == [
        SamplePrompt(prompt="x", frames=17, flow_shift=3.0, scale=5.0, start_image="a")
    ]


def test_a_prompt_that_starts_like_an_option_of_clips_does_not_set_it() -> None:
    for prompt in ("I am a cat", "f 16 over the sea", "fps 3"):
        assert line_keys(prompt) == {"prompt": prompt}
        assert list(dropped_words(prompt)) == []


def test_frames_and_images_have_no_effect_in_a_family_without_them() -> None:
    prompt = SamplePrompt(prompt="x", frames=81, fps=16.0, start_image="a", end_image="b", control_images=("c",))
    assert with_effect(prompt, ()) == SamplePrompt(prompt="x")
    assert with_effect(prompt, ("clips", "start_image")) == replace(prompt, end_image=None, control_images=())


def test_a_toml_file_shares_the_keys_above_its_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text(
        '[prompt]\nwidth = 1024\nscale = 5\n[[prompt.subset]]\nprompt = "x"\n[[prompt.subset]]\nwidth = 64\n'
    )
    assert read_prompt_file(file).prompts(SamplePrompt()) == [
        SamplePrompt(prompt="x", width=1024, scale=5.0),
        SamplePrompt(width=64, scale=5.0),
    ]


def test_a_json_file_is_a_list_of_objects_or_lines(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text('[{"prompt": "x", "sample_steps": 4, "seed": null, "enum": 0}, "y --d 3"]')
    assert read_prompt_file(file).prompts(SamplePrompt()) == [
        SamplePrompt(prompt="x", steps=4),
        SamplePrompt(prompt="y", seed=3),
    ]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1d"])
def test_a_line_ends_only_at_a_line_feed(tmp_path: Path, mark: str) -> None:
    for ending in ("\n", "\r\n", "\r"):
        text = f"a cat{mark}on a mat --n dark{mark}blurry --w 64{ending}a dog"
        prompts = parse_prompts(text, Path("x.txt")).prompts(SamplePrompt())
        cat = SamplePrompt(prompt=f"a cat{mark}on a mat", negative_prompt=f"dark{mark}blurry", width=64)
        assert prompts == [cat, SamplePrompt(prompt="a dog")]


def test_a_seed_of_minus_one_is_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text('["x --d -1", {"prompt": "x", "seed": -1}, "x", "x --d 0"]')
    assert [prompt.seed for prompt in read_prompt_file(file).prompts(SamplePrompt(seed=5))] == [None, None, 5, 0]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.txt", "# nothing\n", "sample_prompts: '.*x.txt' has no prompts"),
        ("x.toml", "prompt = 'x'", r"sample_prompts: .*it has no \[\[prompt.subset\]\]"),
        ("x.toml", "prompt = ", "sample_prompts: '.*x.toml' cannot be read: "),
        ("x.json", '{"prompt": "x"}', "sample_prompts: .*it is not a list of prompts"),
        ("x.json", '[{"width": "wide"}]', "x.json', prompt 1: width: 'wide' is not a whole number"),
        ("x.yaml", "", "sample_prompts: '.*x.yaml' is not a .txt, .toml or .json file"),
    ],
)
def test_an_unusable_file_is_reported_in_one_sentence(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_prompt_file(tmp_path / name).prompts(SamplePrompt())


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample_prompts: file not found: '"):
        read_prompt_file(tmp_path / "x.txt").prompts(SamplePrompt())


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("a cat --w 768 --h 1024 --d 7 --s 20 --l .5 --g 2 --n bad, worse --ss euler_a", []),
        ("a cat -- with a hat", ["--: unknown option"]),
        ("a cat --q 3 --W 64", ["--q: unknown option"]),
        ("a cat --w wide", ["--w needs a whole number"]),
        ("a cat --n", ["--n needs a text"]),
        ("a cat --d -1", []),
        ("a cat --d -2", ["--d needs a whole number or -1"]),
        ("a cat --s 7 in a box", ["'in a box' after --s 7 is ignored: the prompt comes before the first option"]),
        ("a cat --l 7,5", ["',5' after --l 7 is ignored: the prompt comes before the first option"]),
        ("a cat --s 0", ["--s 0 becomes 1: steps are 1 to 999"]),
        ("a cat --s 2000", ["--s 2000 becomes 999: steps are 1 to 999"]),
        ("d 12 monkeys", ["the prompt starts like the option --d, so it also sets seed = 12"]),
    ],
)
def test_options_of_a_line_without_effect_are_reported(line: str, dropped: list[str]) -> None:
    assert list(dropped_words(line)) == dropped


def test_keys_of_a_table_without_effect_are_reported() -> None:
    text = '[prompt]\nwidth = 64\nhight = 64\n[[prompt.subset]]\nprompt = "x"\nsteps = 3\n'
    table = parse_prompts(text, Path("x.toml"))
    assert table.prompts(SamplePrompt()) == [SamplePrompt(prompt="x", width=64)]
    assert [entry.dropped for entry in table.entries] == [("hight: unknown key", "steps: unknown key")]
    line = parse_prompts('["y --q 3"]', Path("x.json"))
    assert [entry.dropped for entry in line.entries] == [("--q: unknown option",)]


JSON = """[
    {"prompt": "x", "sample_steps": 2000, "width": 100000}, {"sample_steps": 0}, {"sample_sampler": "nope"},
    {"height": -8}, {"scale": NaN}, {"width": true}, {"seed": 9223372036854775808}, "y --ss nope", {"scale": 5},
    "y --f 0", {"frame_count": 1e3}, "y --fps 9999", {"discrete_flow_shift": 0}, {"image_path": 3}
]"""
OF_JSON = [
    "prompt 1: sample_steps: 2000 is not between 1 and 999",
    "prompt 1: width: 100000 is not between 0 and 8192",
    "prompt 2: sample_steps: 0 is not between 1 and 999",
    "prompt 3: sample_sampler: 'nope' is not one of ddim, ",
    "prompt 4: height: -8 is not between 0 and 8192",
    "prompt 5: scale: nan is not a 63-bit number",
    "prompt 6: width: True is not a whole number",
    "prompt 7: seed: 9223372036854775808 is not a 63-bit number",
    "prompt 8: sample_sampler: 'nope' is not one of ddim, ",
    "prompt 10: frame_count: 0 is not between 1 and 2001",
    "prompt 11: frame_count: 1000.0 is not a whole number",
    "prompt 12: fps: 9999.0 is not between 1 and 240",
    "prompt 13: discrete_flow_shift: 0 is not between 0.01 and 100",
    "prompt 14: image_path: 3 is not text",
]
LINES = "# two\na cat --ss euler_a\n\na dog --ss nope --w 100000\n"
OF_LINES = [
    "line 4: sample_sampler: 'nope' is not one of ddim, ",
    "line 4: width: 100000 is not between 0 and 8192",
]
TOML = '[prompt]\nsample_steps = 1000\n[[prompt.subset]]\nprompt = "x"\n[[prompt.subset]]\nsample_steps = 9\n'
OF_TOML = ["prompt 1: sample_steps: 1000 is not between 1 and 999"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [("x.json", JSON, OF_JSON), ("x.txt", LINES, OF_LINES), ("x.toml", TOML, OF_TOML)],
)
def test_impossible_values_are_all_reported_with_their_position(
    tmp_path: Path, name: str, content: str, expected: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(content)
    told = read_prompt_file(file).problems(card_of("sdxl").capabilities)
    assert len(told) == len(expected)
    for sentence, begin in zip(told, expected, strict=True):
        assert sentence.startswith(f"sample_prompts: '{file}', {begin}")


def test_a_sampler_without_effect_is_not_a_problem(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a cat --ss nope --s 5000\n")
    file = read_prompt_file(tmp_path / "x.txt")
    assert file.problems(card_of("flux").capabilities) == []
    assert file.remarks() == [
        f"sample_prompts: '{tmp_path / 'x.txt'}', line 1: --s 5000 becomes 999: steps are 1 to 999"
    ]


def test_a_deeply_nested_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    (sentence,) = read_prompt_file(tmp_path / "x.json").problems(card_of("sdxl").capabilities)
    assert sentence.endswith("cannot be read: it is nested too deeply")
