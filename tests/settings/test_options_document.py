"""The pages about the options match the code."""

from sd_scripts.settings.document import DOCS, of_one_family, pages


def test_the_pages_are_fresh() -> None:
    written = {
        file.relative_to(DOCS).as_posix(): file.read_text(encoding="utf-8")
        for file in (DOCS / "options.md", *DOCS.glob("options/*.md"))
    }
    assert written == pages(), "run: python -m sd_scripts.settings.document"


def test_every_common_group_has_a_page_of_its_concern() -> None:
    assert [group for group in of_one_family() if not group.__module__.startswith("sd_scripts.families.")] == []
