"""Pages do what they show: code runs, links lead somewhere, modules and files that are named exist."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from randeigen import MissingExtra
from studies.notebook import executed

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*FRONT, *sorted(DOCS.rglob("*.md"))]
# Whose blocks run, one after the other. The tutorial, walks, laboratory.md and training.md have other tests.
RUN = ["index.md", "certificate.md", "how-to/*.md", "reference/*.md"]
RUNNABLE = [page for pattern in RUN for page in sorted(DOCS.glob(pattern))]
WALKS = {"server-with-files.md", "researcher.md", "pytorch-trainer.md"}
RUNNABLE = [page for page in RUNNABLE if "```python\n" in page.read_text() and page.name not in WALKS]
FORMER = {"randeigen.learn", "randeigen.learn.TrainSpec", "randeigen.data"}  # the changelog's left column


@contextlib.contextmanager
def skipped_without_extras() -> Iterator[None]:
    """What needs torch or scikit-learn is skipped where they are not installed."""
    try:
        yield
    except MissingExtra as error:
        pytest.skip(str(error))
    except ModuleNotFoundError as error:
        if error.name in ("torch", "sklearn"):
            pytest.skip(str(error))
        raise


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)


def expected(block: str) -> list[str | None]:
    """What the comment after each print(...) says comes out, or None."""
    lines = [line for line in block.splitlines() if line.lstrip().startswith("print(")]
    return [line.rpartition("  # ")[2].strip() if "  # " in line else None for line in lines]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_its_code_runs_and_prints_what_its_comments_say(page: Path) -> None:
    names: dict[str, object] = {"__name__": "page"}
    module = types.ModuleType("page")
    module.__dict__.update(names)
    sys.modules["page"] = module  # dataclasses look their module up
    try:
        for block in blocks(page):
            output = io.StringIO()
            with contextlib.redirect_stdout(output), skipped_without_extras():
                exec(compile(block, name_of(page), "exec", dont_inherit=True), module.__dict__)
            printed, comments = output.getvalue().splitlines(), expected(block)
            assert len(printed) == len(comments)
            for line, comment in zip(printed, comments, strict=True):
                assert comment is None or comment.split()[: len(line.split())] == line.split()
    finally:
        del sys.modules["page"]


def test_the_tutorial_shows_the_outputs_that_it_has() -> None:
    page = (DOCS / "tutorial.md").read_text()
    with skipped_without_extras():
        assert executed(page) == page, "python -m studies.notebook docs/tutorial.md"
    assert page.count("```text") > 10


def test_a_notebook_page_with_another_output_is_noticed() -> None:
    page = "```python\nx = 2\nprint(x)\nx + 1\n```\n\n```text\n2\n4\n```\n\nWords.\n\n```python\ny = x\n```\n"
    assert executed(page) == page.replace("4", "3")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and GitHub make them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", prose(page), re.M):
        words = re.sub(r"[^\w\s-]", "", title.replace("`", "").lower()).strip()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


def links(page: Path) -> Iterator[tuple[str, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        if anchor:
            assert anchor in anchors(target), f"{path} has no heading #{anchor}"


def is_in_source(parts: list[str]) -> bool:
    """Whether a module that cannot be imported for want of an extra is there, and defines the name."""
    for cut in range(len(parts), 1, -1):
        path = ROOT.joinpath("src", *parts[:cut])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            return all(re.search(rf"\b{name}\b", file.read_text()) for name in parts[cut:])
    return False


def resolves(dotted: str) -> bool:
    """Whether it is a module, or an attribute of one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except MissingExtra:
            return is_in_source(parts)
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_and_name_it_mentions_exists(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text())  # links have a test of their own
    mentioned = set(re.findall(r"(?<![/\w])randeigen(?:\.[A-Za-z_]\w*)+", text))
    mentioned = {name for name in mentioned if name not in FORMER or page.name != "CHANGELOG.md"}
    with skipped_without_extras():
        assert not [name for name in sorted(mentioned) if not resolves(name)]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "paper-map.md"], ids=name_of)
def test_every_file_it_mentions_exists(page: Path) -> None:
    pattern = r"`((?:src|tests|benchmarks|studies|examples|fuzz|results|docs)/[\w/.-]+\.\w+)`"
    for path in re.findall(pattern, page.read_text()):
        assert (ROOT / path).exists(), path


def test_the_map_of_the_paper_names_files_that_exist() -> None:
    lines = [line.split("|")[2:4] for line in (DOCS / "paper-map.md").read_text().splitlines() if "|" in line]
    for code, tests in lines[2:]:
        for path in re.findall(r"`([\w/-]+(?:\.py|\.json|/))`", code + tests):
            homes = (ROOT, ROOT / "src" / "randeigen", ROOT / "tests")
            assert any((home / path).exists() for home in homes), path


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_it_speaks_the_field_s_language(page: Path) -> None:
    """Byzantine rows, the Gram matrix, the top direction, assumed corruption; in generated tables as well."""
    written = re.sub(r"`[^`]*`", "", prose(page))  # without names
    assert not re.findall(r"\b(liars?|widest|slopes|feared|fears|vouch)\b", written, re.I)


def test_the_reference_shows_the_help_of_every_command() -> None:
    app = pytest.importorskip("randeigen.cli.app")
    page = (DOCS / "reference" / "command.md").read_text()
    assert sorted(re.findall(r"<!-- help (\w+) -->", page)) == sorted(app.COMMANDS)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    generated = {f"{path.stem.lower()}.md" for path in FRONT[1:]}
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | generated


def test_the_site_builds_strictly_and_has_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    pytest.importorskip("torch")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ids = {
        found
        for page in (tmp_path / "reference").glob("*.html")
        for found in re.findall(r'id="([\w.]+)"', page.read_text())
    }
    for module in ("randeigen", "randeigen.rules", "randeigen.torch", "randeigen.attacks", "randeigen.lab"):
        for name in importlib.import_module(module).__all__:
            homes = (module, f"{module}.{name}", "randeigen.errors", "randeigen.rules")
            forms = {f"{home}.{name}" for home in homes}
            former = module == "randeigen.torch" and name in ("table", "Product", "Lookup")
            assert forms & ids or former or f"{module}.{name}" == "randeigen.rules", f"{module}.{name}"


@pytest.mark.parametrize("setting", ["font: false", "strict: true"])
def test_the_site_loads_nothing_from_the_network(setting: str) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert setting in config
    assert "http" not in config
