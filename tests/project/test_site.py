"""The navigation of the site lists every page; `make site` itself verifies links and headings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation() -> None:
    """Once. The hooks add those of single ops."""
    config = (ROOT / "scripts" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = re.search(r"^nav:\n((?:  .*\n)+)", config, re.MULTILINE)
    assert navigation is not None
    listed = re.findall(r"\S+\.(?:md|ipynb)$", navigation[1], re.MULTILINE)
    assert len(listed) == len(set(listed))
    added = {"index.md", "contributing.md", "changelog.md", "ops/README.md"}
    assert {page for page in listed if not page.startswith("reference/")} - added == {
        *(path.name for path in (ROOT / "docs").glob("*.md")),
        *(f"notebooks/{path.name}" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")),
    }
