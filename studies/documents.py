"""Documents whose tables come from records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from randeigen.errors import BadFile
from randeigen.rows.write import replacing


def redraw(path: Path, parts: Mapping[str, str]) -> None:
    """Put these into a document, whole or not at all."""
    text = redrawn(path.read_text(), parts)
    with replacing(path) as file:
        file.write(text.encode())


def redrawn(text: str, parts: Mapping[str, str]) -> str:
    """The document with what is between `<!-- name -->` and `<!-- end -->` replaced."""
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = marked.subn(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise BadFile(f"the document has {count} places marked <!-- {name} -->; one is needed.")
    return text
