"""`randeigen replay`: judge the same files again, and compare with the recorded verdict."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import randeigen
from randeigen.cli.aggregate_files import aggregate_files, write
from randeigen.cli.audit import Digest, Fingerprints, Outcome, digest, file_outcomes, record
from randeigen.cli.audit_comparison import (
    Difference,
    apart,
    changed,
    difference,
    edits,
    fingerprint,
    verdicts,
)
from randeigen.cli.audit_reading import Audit, load
from randeigen.cli.console import DIFFERS, UsageError, count, exit_on_error, print_line, progress_bar
from randeigen.errors import TooManyCorrupt
from randeigen.registry import build_rule, rule_in
from randeigen.rows.file_rows import suffix_of
from randeigen.rows.formats.io import is_url
from randeigen.rows.write import WRITTEN_SUFFIXES
from randeigen.types import Progress

MAX_DIFFERENCES_SHOWN = 8  # of one kind, without --json


def replay(
    audit: Annotated[str, typer.Argument(metavar="AUDIT", help="What `randeigen aggregate --audit` wrote.")],
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder the files are in now, if they moved.")
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(metavar="FILE.py", help="Run the recorded rule from this file, if it is one of a file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of sentences.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; see the exit code.")] = False,
) -> None:
    """Recompute a recorded verdict from the same files, and confirm it or say what differs.

    Checks the digest of every file, judges them again with the recorded rule and seed, and compares all that
    the audit says: weights, outcomes, reasons, rule, certificate, stop, notes and answer. Only the time and
    the versions are taken as they are. Nothing is written. A rule of a file, mine.py:Best, is run only from
    the file that --code names, and only if that has the recorded content.

    \b
    Examples:
      randeigen replay audit.json
      randeigen replay audit.json --data /archive/round-7
      randeigen replay audit.json --json | jq .differences

    \b
    Exit codes:
      0 confirmed, 1 something differs, 2 a mistake in the call or not an audit, 130 interrupted
    """
    with exit_on_error():
        recorded = load(audit)
        if data is not None and not os.path.isdir(data):
            raise UsageError(f"--data {data} is not a folder.")
        with progress_bar(quiet) as progress:
            differences = _differences(recorded, audit, data, code, progress)
    if as_json:
        report = {"audit": audit, "confirmed": not differences, "differences": differences}
        print(json.dumps(report, allow_nan=False, indent=1))
    elif not quiet:
        _print_differences(recorded, _folder(recorded, audit, data), differences)
    if differences:
        raise typer.Exit(DIFFERS)


def _folder(recorded: Audit, audit: str, data: str | None) -> str:
    """Where the files are looked for."""
    if data is not None or is_url(recorded.folder):
        return data or recorded.folder
    return os.path.join(os.path.dirname(os.path.abspath(audit)), recorded.folder)


def _print_differences(recorded: Audit, folder: str, differences: Sequence[dict[str, Any]]) -> None:
    if not differences:
        same = "the same verdict, the same certificate and the same answer"
        how = f"rule {recorded.call.rule}, seed {recorded.call.seed}"
        print_line(f"Confirmed: the same {count(len(recorded.files), 'file')}, {same} ({how}).")
        return
    for what in dict.fromkeys(each["what"] for each in differences):
        alike = [each["told"] for each in differences if each["what"] == what]
        for sentence in alike[:MAX_DIFFERENCES_SHOWN]:
            print_line(f"DIFFERS  {sentence}")
        if (hidden := len(alike) - MAX_DIFFERENCES_SHOWN) > 0:
            print_line(f"         and {hidden:,} more of this kind; --json shows all")
    print_line(f"Not confirmed: {count(len(differences), 'difference')}.")
    paths = [os.path.join(folder, file) for file in recorded.files]
    if not is_url(folder) and not any(map(os.path.lexists, paths)):
        where = os.path.normpath(folder)
        print_line(f"None of the files is in {where}. If they moved, say where they are now: --data FOLDER")
    if recorded.version != randeigen.__version__:
        print_line(f"The audit was written by randeigen {recorded.version}, this is {randeigen.__version__}.")


def _differences(
    recorded: Audit, audit: str, data: str | None, code: str | None, progress: Progress | None
) -> list[Difference]:
    """Everything that is not as the audit says, files first."""
    home = os.path.dirname(os.path.abspath(audit))
    paths = [os.path.join(_folder(recorded, audit, data), file) for file in recorded.files]
    out = os.path.join(home, recorded.output)
    if suffix_of(out) not in WRITTEN_SUFFIXES:
        names = f"the audit names the output file {recorded.output}"
        raise UsageError(f"{names}, which is in no format we know (output.file).")
    rule = build_rule(rule_in(recorded.call.rule, code), recorded.call.eps, recorded.call.f)
    prints = Fingerprints(paths, progress)
    # What was read then is read again, though a file that is not judged is not read if it is large.
    sizes = {row: each.size or 0 for row, each in enumerate(recorded.digests) if each.sha256}
    differences = list(edits(recorded))
    try:
        judged = aggregate_files(paths, rule, recorded.call, out, progress, prints.visit)
    except TooManyCorrupt as error:
        unjudged = difference("verdict", "verdict", f"the files can no longer be judged: {error}")
        return [*changed(recorded, prints.all(sizes)), *differences, unjudged]
    digests = prints.all(sizes)
    with tempfile.TemporaryDirectory() as scratch:
        again = os.path.join(scratch, "answer" + suffix_of(out))
        write(again, judged.result, judged.dtypes)
        outcome = Outcome(
            digests, file_outcomes(judged.result, counts=recorded.call.counts), judged, digest(again)
        )
        recomputed = record(recorded.call, rule, paths, outcome, out, audit)
        # Names are as recorded: they decided which files were read, and are under the seal.
        for each, file in zip(recomputed["files"], recorded.files, strict=True):
            each["file"] = file
        differences += verdicts(recorded, json.loads(json.dumps(recomputed)))
        kept = [path for path, weight in zip(paths, judged.result.weights, strict=True) if weight > 0]
        differences += _answer(recorded, out, again, outcome.answer, kept)
    return [*changed(recorded, digests), *differences]


def _answer(
    recorded: Audit, out: str, again: str, recomputed: Digest, kept: Sequence[str]
) -> list[Difference]:
    """Compare the recomputed answer with the recorded one: by bytes or, as machines round, by values."""
    stored = digest(out)
    both = {"recorded": recorded.output_sha256, "found": stored.sha256, "recomputed": recomputed.sha256}
    size = stored.size if stored.sha256 is not None else recomputed.size
    if stored.sha256 is not None and stored.sha256 != recorded.output_sha256:
        sentence = f"the output {recorded.output} is not the file recorded: {fingerprint(stored)} now, "
        sentence += f"SHA-256 {recorded.output_sha256[:12]}… then"
        return [difference("output", "output.sha256", sentence, **both)]
    if recorded.content["output"]["bytes"] != size:
        sentence = f"the output {recorded.output} has {size} bytes, "
        sentence += f"recorded {recorded.content['output']['bytes']!r:.60}"
        return [difference("output", "output.bytes", sentence, **both)]
    if recomputed.sha256 == recorded.output_sha256:
        return []
    if stored.sha256 is None:
        sentence = f"the answer made again has another SHA-256 than recorded, and {recorded.output} "
        sentence += f"{stored.unread}, so its values could not be compared"
        return [difference("output", "output.sha256", sentence, **both)]
    if how := apart(out, again, kept):
        sentence = f"the output {recorded.output} {how}"
        return [difference("output", "output.sha256", sentence, **both)]
    return []
