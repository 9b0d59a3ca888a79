"""Dataset descriptions: accepted, refused and resolved as in the field."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sd_scripts.data.plan.blueprint import (
    Blueprint,
    Dataset,
    Subset,
    dataset_defaults,
    parse_resolution,
    read_blueprint,
    resolve,
)
from sd_scripts.formats.documents import parse_toml
from sd_scripts.formats.images.image_folders import image_folders
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.dataset_schema import read_config
from sd_scripts.settings.preflight import problems
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from tests.support.data import make_folder, settings_of

CASES = json.loads((Path(__file__).parents[1] / "reference/fixtures_dataset_toml.json").read_text())
ACCEPTED = [case for case in CASES if case["accepted"]]
REFUSED = [case for case in CASES if not case["accepted"]]
SAYS = {"type": "must be", "missing_required": "is required", "extra_key": "is unknown", "mixed_styles": "mix"}


def named(case: dict) -> str:
    return f"{case['case']}-{case['masked_loss']}"


def settings(**values: Any) -> Settings:
    return Settings(script_for("sdxl", "lora"), values)


def flat(record: Dataset | Subset) -> dict[str, Any]:
    """A record and the records within it under the names of a dataset file."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        values |= flat(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return values


def assert_resolved(record: Dataset | Subset, expected: dict[str, Any], leave_out: set[str]) -> None:
    ours = {name: list(value) if isinstance(value, tuple) else value for name, value in flat(record).items()}
    assert {name: ours[name] for name in expected.keys() - leave_out} == {
        name: value for name, value in expected.items() if name not in leave_out
    }


@pytest.mark.parametrize("case", ACCEPTED, ids=named)
def test_accepted_descriptions_resolve_to_the_values_of_the_reference(case: dict) -> None:
    fallback = {} if "resolution" in case["toml"] else {"resolution": "512"}
    ours = resolve(parse_toml(case["toml"]), dataset_defaults(settings(masked_loss=case["masked_loss"], **fallback)))
    assert len(ours.datasets) == len(case["blueprint"])
    for dataset, reference in zip(ours.datasets, case["blueprint"], strict=True):
        unknown = {name for name, value in reference["params"].items() if value is None and name == "resolution"}
        assert_resolved(dataset, reference["params"], unknown | {"debug_dataset", "network_multiplier"})
        for subset, expected in zip(dataset.subsets, reference.get("subsets", []), strict=True):
            assert_resolved(subset, expected, {"validation_seed", "validation_split", "custom_attributes"})


@pytest.mark.parametrize("case", REFUSED, ids=named)
def test_refused_descriptions_name_the_key_and_the_problem(case: dict) -> None:
    with pytest.raises(ValueError, match=SAYS[case["error_kind"]]) as caught:
        resolve(parse_toml(case["toml"]), dataset_defaults(settings(masked_loss=case["masked_loss"])))
    if case["error_path"]:
        path = case["error_path"].removeprefix("data").replace("']['", ".").replace("['", ".").replace("']", "")
        assert f"dataset_config: {path.strip('.')}" in str(caught.value)


def test_a_value_comes_from_subset_then_dataset_then_general_then_settings() -> None:
    config = {
        "general": {"keep_tokens": 1, "num_repeats": 2, "batch_size": 3, "flip_aug": True},
        "datasets": [
            {
                "keep_tokens": 0,
                "num_repeats": 5,
                "subsets": [{"image_dir": "a", "num_repeats": 7, "flip_aug": False}, {"image_dir": "b"}],
            }
        ],
    }
    told = settings(resolution="640,512", keep_tokens=9, train_batch_size=8, shuffle_caption=True)
    (dataset,) = resolve(config, dataset_defaults(told)).datasets
    assert (dataset.batch_size, dataset.buckets.resolution) == (3, (640, 512))
    assert [subset.num_repeats for subset in dataset.subsets] == [7, 5]
    assert [subset.augmentation.flip_aug for subset in dataset.subsets] == [False, True]
    assert [subset.captions.keep_tokens for subset in dataset.subsets] == [0, 0]
    assert all(subset.captions.shuffle_caption for subset in dataset.subsets)


def test_line_ends_in_texts_that_become_part_of_a_caption_are_blanks() -> None:
    texts = {"caption_prefix": "a photo\nof ", "caption_suffix": "in the\r\ngarden\n", "class_tokens": "sks\ncat"}
    config = {
        "datasets": [{"subsets": [{"image_dir": "a", **texts}, {"image_dir": "b", "caption_prefix": " as it is "}]}]
    }
    (dataset,) = resolve(config, dataset_defaults(settings(resolution="512"))).datasets
    first, second = dataset.subsets
    assert (first.captions.caption_prefix, first.captions.caption_suffix) == ("a photo of", "in the garden")
    assert (first.class_tokens, second.captions.caption_prefix) == ("sks cat", " as it is ")


def test_an_unknown_key_is_reported_with_the_nearest_known_one() -> None:
    with pytest.raises(
        ValueError, match=r"datasets\[0\]\.enable_buckets is unknown here\. Did you mean enable_bucket\?"
    ):
        resolve({"datasets": [{"enable_buckets": True}]}, dataset_defaults(settings(resolution="512")))


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"general": {"alpha_mask": True}}, r"\[\[datasets\.subsets\]\]"),
        ({"datasets": [{"subsets": [{"image_dir": "a", "batch_size": 2}]}]}, r"\[\[datasets\]\] or \[general\]"),
        ({"datasets": [{"subsets": [{"image_dir": "a", "conditioning_data_dir": "b"}]}]}, "it needs masked_loss"),
        ({"datasets": [{"subsets": [{"metadata_file": "a", "class_tokens": "b"}]}]}, "contains the captions itself"),
    ],
)
def test_a_key_in_the_wrong_place_is_reported_with_its_place(config: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        resolve(config, dataset_defaults(settings(resolution="512")))


def test_all_mistakes_are_reported_together() -> None:
    config = {"datasets": [{"resolution": "512", "subsets": [{"num_repeats": 1.5}]}]}
    with pytest.raises(ValueError, match="resolution") as caught:
        resolve(config, dataset_defaults(settings()))
    assert len(str(caught.value).splitlines()) == 3


RANGED = """# a comment
[general]
caption_dropout_rate = 7.0
caption_tag_dropout_rate = nan

[[datasets]]
resolution = [1024, 99999]
batch_size = 999999999
min_bucket_reso = -64
[[datasets.subsets]]
image_dir = "a"
caption_prefix = '''
keep_tokens = 1
'''
[[datasets]]
subsets = [{ image_dir = "a", keep_tokens = -5 }]
[[ datasets ]]
resolution = 512
  [[ datasets.subsets ]]  # b
  image_dir = "b"
  "num_repeats" = 999_999_999_999
"""


def test_numbers_out_of_range_are_reported_with_path_and_line(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(RANGED)
    asked = settings(dataset_config=str(tmp_path / "data.toml"))
    with pytest.raises(ValueError, match="dataset_config") as caught:
        read_blueprint(asked, pytest.fail)
    lines = [
        "general.caption_dropout_rate (line 3) must be within 0.0..1.0, not 7.0",
        "general.caption_tag_dropout_rate (line 4) must be a number, not nan",
        "datasets[0].resolution (line 7) must be within 64..8192, not 99999",
        "datasets[0].batch_size (line 8) must be within 1..1024, not 999999999",
        "datasets[0].min_bucket_reso (line 9) must be within 64..8192, not -64",
        "datasets[1].subsets[0].keep_tokens (line 16) must be within 0..1000, not -5",
        "datasets[2].subsets[0].num_repeats (line 21) must be within 0..100000, not 999999999999",
    ]
    assert str(caught.value).splitlines() == [f"dataset_config: {line}" for line in lines]
    assert {str(problem) for problem in problems(asked)} >= {f"dataset_config: {line}" for line in lines}


def test_folders_are_reported_with_the_other_mistakes(tmp_path: Path) -> None:
    text = '[[datasets]]\nresolution = 9\n[[datasets.subsets]]\nkeep_tokens = -1\nimage_dir = "none"\n'
    (tmp_path / "a.toml").write_text(text)
    found = [str(each) for each in problems(settings(dataset_config=str(tmp_path / "a.toml")))]
    assert [line.split(")")[0] for line in found if line.startswith("dataset_config: ")] == [
        "dataset_config: datasets[0].resolution (line 2",
        "dataset_config: datasets[0].subsets[0].keep_tokens (line 4",
        "dataset_config: datasets[0].subsets[0].image_dir (line 5",
    ]


def test_true_in_place_of_a_number_and_a_key_without_effect_are_reported(tmp_path: Path) -> None:
    text = "[[datasets]]\nresolution = 512\nbatch_size = true\nenable_bucket = true\nnetwork_multiplier = 0.5\n"
    (tmp_path / "a.toml").write_text(text)
    told: list[str] = []
    (dataset,) = read_blueprint(settings(dataset_config=str(tmp_path / "a.toml")), told.append).datasets
    assert dataset.batch_size == 1
    assert told == [
        "dataset_config: datasets[0].batch_size (line 3) is true, which is read as 1",
        "dataset_config: datasets[0].network_multiplier (line 5) has no effect: every dataset trains the network at "
        "full strength",
    ]


def test_a_key_without_effect_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[general]\ncustom_attributes = { kind = 1 }\n[[datasets]]\nresolution = 512\n")
    told: list[str] = []
    read_blueprint(settings(dataset_config=str(tmp_path / "a.toml")), told.append)
    assert told == ["dataset_config: general.custom_attributes (line 2) has no effect: nothing reads these attributes"]


@pytest.mark.parametrize(
    "wrong", [[], {"datasets": {}}, {"datasets": [1]}, {"general": 1}, {"datasets": [{"subsets": 1}]}]
)
def test_a_description_of_the_wrong_form_is_refused(tmp_path: Path, wrong: Any) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match="dataset_config: "):
        read_blueprint(settings(dataset_config=str(path), resolution="512"), pytest.fail)


def test_toml_and_json_are_equivalent(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = "x"\n')
    config = {"datasets": [{"resolution": 512, "subsets": [{"image_dir": "x", "class_tokens": None}]}]}
    (tmp_path / "a.json").write_text(json.dumps(config))
    one, other = (resolve(read_config(tmp_path / name), dataset_defaults(settings())) for name in ("a.toml", "a.json"))
    assert one == other


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[datasets")
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(ValueError, match=f"dataset_config: .*{name}"):
            read_config(tmp_path / name)


def test_folder_names_give_repeats_and_class_tokens(tmp_path: Path) -> None:
    for name in ("train/10_my cat_2", "train/3_dog", "train/notes", "reg/1_animal"):
        (tmp_path / name).mkdir(parents=True)
    told: list[str] = []
    asked = settings_of(train_data_dir=tmp_path / "train", reg_data_dir=tmp_path / "reg", dataset_repeats=5)
    (dataset,) = read_blueprint(asked, told.append).datasets
    assert [(each.name, each.num_repeats, each.class_tokens, each.is_reg) for each in dataset.subsets] == [
        ("10_my cat_2", 10, "my cat_2", False),
        ("3_dog", 3, "dog", False),
        ("1_animal", 1, "animal", True),
    ]
    assert len(told) == 1
    assert "'notes'" in told[0]


def test_a_folder_that_is_missing_or_has_no_numbered_subfolder_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "flat", [(64, 64)])
    with pytest.raises(ValueError, match="train_data_dir: folder not found"):
        read_blueprint(settings_of(train_data_dir=tmp_path / "none"), pytest.fail)
    with pytest.raises(ValueError, match="train_data_dir: no folder named like 10_cat"):
        read_blueprint(settings_of(train_data_dir=tmp_path / "flat"), pytest.fail)
    with pytest.raises(ValueError, match="train_data_dir: is required"):
        read_blueprint(settings_of(), pytest.fail)


def folders_of(told: list[str], **values: Any) -> list[tuple[str, int, str | None, bool]]:
    (dataset,) = read_blueprint(settings_of(**values), told.append).datasets
    return [(each.name, each.num_repeats, each.class_tokens, each.is_reg) for each in dataset.subsets]


def test_num_repeats_trains_a_flat_folder_unchanged(tmp_path: Path) -> None:
    for name in ("photos", "reg"):
        make_folder(tmp_path / name, [(64, 64)])
    told: list[str] = []
    asked = {"train_data_dir": tmp_path / "photos", "reg_data_dir": tmp_path / "reg", "num_repeats": 7}
    assert folders_of(told, **asked) == [("photos", 7, None, False), ("reg", 1, None, True)]
    assert told == []
    make_folder(tmp_path / "photos/10_cat", [(64, 64)])
    make_folder(tmp_path / "reg/3_cat", [(64, 64)])
    assert folders_of(told, **asked) == [("photos", 7, None, False), ("3_cat", 3, "cat", True)]
    assert [line.partition(":")[0] for line in told] == ["train_data_dir", "reg_data_dir"]
    assert "10_cat" in told[0]
    with pytest.raises(ValueError, match=r"train_data_dir: no images directly in .*, where num_repeats = 7"):
        folders_of(told, train_data_dir=tmp_path, num_repeats=7)


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    found = image_folders(tmp_path / ("x" * 300))
    assert found.problem
    assert found.problem.endswith("cannot be read: File name too long")


def test_a_flat_folder_is_reported_with_a_remedy(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", [(64, 64)] * 2)
    with pytest.raises(ValueError, match="set num_repeats = 1 to train the 2 images in it unchanged"):
        folders_of([], train_data_dir=tmp_path / "photos")


def test_a_folder_named_like_10_cat_is_used_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "10_my cat", [(64, 64)])
    assert folders_of([], train_data_dir=tmp_path / "10_my cat") == [("10_my cat", 10, "my cat", False)]
    monkeypatch.chdir(tmp_path / "10_my cat")
    assert [each[1:3] for each in folders_of([], train_data_dir=".")] == [(10, "my cat")]


def test_a_date_in_a_folder_name_is_not_read_as_repeats(tmp_path: Path) -> None:
    make_folder(tmp_path / "train/20241122_photos", [(64, 64)])
    make_folder(tmp_path / "long/5000_cat", [(64, 64)])
    with pytest.raises(ValueError, match=r"'20241122_photos' means 20,241,122 repeats .* rename it to '1_photos'$"):
        folders_of([], train_data_dir=tmp_path / "train", allow_many_repeats=True)
    with pytest.raises(ValueError, match=r"'5000_cat' means 5,000 repeats .* or set allow_many_repeats"):
        folders_of([], train_data_dir=tmp_path / "long")
    allowed = folders_of([], train_data_dir=tmp_path / "long", allow_many_repeats=True)
    assert allowed == [("5000_cat", 5000, "cat", False)]


def test_images_outside_the_numbered_folders_and_folders_of_0_repeats_are_reported(tmp_path: Path) -> None:
    make_folder(tmp_path / "1_cat", [(64, 64)])
    make_folder(tmp_path / "0_dog", [(64, 64)])
    make_folder(tmp_path, [(64, 64)])
    told: list[str] = []
    assert folders_of(told, train_data_dir=tmp_path) == [("1_cat", 1, "cat", False)]
    assert [("1 image directly in" in line, "'0_dog'" in line) for line in told] == [(True, False), (False, True)]
    (tmp_path / "1_cat").rename(tmp_path / "0_cat")
    with pytest.raises(ValueError, match="0_cat, 0_dog: the name sets 0 repeats"):
        folders_of(told, train_data_dir=tmp_path)


def test_settings_without_effect_are_reported_with_the_settings_and_not_again_with_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[general]\n")
    (tmp_path / "1_cat").mkdir()
    asked = from_values(
        script_for("sdxl", "lora"),
        {"dataset_config": str(tmp_path / "a.toml"), "train_data_dir": "x", "conditioning_data_dir": "y"},
    )
    assert read_blueprint(asked, pytest.fail) == Blueprint(datasets=(), source="dataset_config", from_config=True)
    named = [remark.name for remark in asked.remarks]
    assert (named.count("train_data_dir"), named.count("conditioning_data_dir")) == (1, 1)
    asked = from_values(
        script_for("sdxl", "lora"), {"train_data_dir": str(tmp_path), "conditioning_data_dir": "y", "resolution": "64"}
    )
    read_blueprint(asked, pytest.fail)
    assert [remark.name for remark in asked.remarks].count("conditioning_data_dir") == 1


def test_resolution_is_one_number_or_two() -> None:
    assert parse_resolution("1024") == (1024, 1024)
    assert parse_resolution("1024, 768") == (1024, 768)
    for wrong in ("", "big", "1,2,3", "0", "-5,5"):
        with pytest.raises(ValueError, match=r"resolution: .* is not a size"):
            parse_resolution(wrong)


def test_a_face_crop_range_is_two_numbers() -> None:
    config = {"datasets": [{"resolution": 512, "subsets": [{"image_dir": "a"}]}]}
    (dataset,) = resolve(config, dataset_defaults(settings(face_crop_aug_range="1.5,3"))).datasets
    assert dataset.subsets[0].augmentation.face_crop_aug_range == (1.5, 3.0)
    with pytest.raises(ValueError, match="face_crop_aug_range: '1'"):
        resolve(config, dataset_defaults(settings(face_crop_aug_range="1")))
