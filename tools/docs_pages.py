"""The pages of the documentation site are the repository's own Markdown files, at their own paths.

A hook of mkdocs (mkdocs.yml). So each text stands once, and a link that works in the repository works on the site.
Files that pages link to (scripts, plots, data) become files of the site. mkdocs warns of links and anchors that lead
nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files


ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "lowerhalf", "manapy", "osu_bench", "tests", "tools", "wrappers")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)|\bsrc=\"([^\":]+)\"")


def pages() -> list[Path]:
    """All Markdown files of the repository, relative to its root."""
    found = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
    return sorted(page.relative_to(ROOT) for page in found)


def linked(page: Path) -> set[Path]:
    """The files, other than pages, to which a page links, relative to the root."""
    targets = {first or second for first, second in LINK.findall((ROOT / page).read_text())}
    found = {(ROOT / page.parent / target).resolve() for target in targets if not target.endswith(".md")}
    return {file.relative_to(ROOT) for file in found if file.is_file() and file.is_relative_to(ROOT)}


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of docs/ by those of the whole repository. The theme's files stay."""
    from mkdocs.structure.files import File, Files

    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = set(pages()).union(*map(linked, pages()))
    return Files(
        [
            *of_theme,
            *(File(path.as_posix(), str(ROOT), config.site_dir, config.use_directory_urls) for path in sorted(ours)),
        ]
    )
