"""The answer of many workers appears whole or not at all, whatever becomes of one of them."""

from __future__ import annotations

import os
from functools import partial as with_options
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from randeigen import BadParameter, BadRows, SharedDecision, partial, spend
from randeigen.partials import inputs, spending
from randeigen.rows import as_rows, write_safetensors

K = 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "as_rows", with_options(as_rows, block_bytes=2**16))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    folder = tmp_path / "updates"
    folder.mkdir()
    rows = np.random.default_rng(0).standard_normal((6, 12_000)).astype(np.float32)
    paths = [str(folder / f"{i}.safetensors") for i in range(6)]
    for path, row in zip(paths, rows, strict=True):
        write_safetensors(path, {"w": row, "count": np.arange(3)})
    return paths


@pytest.fixture
def decision(paths: list[str]) -> SharedDecision:
    return sum(partial(paths, (i, K)) for i in range(K)).verdict(f=1)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "answers").mkdir()
    return tmp_path / "answers" / "mean.safetensors"


def spend_all(paths: list[str], decision: SharedDecision, out: Path, k: int = K) -> bytes:
    for i in range(k):
        spend(paths, decision, (i, k), out=out)
    return out.read_bytes()


def test_nothing_is_left_beside_the_answer(paths: list[str], decision: SharedDecision, out: Path) -> None:
    assert spend(paths, decision, (0, K), out=out).complete is None
    assert not out.exists()
    assert spend(paths, decision, (2, K), out=out).complete is None
    assert spend(paths, decision, (1, K), out=out).complete is not None
    assert os.listdir(out.parent) == ["mean.safetensors"]


def test_a_part_may_be_spent_again_and_parts_may_overlap(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    expected = spend_all(paths, decision, out)
    other = out.with_name("other.safetensors")
    for part in ((0, 3), (0, 3), (1, 2), (1, 3)):
        spend(paths, decision, part, out=other)
    assert other.read_bytes() == expected
    assert sorted(os.listdir(out.parent)) == ["mean.safetensors", "other.safetensors"]


def test_a_part_that_comes_again_after_the_last_changes_nothing(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    """As engines do that retry tasks, or run the slow ones twice; and parts of no columns may come last."""
    expected = spend_all(paths, decision, out)
    assert spend(paths, decision, (1, K), out=out) == spend(paths, decision, (1, K), out=out)
    assert spend(paths, decision, (0, 10_000), out=out).complete is None
    assert out.read_bytes() == expected
    assert os.listdir(out.parent) == ["mean.safetensors"]
    other = sum(partial(paths, (i, 2)) for i in range(2)).verdict(f=2)
    with pytest.raises(BadParameter, match="exists; give another name, or force=True"):
        spend(paths, other, (1, K), out=out)
    out.write_bytes(expected[:-1])
    with pytest.raises(BadParameter, match="exists; give another name, or force=True"):
        spend(paths, decision, (0, K), out=out)


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link"])
def test_a_name_that_is_taken_by_something_else_is_refused_at_once(
    kind: str, paths: list[str], decision: SharedDecision, out: Path
) -> None:
    if kind == "folder":
        out.mkdir()
    elif kind == "fifo":
        os.mkfifo(out)
    else:
        out.symlink_to("nowhere")
    with pytest.raises(BadParameter, match="exists; give another name, or force=True"):
        spend(paths, decision, out=out)
    assert os.listdir(out.parent) == ["mean.safetensors"]


def test_a_worker_that_is_interrupted_is_run_again(
    paths: list[str], decision: SharedDecision, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = spend_all(paths, decision, out)
    out.unlink()

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    spend(paths, decision, (0, 2), out=out)
    with pytest.raises(KeyboardInterrupt):
        spend(paths, decision, (1, 2), out=out, progress=stop)
    assert not out.exists()
    spend(paths, decision, (1, 2), out=out)
    assert out.read_bytes() == expected
    with pytest.raises(KeyboardInterrupt):
        spend(paths, decision, out=out, force=True, progress=stop)
    assert out.read_bytes() == expected
    assert os.listdir(out.parent) == ["mean.safetensors"]  # who is alone cleans up after itself


def test_two_decisions_do_not_meet_in_one_draft(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    other = sum(partial(paths, (i, 2)) for i in range(2)).verdict(f=2)
    spend(paths, other, (0, 2), out=out)
    assert spend(paths, decision, (1, 2), out=out).complete is None
    assert not out.exists()


def test_files_that_were_not_judged_are_refused(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    with pytest.raises(BadRows, match=r"not the files that were judged: .*0\.safetensors is another file"):
        spend(paths[::-1], decision, out=out)
    with pytest.raises(BadRows, match="one is of 6 files, another of 5"):
        spend(paths[1:], decision, out=out)
    os.utime(paths[2])
    with pytest.raises(BadRows, match=r"2\.safetensors is another file, or was written between"):
        spend(paths, decision, out=out)
    os.unlink(paths[2])
    with pytest.raises(BadRows, match="row 2 was judged and cannot be used now"):
        spend(paths, decision, out=out)
    assert os.listdir(out.parent) == []


def test_a_file_rewritten_while_it_is_averaged_is_refused(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    def rewrite(stage: str, done: int, total: int) -> None:
        os.utime(paths[4])

    with pytest.raises(BadRows, match=r"rows \[4\] changed while they were read"):
        spend(paths, decision, out=out, progress=rewrite)
    assert os.listdir(out.parent) == []


def test_a_file_rewritten_while_it_is_measured_is_refused(paths: list[str]) -> None:
    def rewrite(stage: str, done: int, total: int) -> None:
        os.utime(paths[4])

    with pytest.raises(BadRows, match=r"rows \[4\] changed while they were read; measure them again"):
        partial(paths, (0, 2), progress=rewrite)


def test_a_draft_that_somebody_removed_is_noticed(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    def remove(stage: str, done: int, total: int) -> None:
        for name in os.listdir(out.parent):
            os.unlink(out.parent / name)

    with pytest.raises(BadRows, match="was removed while it was written"):
        spend(paths, decision, (0, 2), out=out, progress=remove)


def test_notes_of_a_draft_that_is_gone_do_not_count(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    expected = spend_all(paths, decision, out)
    out.unlink()
    spend(paths, decision, (0, 2), out=out)
    (draft,) = out.parent.glob("*.draft")
    draft.unlink()
    assert spend(paths, decision, (1, 2), out=out).complete is None
    assert not out.exists()
    spend(paths, decision, (0, 2), out=out)
    assert out.read_bytes() == expected


def test_a_part_that_two_workers_write_at_once_is_no_error(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    spend(paths, decision, (0, 2), out=out)
    others = []

    def as_well(stage: str, done: int, total: int) -> None:
        if not others:
            others.append(None)
            others.append(spend(paths, decision, (1, 2), out=out))

    assert spend(paths, decision, (1, 2), out=out, progress=as_well).complete is None
    assert others[1].complete is not None  # type: ignore[attr-defined]
    assert os.listdir(out.parent) == ["mean.safetensors"]


@pytest.mark.parametrize(
    ("name", "saying"),
    [
        ("mean.npz", "cannot be written by several workers; give .safetensors"),
        ("mean.npy", "holds one array, the files hold 2; give .safetensors"),
        ("mean", "cannot be written"),
    ],
)
def test_formats_that_workers_cannot_share_are_refused(
    name: str, saying: str, paths: list[str], decision: SharedDecision, out: Path
) -> None:
    with pytest.raises(BadParameter, match=saying):
        spend(paths, decision, (0, 2), out=out.with_name(name))
    assert os.listdir(out.parent) == []


def test_an_answer_that_exists_is_kept_unless_it_may_be_replaced(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    out.write_bytes(b"mine")
    with pytest.raises(BadParameter, match="exists; give another name, or force=True"):
        spend(paths, decision, out=out)
    assert out.read_bytes() == b"mine"
    spend(paths, decision, out=out, force=True)
    assert out.read_bytes() != b"mine"


def test_an_answer_that_cannot_be_there_is_refused(
    paths: list[str], decision: SharedDecision, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=r"there is no folder .*/none for mean\.npy; make it first"):
        spend(paths, decision, out=tmp_path / "none" / "mean.npy")
    with pytest.raises(BadParameter, match=r"is a URL; .* give a path that all can reach"):
        spend(paths, decision, out="s3://bucket/mean.npy")
    with pytest.raises(BadParameter, match="is row 2, which other workers read; give another name"):
        spend(paths, decision, out=paths[2], force=True)


def test_a_disk_that_is_full_is_reported_by_name(
    paths: list[str], decision: SharedDecision, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device; nothing was written: '.*mean\.safetensors'"):
        spend(paths, decision, out=out)
    assert os.listdir(out.parent) == []


def test_two_workers_that_end_together_both_find_the_answer(
    paths: list[str], decision: SharedDecision, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second renames what the first has renamed already."""
    spend(paths, decision, (0, 2), out=out)
    replace = os.replace

    def twice(source: Any, target: Any) -> None:
        replace(source, target)
        if str(target) == str(out):
            replace(source, target)

    monkeypatch.setattr(os, "replace", twice)
    assert spend(paths, decision, (1, 2), out=out).complete is not None
    assert out.exists()


def test_spending_is_measured_in_the_columns_of_the_part(
    paths: list[str], decision: SharedDecision, out: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    spent = spending.spend(paths, decision, (1, 2), out=out, progress=lambda *step: seen.append(step))
    width = spent.columns.stop - spent.columns.start
    assert seen[-1] == ("averaging", width, width)
    assert 0 < seen[0][1] < width


@pytest.mark.parametrize("decision", [None, {}, "decision.json"])
def test_what_is_no_decision_is_refused(paths: list[str], tmp_path: Path, decision: Any) -> None:
    with pytest.raises(BadParameter, match=r"decision is a \w+; give what Partial.verdict\(\) returned"):
        spend(paths, decision, out=tmp_path / "mean.npy")
    assert not (tmp_path / "mean.npy").exists()
