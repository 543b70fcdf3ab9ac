from __future__ import annotations

import json
import stat
import time

import pytest

from twostroke.engine.limits import EngineLimits
from twostroke.engine.prefix_files import PrefixFiles
from twostroke.engine.prefix_store import PrefixStore
from twostroke.engine.token_bytes import token_bytes
from twostroke.errors import ConfigError, EngineError


def ids(*tokens: int) -> bytes:
    return token_bytes(tokens)


@pytest.fixture(params=["memory", "files"])
def open_store(request, tmp_path):
    opened = []

    def make(max_bytes: int = 100, key: str = "model") -> PrefixStore:
        files = PrefixFiles(tmp_path / "store", key) if request.param == "files" else None
        opened.append(PrefixStore(max_bytes, files))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def found(store: PrefixStore, scope: str, *tokens: int):
    entry, num_tokens = store.longest(scope, ids(*tokens))
    return None if entry is None else (store.read(entry), num_tokens)


def test_the_longest_prefix_of_a_scope_is_found(open_store):
    store = open_store()
    store.put("a", ids(1, 2, 3), b"short")
    store.put("a", ids(1, 2, 4, 5), b"long")
    store.put("b", ids(1, 2, 4, 5, 6), b"other")
    assert found(store, "a", 1, 2, 4, 5, 6) == (b"long", 4)
    assert found(store, "a", 1, 2, 3, 9) == (b"short", 3)
    assert found(store, "c", 1, 2) is None
    assert store.num_bytes == 14


def test_the_least_recently_used_go_first(open_store):
    store = open_store(max_bytes=10)
    store.put("", ids(1), b"aaaa")
    store.put("", ids(2), b"bbbb")
    assert found(store, "", 1) == (b"aaaa", 1)
    store.put("", ids(3), b"cccc")
    assert found(store, "", 2) is None
    assert found(store, "", 1) == (b"aaaa", 1)
    store.put("", ids(4), b"x" * 11)  # more than fits at all
    assert found(store, "", 4) is None
    assert store.num_bytes == 8


def test_what_another_entry_begins_with_is_not_kept_twice(open_store):
    store = open_store()
    store.put("", ids(1, 2), b"ab")
    store.put("", ids(1, 2, 3), b"abc")
    assert store.num_bytes == 3
    store.put(
        "",
        ids(
            1,
        ),
        b"a",
    )
    assert store.num_bytes == 3
    store.put(
        "other",
        ids(
            1,
        ),
        b"a",
    )
    assert store.num_bytes == 4


def reopen(tmp_path, key="model", max_bytes=100):
    files = PrefixFiles(tmp_path / "store", key)
    return PrefixStore(max_bytes, files), files


@pytest.fixture
def written(tmp_path):
    """A folder with three entries."""
    store, _ = reopen(tmp_path)
    for number in (1, 2, 3):
        store.put("s", ids(number, 7), b"contents %d" % number)
        store.flush()
    store.close()
    return tmp_path / "store"


def test_entries_survive_a_restart(written, tmp_path):
    store, _ = reopen(tmp_path)
    assert store.num_bytes == 30
    assert found(store, "s", 2, 7, 8) == (b"contents 2", 2)
    store.close()


def test_files_are_the_owners_alone(written):
    assert stat.S_IMODE(written.stat().st_mode) == 0o700
    paths = list(written.iterdir())
    assert len(paths) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


def test_the_bound_holds_for_what_is_found_in_the_folder(written, tmp_path):
    store, _ = reopen(tmp_path, max_bytes=25)
    assert store.num_bytes == 20
    assert len(list(written.iterdir())) == 2
    store.close()


@pytest.mark.parametrize("damage", ["foreign", "no header", "format", "cut", "empty", "renamed"])
def test_what_is_no_entry_of_this_model_is_skipped_with_one_line(written, tmp_path, caplog, damage):
    key = "model"
    for path in list(written.iterdir())[:2]:
        content = path.read_bytes()
        header, rest = content.split(b"\n", 1)
        changed = {
            "foreign": content.replace(b'"model"', b'"other"'),
            "no header": rest,
            "format": header.replace(b'"format": 1', b'"format": 99') + b"\n" + rest,
            "cut": content[: len(header) + 3],
            "empty": b"",
            "renamed": content,
        }[damage]
        path.write_bytes(changed)
        if damage == "renamed":
            path.rename(path.with_name("0" + path.name))
    store, _ = reopen(tmp_path, key)
    assert store.num_bytes == 10
    (line,) = caplog.messages
    assert "2 files are damaged or belong to another model" in line
    assert len(list(written.iterdir())) == 3  # left alone
    store.close()


def test_contents_that_were_changed_are_never_used(written, tmp_path):
    for path in written.iterdir():
        path.write_bytes(path.read_bytes().replace(b"contents", b"c0ntents"))
    store, _ = reopen(tmp_path)
    entry, _ = store.longest("s", ids(1, 7))
    with pytest.raises(EngineError, match=r"cannot be used \(its checksum is wrong\)"):
        store.read(entry)
    assert found(store, "s", 1, 7) is None
    assert len(list(written.iterdir())) == 2
    store.close()


def test_what_is_deleted_before_it_is_written_is_not_written(tmp_path):
    store, _ = reopen(tmp_path)
    store.put("", ids(1), b"a")
    entry, _ = store.longest("", ids(1))
    store.discard(entry)
    store.close()
    assert list((tmp_path / "store").iterdir()) == []


def test_half_written_files_are_removed(written, tmp_path):
    left = written / "0123.prefix.tmp"
    left.write_bytes(b"{")
    reopen(tmp_path)[0].close()
    assert not left.exists()


def test_a_file_is_one_line_of_facts_then_ids_and_contents(written):
    header, rest = next(iter(written.iterdir())).read_bytes().split(b"\n", 1)
    facts = json.loads(header)
    assert facts.pop("sha256")
    expected = {"format": 1, "key": "model", "scope": "s", "num_id_bytes": 8, "num_bytes": 10}
    assert facts == expected
    assert rest[8:].startswith(b"contents ")


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"kv\.prefixes\.store_path: .* cannot be used"):
        PrefixFiles(tmp_path / "file" / "store", "model")


def test_a_folder_needs_a_size(tmp_path):
    with pytest.raises(ConfigError, match=r"set kv\.prefixes\.store"):
        EngineLimits(prefix_store_path=tmp_path)


def test_a_fetched_file_is_read_at_once_and_once(tmp_path):
    store = PrefixStore(100, PrefixFiles(tmp_path / "store", "model"))
    store.put("", ids(1, 2, 3), b"contents")
    store.flush()
    entry, _ = store.longest("", ids(1, 2, 3))
    assert entry.contents is None
    while not store.is_at_hand(entry):
        time.sleep(0.001)
    (path,) = (tmp_path / "store").glob("*.prefix")
    damaged = path.read_bytes()[:-1] + b"!"
    path.write_bytes(damaged)
    assert store.read(entry) == b"contents", "as it was fetched"
    with pytest.raises(EngineError, match="checksum"):
        store.read(entry)
    store.close()


def test_a_file_that_is_damaged_says_so_when_it_is_read(tmp_path):
    store = PrefixStore(100, PrefixFiles(tmp_path / "store", "model"))
    store.put("", ids(1, 2, 3), b"contents")
    store.flush()
    (path,) = (tmp_path / "store").glob("*.prefix")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    entry, _ = store.longest("", ids(1, 2, 3))
    while not store.is_at_hand(entry):
        time.sleep(0.001)
    with pytest.raises(EngineError, match="checksum"):
        store.read(entry)
    assert store.longest("", ids(1, 2, 3)) == (None, 0)
    store.close()


def test_few_are_fetched_that_nobody_reads(tmp_path):
    store = PrefixStore(100, PrefixFiles(tmp_path / "store", "model"))
    for token in range(8):
        store.put("", ids(token, 7), b"contents")
        store.flush()
    entries = [store.longest("", ids(token, 7))[0] for token in range(8)]
    for entry in entries[:4]:
        while not store.is_at_hand(entry):
            time.sleep(0.001)
    assert store.is_at_hand(entries[4]), "it must be read by whoever needs it"
    assert store.read(entries[0]) == b"contents"
    assert not store.is_at_hand(entries[4]), "there is room again"
    store.close()


def test_what_is_in_memory_is_at_hand():
    store = PrefixStore(100)
    store.put("", ids(1, 2, 3), b"contents")
    assert store.is_at_hand(store.longest("", ids(1, 2, 3))[0])
