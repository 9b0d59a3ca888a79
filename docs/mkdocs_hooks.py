"""Hooks of mkdocs: pages of the repository that are not in docs/ join the site, and links to them are followed."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NAMES = {
    "README.md": "index.md",
    "SECURITY.md": "security_policy.md",  # docs/security.md is a different page
    "LICENSE": "LICENSE.txt",
    "benchmarks/README.md": "benchmarks/index.md",
}
"""Path in the repository -> path in the site; the others keep theirs in lower case."""


def in_site(path: str) -> str:
    """Return where the site has a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else NAMES.get(path, path.lower())


def outside() -> list[str]:
    """Return the files of the repository that join docs/."""
    found = [*ROOT.glob("*.md"), ROOT / "LICENSE", *ROOT.glob("benchmarks/**/*.md")]
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in outside():
        files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri
    source = next((path for path in outside() if in_site(path) == here), f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        target, mark, heading = match[2].partition("#")
        if not target or "://" in target:
            return match[0]
        path = in_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        return f"{match[1]}{posixpath.relpath(path, posixpath.dirname(here) or '.')}{mark}{heading})"

    return re.sub(r"(\]\()([^)\s]+)\)", moved, markdown)
