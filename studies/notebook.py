"""Pages in the manner of a notebook: every block runs, one after the other, and its output stands under it.

    python -m studies.notebook docs/tutorial.md    # runs the page's code and writes what it put out

A block that starts with ```` ```python ```` is run; what it prints, and the value of a last line that is an
expression, become the ```` ```text ```` block after it. A test fails where a page and its outputs differ.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import types
from pathlib import Path

from randeigen.rows.write import replacing

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.S | re.M)


def executed(text: str) -> str:
    """The page with the outputs that its blocks have here and now."""
    module = types.ModuleType("notebook")
    sys.modules["notebook"] = module  # dataclasses look their module up
    try:
        return BLOCK.sub(lambda match: _with_output(match[1], module), text)
    finally:
        del sys.modules["notebook"]


def _with_output(code: str, module: types.ModuleType) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        _run(code, module)
    printed = output.getvalue().rstrip("\n")
    return f"```python\n{code}```\n" + (f"\n```text\n{printed}\n```\n" if printed else "")


def _run(code: str, module: types.ModuleType) -> None:
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "notebook", "exec", dont_inherit=True), module.__dict__)
    if isinstance(last, ast.Expr):
        expression = compile(ast.Expression(last.value), "notebook", "eval", dont_inherit=True)
        value = eval(expression, module.__dict__)
        if value is not None:
            print(repr(value))


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        text = executed(path.read_text())
        with replacing(path) as file:
            file.write(text.encode())
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
