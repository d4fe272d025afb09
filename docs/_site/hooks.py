"""What the site has beyond docs/: files of the repository's root as pages, and the command's own help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add each of PAGES, with the links that start in docs/ made relative to it."""
    for page, source in PAGES.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        for other, name in PAGES.items():
            text = text.replace(f"]({name}", f"]({other}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace `<!-- help NAME -->` by what `randeigen NAME --help` prints; link to PAGES as pages."""
    for page, source in PAGES.items():
        markdown = re.sub(rf"\]\(\.\./((?:\.\./)*){re.escape(source)}", rf"](\1{page}", markdown)
    return re.sub(r"<!-- help (\w+) -->", lambda found: f"```text\n{help_of(found[1])}\n```", markdown)


def help_of(command: str) -> str:
    """The help of one subcommand of this checkout, 96 columns wide."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "96", "NO_COLOR": "1"}
    call = [sys.executable, "-m", "randeigen", command, "--help"]
    return subprocess.run(call, env=env, check=True, capture_output=True, text=True).stdout.strip()
