"""Files behind URLs are rows like others: read by ranges, and what a store says of one is about that row."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import randeigen
from randeigen import BadRows, MissingExtra, TooManyCorrupt
from randeigen.rows import as_rows, write_answer, write_safetensors

fsspec = pytest.importorskip("fsspec")

from randeigen.rows.formats import remote  # noqa: E402

N, D = 6, 30_000


class Store:
    """Objects of fsspec's store in memory, and how they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = fsspec.filesystem("memory")
        self.fetched: list[int] = []  # bytes of each range
        self.together: list[int] = []  # ranges of each request for many
        self.whole = 0
        kind = type(self.files)
        cat_file, cat_ranges = kind.cat_file, kind.cat_ranges

        def counted(store: Any, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
            data: bytes = cat_file(store, path, start=start, end=end, **options)
            self.fetched.append(len(data))
            self.whole += start is None
            return data

        def at_once(store: Any, paths: Any, *ranges: Any, **options: Any) -> Any:
            self.together.append(len(paths))
            return cat_ranges(store, paths, *ranges, **options)

        monkeypatch.setattr(kind, "cat_file", counted)
        monkeypatch.setattr(kind, "cat_ranges", at_once)

    def put(self, path: str | Path, name: str) -> str:
        self.files.pipe_file(f"/round/{name}", Path(path).read_bytes())
        return f"memory://round/{name}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Store(monkeypatch)
    yield made
    made.files.store.clear()


def rows() -> Any:
    found = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    found[2] += 1
    return found


@pytest.fixture
def urls(store: Store, tmp_path: Path) -> list[str]:
    for i, row in enumerate(rows()):
        leaves = {"a": row[:100].reshape(10, 10), "steps": np.int64(i), "b": row[100:]}
        write_safetensors(tmp_path / f"{i}.safetensors", leaves)
    return [store.put(tmp_path / f"{i}.safetensors", f"{i}.safetensors") for i in range(N)]


def test_objects_give_the_verdict_and_the_answer_of_files(urls: list[str], tmp_path: Path) -> None:
    files = [str(tmp_path / f"{i}.safetensors") for i in range(N)]
    for those in (urls, [f"file://{path}" for path in files], [*urls[:3], *files[3:]]):
        expected = randeigen.aggregate(files, f=1, seed=3)
        result = randeigen.aggregate(those, f=1, seed=3)
        assert np.array_equal(result.weights, expected.weights)
        assert all(np.array_equal(result.mean[name], expected.mean[name]) for name in expected.mean)
        assert result.bias_bound == expected.bias_bound


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_every_format_is_read_behind_a_url(suffix: str, store: Store, tmp_path: Path) -> None:
    urls, files = [], []
    for i, row in enumerate(rows()):
        files.append(str(tmp_path / f"{i}{suffix}"))
        if suffix == ".npz" and i % 2:
            np.savez_compressed(files[-1], w=row)
        else:
            write_answer(files[-1], row if suffix == ".npy" else {"w": row})
        urls.append(store.put(files[-1], f"{i}{suffix}"))
    expected, result = (randeigen.aggregate(paths, f=1, seed=3) for paths in (files, urls))
    assert np.array_equal(result.weights, expected.weights)
    one, other = (each.mean if suffix == ".npy" else each.mean["w"] for each in (result, expected))
    assert np.array_equal(one, other)


def test_objects_are_never_read_whole_and_all_rows_are_fetched_together(store: Store, tmp_path: Path) -> None:
    d = 2**19  # 2 MB each
    urls = []
    for i in range(N):
        write_safetensors(tmp_path / "x.safetensors", {"w": np.full(d, i, np.float32)})
        urls.append(store.put(tmp_path / "x.safetensors", f"{i}.safetensors"))
    store.fetched.clear()
    read: Any = as_rows(urls, block_bytes=2**20)
    assert store.fetched == [remote.FIRST_BYTES] * N  # headers
    store.fetched.clear()
    for columns, block in read.blocks():
        assert (block == np.arange(N)[:, None]).all(), columns
    assert store.whole == 0
    assert set(store.together) == {N}
    assert len(store.together) == -(-d // (8 * (2**20 // (4 * N) // 1024 * 1024)))
    assert sum(store.fetched) <= 4 * d * N * 1.01
    assert max(store.fetched) < 2**21


def test_a_missing_object_is_an_unusable_row(urls: list[str], store: Store) -> None:
    store.files.rm("/round/4.safetensors")
    result = randeigen.aggregate(urls, f=1)
    assert list(result.unusable) == [4]
    assert result.unusable[4].endswith("round/4.safetensors cannot be opened: No such file or directory")
    assert result.weights[4] == 0
    with pytest.raises(TooManyCorrupt, match="No such file or directory"):
        randeigen.aggregate(urls, f=0)


def test_missing_files_beside_more_objects_than_files_may_be_open_are_unusable_rows(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("randeigen.rows.formats.io.MAX_OPEN_FILES", 3)
    missing = [str(tmp_path / f"missing{i}.safetensors") for i in range(2)]
    source = as_rows([*urls, *missing, str(tmp_path / "0.safetensors")])
    assert list(source.unusable) == [N, N + 1]
    assert all("cannot be opened" in source.unusable[row] for row in (N, N + 1))


def test_an_object_cut_off_or_of_another_kind_is_an_unusable_row(urls: list[str], store: Store) -> None:
    whole = store.files.cat_file("/round/1.safetensors")
    store.files.pipe_file("/round/1.safetensors", whole[:1000])
    store.files.pipe_file("/round/3.safetensors", b"")
    result = randeigen.aggregate(urls, f=2)
    assert list(result.unusable) == [1, 3]


def test_an_object_that_fails_on_the_way_is_an_unusable_row(
    urls: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(store.files)
    cat_file = kind.cat_file

    def failing(self: Any, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        if path.endswith("5.safetensors") and (start or 0) > 0:
            raise PermissionError("the token has expired")
        return cat_file(self, path, start=start, end=end, **options)

    monkeypatch.setattr(remote, "FIRST_BYTES", 512)
    monkeypatch.setattr(kind, "cat_file", failing)
    result = randeigen.aggregate(urls, f=1)
    assert "cannot be read at byte" in result.unusable[5]
    assert "the token has expired" in result.unusable[5]


@pytest.mark.parametrize("request_kind", ["info", "cat_file"])
def test_a_request_that_finds_no_descriptor_is_this_machines_trouble_and_no_fault_of_the_object(
    request_kind: str, urls: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = getattr(type(store.files), request_kind)

    def failing(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if not path.endswith("5.safetensors"):
            return asked(self, path, *args, **options)
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError as error:
            raise ConnectionError("cannot connect to the endpoint") from error

    monkeypatch.setattr(type(store.files), request_kind, failing)
    with pytest.raises(OSError, match="Too many open files"):
        randeigen.aggregate(urls, f=1)


def test_an_object_rewritten_between_two_readings_is_noticed(urls: list[str], store: Store) -> None:
    def rewrite(stage: str, done: int, total: int) -> None:
        if stage == "measuring":
            store.files.pipe_file("/round/0.safetensors", store.files.cat_file("/round/1.safetensors"))

    with pytest.raises(BadRows, match=r"rows \[0\] changed"):
        randeigen.aggregate(urls, f=1, progress=rewrite)


def test_workers_share_objects(urls: list[str], store: Store, tmp_path: Path) -> None:
    store.files.rm("/round/4.safetensors")
    out = tmp_path / "mean.safetensors"
    decision = sum(randeigen.partial(urls, (i, 2)) for i in range(2)).verdict(f=1)
    assert list(decision.unusable) == [4]
    for i in range(2):
        randeigen.spend(urls, decision, (i, 2), out=out)
    expected = randeigen.aggregate(urls, f=1, seed=decision.seed)
    write_answer(tmp_path / "alone.safetensors", expected.mean)
    assert out.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    store.files.pipe_file("/round/0.safetensors", store.files.cat_file("/round/1.safetensors"))
    with pytest.raises(BadRows, match=r"0\.safetensors is another file"):
        randeigen.spend(urls, decision, out=out, force=True)


def test_a_store_that_is_not_installed_or_not_known_is_named() -> None:
    paths = [f"gs://bucket/{i}.npy" for i in range(3)]
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtra, match="gcsfs"):
            randeigen.aggregate(paths, f=1)
    with pytest.raises(BadRows, match="cannot be opened: ValueError: Protocol not known: nowhere"):
        randeigen.aggregate([f"nowhere://bucket/{i}.npy" for i in range(3)], f=1)


def test_the_command_takes_urls_patterns_and_prefixes_and_confirms_its_audit(
    urls: list[str], store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("typer")
    from commands import cli, fails

    options = ["--f", 1, "--seed", 3, "--force", "--json"]
    out, audit = tmp_path / "mean.safetensors", tmp_path / "audit.json"
    answers = set()
    for words in (urls, ["memory://round/*.safetensors"], ["memory://round/"]):
        done = cli("aggregate", *words, *options, "--out", out, "--audit", audit)
        assert done.exit_code == 0, done.output
        answers.add(out.read_bytes())
        confirmed = cli("replay", audit)
        assert confirmed.exit_code == 0, confirmed.output
    assert len(answers) == 1
    assert "5.safetensors" in cli("aggregate", "memory://round/", *options[:-1], "--out", out, "--all").stdout
    store.files.rm("/round/1.safetensors")
    assert cli("replay", audit).exit_code == 1
    done = cli("aggregate", *urls, *options, "--out", out)
    assert "No such file" in done.stdout
    fails(
        2,
        "aggregate",
        "memory://none/",
        "--f",
        1,
        "--out",
        out,
        "--force",
        saying="cannot be listed|no objects",
    )
    fails(2, "aggregate", *urls, "--f", 1, "--out", "memory://x/mean.npz", saying="copy it to the store")
    mixed = [*urls, tmp_path / "1.safetensors"]
    words = ["--f", 1, "--out", out, "--force", "--audit", audit]
    fails(2, "aggregate", *mixed, *words, saying="the updates are in several stores")
