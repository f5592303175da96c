"""Files of the site that are outside docs/, and the links to them.

On disk a link leads from file to file, as a code host shows them. The site has fewer folders: this
hook of MkDocs adds the files of `OUTSIDE` and points the links at them. What it does not know stays
as it is, and MkDocs reports it as broken.

The format has several titles, of which a table of contents shows one: the later ones, and all below
them, become headings of the first.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
FORMAT: Final = "format.md"
OUTSIDE: Final = {
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "README.md": "index.md",
    ROOT / "LICENSE": "LICENSE",
    ROOT / "src/pagequeue/FORMAT.md": FORMAT,
    ROOT / "src/pagequeue/demo/spark_flights.py": "spark_flights.py",
    ROOT / "stress/CORPUS.md": "corpus.md",
    ROOT / "stress/README.md": "campaigns.md",
    ROOT / "tests/CHANCE.md": "chance.md",
}
"""Each file's address in the site."""
HEADING: Final = re.compile(r"^#(?=#* )", re.MULTILINE)
LINK: Final = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that are not in docs/."""
    for path, uri in OUTSIDE.items():
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to where the site has their files."""
    del config, files
    source = Path(page.file.abs_src_path or "").resolve()

    def pointed(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if target in OUTSIDE:
            uri = OUTSIDE[target]
        elif target.is_relative_to(DOCS):
            uri = target.relative_to(DOCS).as_posix()
        else:
            return found[0]
        return found[1] + posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")

    if page.file.src_uri == FORMAT:
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n{HEADING.sub('##', rest)}"
    return LINK.sub(pointed, markdown)
