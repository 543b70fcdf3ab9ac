"""The key file: its format, its mode, and writers that come at the same time."""

import json
import multiprocessing
import os
import sys
from datetime import UTC, datetime

import pytest

from twostroke.api_keys import KeyFile
from twostroke.api_keys.edits import created
from twostroke.errors import ConfigError

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ON_WINDOWS = sys.platform == "win32"


def add(file, name=None, secret=None, **rights):
    return file.change(lambda keys: created(keys, name, secret or f"{name}", NOW, rights))


@pytest.fixture
def file(tmp_path):
    return KeyFile(tmp_path / "new folder" / "keys.json")


def test_what_is_written_is_read(file):
    add(file, "alice", models=("a",), requests_per_minute=5, expires_at=NOW)
    written = add(file, "bob")
    assert file.read() == written
    assert [entry.name for entry in written] == ["alice", "bob"]
    assert json.loads(file.path.read_text(encoding="utf-8"))["version"] == 1


def test_secrets_are_not_in_the_file(file):
    add(file, "alice", secret="tsk_very-secret")
    assert "very-secret" not in file.path.read_text(encoding="utf-8")


def test_names_are_found_where_none_is_given(file):
    add(file, None, "s1")
    add(file, "key-2", "s2")
    assert [entry.name for entry in add(file, None, "s3")] == ["key-1", "key-2", "key-3"]


@pytest.mark.skipif(ON_WINDOWS, reason="modes are those of Unix")
def test_a_new_file_is_its_owners_and_an_old_one_keeps_its_mode(file):
    add(file, "alice")
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.path.chmod(0o640)
    add(file, "bob")
    assert file.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(ON_WINDOWS, reason="symbolic links need a privilege there")
def test_behind_a_link_the_file_is_replaced_and_not_the_link(file, tmp_path):
    add(file, "alice")
    link = tmp_path / "link.json"
    link.symlink_to(file.path)
    add(KeyFile(link), "bob")
    assert link.is_symlink()
    assert len(file.read()) == 2


def test_a_change_that_fails_leaves_the_file_and_nothing_else(file):
    add(file, "alice")
    before = file.path.read_bytes()
    with pytest.raises(ConfigError, match="there is a key 'alice' already"):
        add(file, "alice")
    assert file.path.read_bytes() == before
    left = {path.name for path in file.path.parent.iterdir()}
    assert left == {"keys.json", ".keys.json.lock"}


def _add_ten(path, letter):
    for number in range(10):
        add(KeyFile(path), f"{letter}{number}")


def test_writers_at_the_same_time_lose_nothing(file):
    context = multiprocessing.get_context("spawn" if ON_WINDOWS else "fork")
    writers = [context.Process(target=_add_ten, args=(file.path, each)) for each in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert {entry.name for entry in file.read()} == {f"{x}{n}" for x in "ab" for n in range(10)}


HASH = "sha256:" + "0" * 64
GOOD = {"name": "a", "id": "0" * 16, "hash": HASH, "created_at": "2026-11-30T00:00:00Z"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "the file: "),
        ("[]", "the file: "),
        ('{"version": 2, "keys": []}', "version: "),
        ({"keys": [{**GOOD, "extra": 1}]}, "keys[0].extra: "),
        ({"keys": [{**GOOD, "hash": "tsk_plain"}]}, "keys[0].hash: "),
        ({"keys": [{**GOOD, "created_at": "2026-11-30T00:00:00"}]}, "keys[0].created_at: "),
        ({"keys": [{**GOOD, "concurrency": 0}]}, "keys[0].concurrency: "),
        ({"keys": [{**GOOD, "name": "a b"}]}, "keys[0].name: "),
        ({"keys": [GOOD, GOOD]}, "two keys have the name of 'a'"),
        ({"keys": [GOOD, {**GOOD, "name": "b"}]}, "two keys have the id of 'b'"),
        ({"keys": [GOOD, {**GOOD, "name": "b", "id": "1" * 16}]}, "two keys have the hash of 'b'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_without_its_values(file, content, told):
    file.path.parent.mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    file.path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        file.read()
    assert f"{file.path}: {told}" in str(caught.value)
    assert "tsk_plain" not in str(caught.value)


def test_a_missing_file_says_how_it_is_made(file):
    with pytest.raises(ConfigError, match=f"twostroke key create --file {file.path}"):
        file.read()


@pytest.mark.skipif(ON_WINDOWS or os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"keys\.json: cannot be written"):
        add(KeyFile(tmp_path / "keys.json"), "alice")
