"""The examples in the docstrings of public names run and show what they say."""

from __future__ import annotations

import doctest

import pytest

pytest.importorskip("torch")

import randeigen.torch

OLD_NAMES = {"Lookup", "Product", "table"}
WITHOUT_EXAMPLE = {"Suspect", "install"}  # a line of `Suspects.report()`; shown with `uninstall`


@pytest.mark.parametrize("name", sorted(set(randeigen.torch.__all__) - OLD_NAMES - WITHOUT_EXAMPLE))
def test_the_example_runs(name: str) -> None:
    value = getattr(randeigen.torch, name)
    tests = [
        test for test in doctest.DocTestFinder(recurse=False).find(value, name, globs={}) if test.examples
    ]
    assert len(tests) == 1, f"{name} has no example"
    assert doctest.DocTestRunner().run(tests[0]).failed == 0
