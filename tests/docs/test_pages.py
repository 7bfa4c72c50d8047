"""The pages: each in the index, each link to something that is there, none too long; and how to cite the project."""

import re
from pathlib import Path

import pytest
import yaml

import fastadv

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
ORDER = (
    "install",
    "quickstart",
    "data",
    "classifiers",
    "several-gpus",
    "evaluation",
    "performance",
    "methods",
    "reproduce",
)


def prose_of(text: str) -> str:
    """A page without its code, where brackets and number signs mean something else."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"^    .*$|`[^`\n]*`", "", text, flags=re.MULTILINE)


def anchors_of(text: str) -> set[str]:
    """What GitHub calls a page's headings; one that stands there again has a number."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return {name if name not in found[:at] else f"{name}-{found[:at].count(name)}" for at, name in enumerate(found)}


def dead_links(page: Path) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            dead.append(target)
        elif anchor and anchor not in anchors_of(path.read_text(encoding="utf-8")):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not dead_links(page)


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `b`, c: d-e\n\n## Twice\n\n## Twice\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#a-b-c-d-e) [3](other.md#twice-1) [4](#here) [5](https://x.org)\n"
        "[6](no.md) [7](other.md#twice-2) [8](#there) `[9](code.md)`\n\n    [10](code.md)\n",
        encoding="utf-8",
    )
    assert dead_links(page) == ["no.md", "other.md#twice-2", "#there"]


def test_every_page_is_in_the_index_and_the_index_in_the_readme():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8")))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_index_is_in_order():
    numbered = re.findall(r"^(\d+)\. \[[^\]]*\]\(([\w-]+)\.md\)", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
    assert numbered == [(str(number), name) for number, name in enumerate(ORDER, start=1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_is_too_long(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_citation_has_what_its_schema_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["cff-version"], cited["type"], cited["title"]) == ("1.2.0", "software", "fastadv")
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (fastadv.__version__, project["license"])
    for entry in [cited, *cited["references"]]:
        assert isinstance(entry["title"], str) and entry["authors"]
        for author in entry["authors"]:
            # A person or an entity, never both, and no key that the schema does not have.
            assert author.keys() in ({"name"}, {"family-names", "given-names"})
            assert all(isinstance(part, str) and part for part in author.values())


def test_the_citation_has_the_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    papers = yaml.safe_load((ROOT / "docs" / "papers.yaml").read_text(encoding="utf-8")).values()
    assert {entry["type"] for entry in cited} <= {"article", "conference-paper"}
    assert [
        (entry["title"], entry["year"], [f"{a['given-names']} {a['family-names']}" for a in entry["authors"]])
        for entry in cited
    ] == [(paper["title"], paper["year"], paper["authors"]) for paper in papers]
