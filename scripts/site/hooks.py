"""What mkdocs needs besides the pages in docs/: other pages and files of the repository, and links to them.

The pages are written for GitHub, whose Markdown differs from that of mkdocs in lists and in HTML.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that are not in docs/, by their path in the repository."""
ASSETS = {
    "assets/site.css": HERE / "site.css",
    "assets/tables.js": HERE / "tables.js",
    "assets/mermaid.js": HERE / "node_modules" / "@mermaid-js" / "tiny" / "dist" / "mermaid.tiny.js",
}
REFERENCE = {
    "onnx_ops": "onnx_ops/__init__.py",
    "onnx_ops.torch": "onnx_ops/torch/__init__.py",
    "onnx_ops.mpi": "onnx_ops/mpi.py",
}
"""The public modules and their files."""
OPS = "ops/README.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The page of each op, below their index."""
    pages = sorted(f"ops/{path.name}" for path in (ROOT / "docs" / "ops").glob("*.md"))
    for section in config.nav or ():
        for entries in section.values():
            if OPS in entries:
                entries.extend({Path(page).stem: page} for page in pages if page != OPS)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that are not in docs/."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for module, path in REFERENCE.items():
        files.append(File.generated(config, f"reference/{module}.md", content=reference(module, ROOT / path)))
    for uri, asset in ASSETS.items():
        if not asset.exists():
            raise ConfigurationError(f"{asset.name} is missing: run `make site`")
        files.append(File.generated(config, uri, abs_src_path=str(asset)))
    return files


def reference(module: str, path: Path) -> str:
    """The page of a public module: its docstring, then each name in its `__all__`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names = ast.literal_eval(statement.value)
    blocks = [f"# {module}", ast.get_docstring(tree) or "", *(f"::: {module}.{name}" for name in names)]
    return "\n\n".join(blocks) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page in the Markdown of mkdocs, with its links adapted."""
    uri = page.file.src_uri
    source = next((path for path, other in PAGES.items() if other == uri), f"docs/{uri}")

    def adapted(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        if re.match(r"\w+:|#", target):
            return link[0]
        path, separator, heading = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(found) is not None:
            return f"{mark}[{text}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{separator}{heading})"
        if not (ROOT / path).exists():
            raise ConfigurationError(f"{source} links to {target}, which does not exist")
        return f"[{text}]({config.repo_url}/blob/main/{path})" if config.repo_url else text

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    for index in range(0, len(parts), 2):  # the others are blocks of code
        part = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", adapted, parts[index])
        part = part.replace("<details>", '<details markdown="1">')
        # A list may follow a paragraph without an empty line.
        parts[index] = re.sub(r"^((?!- |\s).+)\n(?=- )", r"\1\n\n", part, flags=re.MULTILINE)
    return "".join(parts)
