"""Hooks of MkDocs: files of the repository that pages link to become a part of the site.

Pages link to each other as files of the repository, so that links work wherever the Markdown is read. A target outside
this folder lies below ``repository/`` on the site; a page there brings the files that it links to, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, OUTSIDE = "docs", "repository"
ROW, CODE = re.compile(r"^\|.*$", re.MULTILINE), re.compile(r"`[^`]*`")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
"""Targets of Markdown links, without anchors; not addresses."""


def linked(path: str) -> set[str]:
    """Files of the repository that a page links to, by their paths."""
    targets = (_target(path, link) for link in LINK.findall((ROOT / path).read_text(encoding="utf-8")))
    return {target for target in targets if (ROOT / target).is_file()}


def _target(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def site_place(path: str) -> str:
    """The place of a file of the repository in the sources of the site."""
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{OUTSIDE}/{path}"


def in_repository(uri: str) -> str:
    """The file of the repository at a place of the site."""
    return uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"{DOCS}/{uri}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside this folder, and what that links to."""
    to_read = {in_repository(file.src_uri) for file in files.documentation_pages()}
    listed = {in_repository(file.src_uri) for file in files}
    while to_read:
        new = set().union(*map(linked, to_read)) - listed
        for path in sorted(new):
            files.append(File.generated(config, site_place(path), abs_src_path=str(ROOT / path)))
        listed |= new
        to_read = {path for path in new if path.endswith(".md")}
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links at the places on the site, and unescape bars in tables' code, which GitHub wants escaped."""
    path, uri = in_repository(page.file.src_uri), page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target = _target(path, match[0])
        return posixpath.relpath(site_place(target), posixpath.dirname(uri)) if (ROOT / target).is_file() else match[0]

    return LINK.sub(moved, ROW.sub(lambda row: CODE.sub(_unescaped, row[0]), markdown))


def _unescaped(code: re.Match[str]) -> str:
    return code[0].replace(r"\|", "|")
