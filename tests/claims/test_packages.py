"""The wheel carries the package and nothing else, works with numpy alone; the sdist carries the project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = ("src", "tests", "studies", "examples", "benchmarks", "fuzz", "docs", "results")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "Makefile", "constraints.txt")
COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def built(kind: str, folder: Path, loops: bool = False) -> Path:
    """The wheel or the sdist of this project, built in a copy of it without asking the network."""
    source, into = folder / "source", folder / "dist"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    for name in CHECKOUT:
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(into)!r})"
    into.mkdir()
    environment = {**os.environ, "RANDEIGEN_NATIVE": "1" if loops else "0"}
    words = [sys.executable, "-c", code]
    made = subprocess.run(words, cwd=source, env=environment, capture_output=True, text=True)
    if "No module named 'setuptools'" in made.stderr:
        pytest.skip("setuptools is not installed")
    assert made.returncode == 0, made.stderr
    (path,) = into.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def numpy_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and numpy, and nothing else that Python does not bring."""
    import numpy

    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    home = Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (home / name).exists():
            (folder / name).symlink_to(home / name)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with this folder and its own library alone; it is run elsewhere than in a checkout."""
    return subprocess.run(
        [sys.executable, "-S", "-P" if sys.version_info >= (3, 11) else "-s", *words],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_wheel_is_the_whole_package_and_no_workshop(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "randeigen"
    expected = {
        f"randeigen/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert {"randeigen/py.typed", "randeigen/backend/native/kernels.c"} <= expected
    assert packed == expected
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="there is no C compiler here")
def test_where_there_is_a_compiler_a_wheel_has_the_loops_of_this_machine(tmp_path: Path) -> None:
    compiled = built("wheel", tmp_path, loops=True)
    (library,) = (name for name in zipfile.ZipFile(compiled).namelist() if name.endswith(".so"))
    assert library.startswith("randeigen/backend/native/_kernels.")


def test_with_a_compiler_that_fails_the_package_is_built_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    names = zipfile.ZipFile(built("wheel", tmp_path, loops=True)).namelist()
    assert not [name for name in names if name.endswith(".so")]


def test_no_module_of_the_package_needs_the_checkout() -> None:
    for path in (ROOT / "src" / "randeigen").rglob("*.py"):
        assert not re.search(
            r"^\s*(from|import) (studies|examples|benchmarks|fuzz)\b", path.read_text(), re.M
        )
        # One function names the commit where there is a checkout, and "unknown" where there is none.
        assert "rev-parse" not in path.read_text() or path.name == "provenance.py"


def test_with_numpy_alone_the_code_of_the_readme_runs(numpy_alone: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    first = next(iter(re.findall(r"```python\n(.*?)```", readme, re.S)))
    shown = run(numpy_alone, "-c", first)
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == first.count("print(")


def test_with_numpy_alone_files_are_averaged(numpy_alone: Path) -> None:
    code = """
import sys, tempfile, numpy as np, randeigen, pathlib
home = pathlib.Path(tempfile.mkdtemp())
for i in range(10):
    np.save(home / f"{i}.npy", np.random.default_rng(i).standard_normal(50) + (100 if i == 3 else 0))
result = randeigen.aggregate(sorted(home.glob("*.npy")), eps=0.1)
assert result.weights[3] == 0 and np.abs(result.mean).max() < 2 and result.bias_bound < 10
assert not {"torch", "typer", "rich", "matplotlib", "sklearn", "scipy"} & set(sys.modules)
assert "site-packages" not in randeigen.__file__
"""
    shown = run(numpy_alone, "-c", code)
    assert shown.returncode == 0, shown.stderr


def test_with_numpy_alone_the_command_says_what_it_needs(numpy_alone: Path) -> None:
    shown = run(numpy_alone, "-m", "randeigen", "--help")
    assert shown.returncode == 3
    assert shown.stderr == "The randeigen command needs typer and rich: pip install 'randeigen[cli]'\n"
    assert shown.stdout == ""


def test_the_sdist_is_the_whole_project(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {
        path.relative_to(ROOT).as_posix()
        for name in CHECKOUT
        for path in (ROOT / name).rglob("*")
        if path.is_file() and not {"__pycache__"} & set(path.parts) and ".egg-info" not in str(path)
        if path.suffix != ".so"
    }
    assert tracked - packed == set()
    assert {"README.md", "LICENSE", "Makefile", "pyproject.toml", "setup.py"} <= packed
    assert not [name for name in packed if name.endswith(".so")]
