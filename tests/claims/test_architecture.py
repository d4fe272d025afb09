"""The house stands as drawn: imports run one way, the core needs numpy alone, no file outgrows a reader."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "src" / "randeigen"
FILES = sorted(HOUSE.rglob("*.py"))

# Low to high. A module may import from lower floors and from its own room, never from a room beside it.
FLOORS = (
    {"showing"},
    {"errors", "types"},
    {"own_code"},
    {"backend"},
    {"rows", "geometry"},
    {"combine"},
    {"certificate", "part_certificate", "partition", "column_combiners"},
    {"prior_weights"},
    {"source", "rules"},
    {"pipeline"},
    {"parts"},
    {"registry"},
    {"advice"},
    {"api"},
    {"inspection", "partials"},
    {"__init__"},  # it re-exports what is below it
    {"attacks", "distributed", "pages", "principal_plane", "provenance", "timed_rows", "torch"},
    {"bridges"},
    {"flower", "nvflare"},
    {"plotting", "timing"},
    {"lab"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
CORE = [room for rooms in FLOORS[: FLOOR["__init__"]] for room in sorted(rooms)]

LONGEST = 300
MAY_BE_LONGER: dict[str, int] = {}  # path under src/randeigen: lines, with a reason beside it

PUBLIC = {
    *("aggregate", "certify", "RandEigen", "Aggregate", "Verdict", "rules"),
    *("RandEigenError", "BadFraction", "BadRows", "TooManyCorrupt", "MissingExtra"),
}


def name_of(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(tree: ast.AST, *, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run; those inside functions only if `lazy`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif type_checking(node):
            for other in node.orelse:  # type: ignore[attr-defined]
                yield from imports(ast.Module([other], []), lazy=lazy)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, lazy=lazy)


def rooms_imported(path: Path, *, lazy: bool = False, source: str | None = None) -> set[str]:
    """Rooms of randeigen that a file imports, its own included."""
    package = ("randeigen", *path.relative_to(HOUSE).parts[:-1])
    rooms = set()
    for node in imports(ast.parse(path.read_text() if source is None else source), lazy=lazy):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            base = list(package[: len(package) + 1 - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [[*base, alias.name] for alias in node.names]
        rooms |= {room_named(parts) for parts in targets if parts[0] == "randeigen"}
    return rooms


def room_named(parts: list[str]) -> str:
    """`from randeigen import rules` is the room; `from randeigen import aggregate` is the front door."""
    room = parts[1] if len(parts) > 1 else "__init__"
    is_room = (HOUSE / room).is_dir() or (HOUSE / f"{room}.py").is_file()
    return room if is_room or len(parts) > 2 else "__init__"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def third_party(code: str) -> set[str]:
    """What is in sys.modules after `code` that neither Python nor this package brought."""
    loaded = run(f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))")
    tops = {module.split(".")[0] for module in loaded.split()}
    cython = {top for top in tops if top == "cython_runtime" or top.startswith("_cython_")}  # numpy's own
    return tops - cython - {"randeigen"} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in FLOOR, f"{name_of(path)}: add {room!r} to FLOORS in {Path(__file__).name}"
    reached = rooms_imported(path) - {room}
    assert reached <= FLOOR.keys(), (
        f"{name_of(path)} imports rooms missing from FLOORS: {reached - FLOOR.keys()}"
    )
    uphill = {other for other in reached if FLOOR[other] >= FLOOR[room]}
    assert not uphill, f"{name_of(path)} imports {sorted(uphill)}, which lies beside or above it"


def module_of(path: Path) -> str:
    return ".".join(("randeigen", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(".__init__")


def modules_imported(path: Path, modules: set[str]) -> set[str]:
    """Modules of the package that a file imports when it is imported."""
    targets = set()
    for node in imports(ast.parse(path.read_text()), lazy=False):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        else:
            assert not node.level, f"{name_of(path)}: imports within the package name it in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= {name if name in modules else str(node.module) for name in names}
    return (targets & modules) - {module_of(path)}


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {module_of(path) for path in FILES}
    TopologicalSorter({module_of(path): modules_imported(path, modules) for path in FILES}).prepare()


@pytest.mark.parametrize("path", sorted(HOUSE.glob("rules/**/*.py")), ids=name_of)
def test_a_rule_never_sees_rows(path: Path) -> None:
    reached = rooms_imported(path, lazy=True)
    allowed = {
        "rules",
        "types",
        "errors",
        "showing",
        "backend",
        "certificate",
        "part_certificate",
        "pipeline",
    }
    assert reached <= allowed, f"{name_of(path)} can reach rows, or measure them: {reached - allowed}"
    if name_of(path) != "rules/base.py":
        assert "pipeline" not in reached, f"{name_of(path)}: only rules/base.py knows how a rule is run"


# What a rule, rows, a geometry or a source can do is declared by its type, and never looked up.
DECLARED = {"rule", "rows", "source", "geometry", "pre", "mixer", "stage", "combiner", "decision", "verdict"}


def looked_up(source: str) -> list[str]:
    """Calls of getattr or hasattr on something whose type declares what it has."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and ast.unparse(node.args[0]).removeprefix("self.").strip("_") in DECLARED
        # A caller may pass anything as rows: whether it is an array is asked before it is rows.
        and ast.unparse(node.args[1]) not in ("'__array__'", "'__iter__'")
    ]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_a_rule_can_do_is_declared_not_looked_up(path: Path) -> None:
    assert not looked_up(path.read_text())


def test_the_reader_of_look_ups_can_read() -> None:
    assert looked_up('getattr(rule, "merge", None)') == ["getattr(rule, 'merge', None)"]
    assert looked_up('x = hasattr(self.rule, "chunk") or hasattr(self._rows, "changed")') != []
    assert looked_up('getattr(torch, "float32"); hasattr(rows, "__array__"); rule.chunk') == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from randeigen.rules import base", {"rules"}),
        ("from .base import Rule", {"rules"}),
        ("from ..errors import BadRows", {"errors"}),
        ("from .. import errors", {"errors"}),
        ("import randeigen.errors as e, numpy", {"errors"}),
        ("from randeigen import Whatever", {"__init__"}),
        ("try:\n    import randeigen.types\nexcept ImportError: ...", {"types"}),
        ("class A:\n    import randeigen.types", {"types"}),
        ("if TYPE_CHECKING:\n    import randeigen.types", set()),
        ("if TYPE_CHECKING:\n    ...\nelse:\n    import randeigen.types", {"types"}),
        ("def f():\n    import randeigen.types", set()),
        ("import numpy\nfrom os import path", set()),
    ],
)
def test_the_reader_of_imports_can_read(source: str, expected: set[str]) -> None:
    assert rooms_imported(HOUSE / "rules" / "some.py", source=source) == expected


def test_importing_randeigen_imports_numpy_only() -> None:
    assert third_party("import randeigen") <= {"numpy"}


def test_the_core_needs_numpy_alone() -> None:
    core = [path for path in FILES if room_of(path) in CORE]
    assert {room_of(path) for path in core} == set(CORE), "a room of the core is missing"
    modules = [module_of(path) for path in core]
    assert third_party(f"import importlib\nfor m in {modules}: importlib.import_module(m)") <= {"numpy"}


def test_data_needs_numpy_alone() -> None:
    assert third_party("import randeigen.lab.datasets") <= {"numpy"}


def test_all_is_exactly_what_is_public() -> None:
    house = importlib.import_module("randeigen")
    listed = set(house.__all__)
    assert len(listed) == len(house.__all__), "a name is listed twice"
    assert listed >= PUBLIC, f"missing from __all__: {sorted(PUBLIC - listed)}"
    for name in listed:
        assert getattr(house, name) is not None
    public = {
        name
        for name, value in vars(house).items()
        if not name.startswith("_") and name != "annotations" and not isinstance(value, types.ModuleType)
    }
    assert public <= listed, f"public but not in __all__: {sorted(public - listed)}"


def test_every_public_name_comes_with_a_star_import() -> None:
    found = run("from randeigen import *; print(*dir())").split()
    assert set(found) >= PUBLIC


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert importlib.import_module("randeigen").__version__ == version("randeigen")


# A name says what a thing is in the field's words: `gram`, `norms`, `index`, `record`. None of these does.
NO_NAMES = {"found", "told", "drawn", "shown", "made", "asked", "wanted", "ended", "seen", "moved"}
NO_NAMES |= {"table", "slopes", "place", "places", "reach", "wild", "liars"}
KEPT_NAMES = {  # file formats and public names that stay, and tables that are tables
    "lab/results.py": {"made", "told", "liars"},
    "lab/federated.py": {"liars"},
    "lab/sweep.py": {"made"},
    "lab/paper/training.py": {"made"},
    "lab/paper/other_studies.py": {"made"},
    "cli/experiment_runs.py": {"made"},
    "types.py": {"wild"},
    "torch/__init__.py": {"table"},
    "torch/suspects.py": {"table"},
}
WITH_TABLES = ("pages.py", "bridges/report_page.py", "cli/", "lab/", "backend/cuda/tables.py")


def names_given(tree: ast.AST) -> Iterator[str]:
    """Names of variables, parameters, fields, functions, classes and keyword arguments."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.arg or ""
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.rpartition(".")[2]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_names_are_those_of_things(path: Path) -> None:
    file = name_of(path)
    kept = KEPT_NAMES.get(file, set()) | ({"table"} if file.startswith(WITH_TABLES) else set())
    given = {name.strip("_").lower() for name in names_given(ast.parse(path.read_text()))}
    assert not given & NO_NAMES - kept


def test_the_reader_of_names_can_read() -> None:
    code = "def f(a, *, b=1): c = d.e = g(h=2)\nfrom i import j as k\nclass L:\n    m: int"
    assert set(names_given(ast.parse(code))) == {"f", "a", "b", "c", "e", "h", "k", "L", "m"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_outgrows_a_reader(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    limit = MAY_BE_LONGER.get(name_of(path), LONGEST)
    assert lines <= limit, f"{name_of(path)} has {lines} lines; {limit} is the limit"
