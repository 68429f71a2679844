"""Hooks of mkdocs: the pages of the root join the site, and links out of docs/ stay whole.

The README is the site's first page. A link to a file that is no page (code, a picture, a table of
figures) leads to a copy of it, so that the site is complete by itself. llms.txt lists the pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mkdocs.structure.files import File

import outbox
from orderchain import _NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
ROOT_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
"""The pages beside docs/, and their names in the site."""

FOLDERS: Final = {"docs/decisions": "decisions/README.md", "examples": "examples.md"}
"""The folders that pages link to, and the page that shows what is in each."""

REFERENCE: Final = {
    "sequencer": "sequencing",
    "orderchain.front_door": "receiving",
    "matcher_receiver": "receiving",
    "chain_kernel.model": "receiving",
    "chain_verifier": "verification",
    "chain_kernel.monitoring": "monitoring",
    "chain_kernel.clients": "settings",
    "chain_kernel.start_at": "settings",
}
"""The page of the reference for the names of the front door that a module gives, by the first that
fits."""

WHOLE_MODULES: Final = {
    "errors": "chain_kernel.errors",
    "ports": "chain_kernel.ports",
    "testing": "orderchain.pytest_plugin",
}
"""The pages that show a module as it is: `errors` of the door, what embedders implement, and what
their tests get."""

_LINK: Final = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
_FENCE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COPIES: Final = "files"


def place_in_site(path: str) -> str:
    """Return where a file of the repository is in the site, both relative to their roots."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path in FOLDERS:
        return FOLDERS[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{_COPIES}/{path}"


def source_of(page: str) -> str:
    """Return the file of the repository that a page of the site is made from."""
    named = {site: source for source, site in ROOT_PAGES.items()}
    if page.startswith(f"{_COPIES}/"):
        return page.removeprefix(f"{_COPIES}/")
    return named.get(page, f"docs/{page}")


def targets_of(page: str, text: str) -> dict[str, str]:
    """Return each link of a page to a file of the repository, with that file's path."""
    folder = posixpath.dirname(source_of(page))
    links = {match[2] for match in _LINK.finditer(_FENCE.sub("", text)) if "//" not in match[2]}
    found = {link: posixpath.normpath(posixpath.join(folder, link)) for link in links}
    return {link: path for link, path in found.items() if (ROOT / path).exists()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, the list of decisions, and a copy of each file that is linked."""
    for source, page in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    generated = {"decisions/README.md": decisions(), "examples.md": examples(), **reference()}
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    for shown in list(files.documentation_pages()):
        for path in targets_of(shown.src_uri, shown.content_string).values():
            copy = place_in_site(path)
            if copy.startswith(f"{_COPIES}/") and files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / path)))
    head = f"# {config.site_name}\n\n> {config.site_description}\n\n"
    text = head + "\n".join(llms(config.nav or [], files)) + "\n"
    files.append(File.generated(config, "llms.txt", content=text))
    return files


def llms(nav: Sequence[Any], files: Files) -> Iterator[str]:
    """Yield the lines of llms.txt: the pages of the navigation, by their titles and addresses."""
    for entry in nav:
        ((title, target),) = entry.items() if isinstance(entry, dict) else {"": entry}.items()
        if isinstance(target, list):
            yield f"\n## {title}\n"
            yield from llms(target, files)
        elif (page := files.get_file_from_path(target)) is not None:
            heading = page.content_string.partition("\n")[0].removeprefix("# ")
            yield f"- [{title or heading}]({page.url})"


def decisions() -> str:
    """Return a page that lists the decisions by their titles."""
    lines = ["# Decisions", "", "What was chosen, what was measured, what was given up.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def examples() -> str:
    """Return a page with the programs of examples/."""
    parts = ["# Examples", "Whole programs. Tests run each against real servers."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8").rstrip()
        parts += [f"## {path.name}", f"```python\n{code}\n```"]
    return "\n\n".join(parts) + "\n"


def reference() -> dict[str, str]:
    """Return the pages of the reference: every name of the front door is on one of them."""
    every = [*REFERENCE.values(), "messages", *WHOLE_MODULES]
    pages = {page: [f"# {page.capitalize()}"] for page in every}
    # `outbox.__all__` has only what can be imported here.
    pages["messages"] += [f"::: outbox.{name}" for name in sorted(outbox._MODULE_OF)]
    for module, names in _NAMES.items():
        if module == "chain_kernel":  # `errors`, a page of its own
            continue
        page = next(page for prefix, page in REFERENCE.items() if module.startswith(prefix))
        pages[page] += [f"::: orderchain.{name}" for name in names]
    for page, module in WHOLE_MODULES.items():
        pages[page].append(f"::: {module}")
    return {f"reference/{page}.md": "\n\n".join(text) + "\n" for page, text in pages.items()}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead each link to where its file is in the site."""
    here = page.file.src_uri
    targets = targets_of(here, markdown)

    def led(match: re.Match[str]) -> str:
        if match[2] not in targets:
            return match[0]
        there = posixpath.relpath(place_in_site(targets[match[2]]), posixpath.dirname(here) or ".")
        return f"{match[1]}{there}{match[3] or ''}{match[4]}"

    return _LINK.sub(led, markdown)
