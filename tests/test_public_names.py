"""Names in users' settings files, commands and LoRA files stay, and new ones are added knowingly."""

import pytest

from tests.support.public_names import CURRENT, compare, listed


@pytest.mark.parametrize("kind", ["options", pytest.param("lora_layers", marks=pytest.mark.run), "lora_endings"])
def test_public_names_match_their_list(kind: str) -> None:
    assert list(compare(listed(kind), CURRENT[kind]())) == []


def test_removed_and_new_names_are_reported_with_their_scripts() -> None:
    before = {"train.py": {"seed", "old"}, "gone.py": {"seed"}}
    removed, added = compare(before, {"train.py": {"seed", "new"}})
    assert removed.startswith("old of train.py; seed of gone.py: removed or renamed, which breaks")
    assert added.startswith("new of train.py: new. Run `python -m tests.support.public_names`")
