"""Whose key is this? Configured ones, those of a file, and what becomes of them in time."""

from datetime import UTC, datetime, timedelta

import pytest

from twostroke.api_keys import KnownKeys
from twostroke.api_keys.edits import created, revoked, rotated
from twostroke.api_keys.secret import PREFIX, digest, new_secret, read_digest, show_digest
from twostroke.errors import AuthError, ModelNotAllowedError, RateLimitError

START = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Now:
    def __init__(self):
        self.time = START

    def __call__(self):
        return self.time


@pytest.fixture
def now():
    return Now()


def code(known, secret):
    with pytest.raises(AuthError) as caught:
        known.find(secret)
    assert caught.value.status == 401
    assert len(secret) < 4 or secret not in str(caught.value)
    return caught.value.code


def test_secrets_are_long_and_differ():
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(each.startswith(PREFIX) and len(each) == len(PREFIX) + 43 for each in made)


def test_a_digest_can_be_written_and_read():
    assert read_digest(show_digest(digest("a"))) == digest("a")
    for text in ("sha256:", "sha256:" + "g" * 64, "sha256:" + "A" * 64, "a" * 64, "x"):
        assert read_digest(text) is None


def test_configured_keys_are_plain_or_hashed(now):
    known = KnownKeys(["plain", show_digest(digest("hidden"))], now=now)
    assert known.find("plain").name == "keys[0]"
    assert known.find("hidden").name == "keys[1]"
    assert known.find("plain").scope != known.find("hidden").scope
    assert known.find("plain").may_use("anything")
    for wrong in (
        "",
        "plai",
        "plain ",
        show_digest(digest("hidden")),
        show_digest(digest("plain")),
    ):
        assert code(known, wrong) == "invalid_api_key"


def test_a_key_of_the_file_has_a_name_and_rights(now):
    keys = created((), "alice", "s1", now(), {"models": ("a", "b"), "concurrency": 1})
    known = KnownKeys(["plain"], now=now)
    known.replace(keys)
    alice = known.find("s1")
    assert alice.name == "alice"
    assert known.find("plain").name == "keys[0]"
    alice.check_model("a")
    with pytest.raises(ModelNotAllowedError) as caught:
        alice.check_model("c")
    assert (caught.value.status, caught.value.param) == (403, "model")
    assert "a, b" in str(caught.value)
    alice.enter()
    with pytest.raises(RateLimitError):
        known.find("s1").enter()


def test_what_runs_stays_counted_when_the_file_is_read_again(now):
    keys = created((), "alice", "s1", now(), {"concurrency": 1})
    known = KnownKeys(now=now)
    known.replace(keys)
    admission = known.find("s1").enter()
    known.replace(rotated(keys, "alice", "s2", now(), timedelta()))
    with pytest.raises(RateLimitError):
        known.find("s2").enter()
    admission.leave(0)
    known.find("s2").enter()


def test_a_key_expires(now):
    known = KnownKeys(now=now)
    known.replace(created((), "alice", "s", now(), {"expires_at": START + timedelta(days=1)}))
    now.time += timedelta(hours=23)
    known.find("s")
    now.time += timedelta(hours=1)
    assert code(known, "s") == "expired_api_key"


def test_a_rotated_secret_is_taken_for_its_grace(now):
    keys = created((), "alice", "old", now(), {})
    known = KnownKeys(now=now)
    known.replace(keys)
    scope = known.find("old").scope
    known.replace(rotated(keys, "alice", "new", now(), timedelta(hours=1)))
    assert known.find("old").scope == known.find("new").scope == scope
    now.time += timedelta(hours=1)
    assert code(known, "old") == "expired_api_key"
    assert known.find("new").name == "alice"


def test_a_rotated_secret_without_grace_and_a_revoked_key_are_unknown(now):
    keys = created((), "alice", "old", now(), {})
    known = KnownKeys(now=now)
    keys = rotated(keys, "alice", "new", now(), timedelta())
    known.replace(keys)
    assert code(known, "old") == "invalid_api_key"
    known.replace(revoked(keys, "alice"))
    assert code(known, "new") == "invalid_api_key"
