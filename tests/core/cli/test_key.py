"""`twostroke key`: what it prints, where, and what it refuses."""

import json
import re

import pytest

from twostroke.api_keys import KeyFile
from twostroke.api_keys.secret import digest, show_digest
from twostroke.cli.main import main


@pytest.fixture
def key(tmp_path, capsys):
    """Runs `twostroke key … --file keys.json`; answers exit code, standard output and errors."""

    def run(*arguments, file=tmp_path / "keys.json"):
        code = main(["key", *arguments, *(["--file", str(file)] if file else [])])
        return code, *capsys.readouterr()

    return run


def test_create_prints_nothing_but_the_secret_once(key, tmp_path):
    code, out, err = key("create", "alice", "--models", "a, b", "--rate", "60", "--expires", "90d")
    assert code == 0
    assert re.fullmatch(r"tsk_[\w-]{43}\n", out)
    assert "'alice'" in err
    (entry,) = KeyFile(tmp_path / "keys.json").read()
    assert entry.hash == show_digest(digest(out.strip()))
    assert entry.models == ("a", "b")
    assert (entry.requests_per_minute, entry.tokens_per_minute, entry.concurrency) == (
        60,
        None,
        None,
    )
    assert (entry.expires_at - entry.created_at).days == 90


def test_limits_of_tokens_and_at_once(key, tmp_path):
    key("create", "--token-rate", "1000", "--concurrency", "2", "--expires", "2999-01-31")
    (entry,) = KeyFile(tmp_path / "keys.json").read()
    assert (entry.name, entry.tokens_per_minute, entry.concurrency) == ("key-1", 1000, 2)
    assert f"{entry.expires_at:%Y-%m-%d %H:%M %Z}" == "2999-01-31 00:00 UTC"


def test_a_key_for_no_model_at_all(key, tmp_path):
    key("create", "prometheus", "--no-models")
    key("create", "alice")
    prometheus, alice = KeyFile(tmp_path / "keys.json").read()
    assert (prometheus.models, alice.models) == ((), None)
    assert [line.split()[2] for line in key("list")[1].splitlines()] == ["models", "none", "all"]


def test_list_shows_no_hash(key):
    _, secret, _ = key("create", "alice", "--models", "a")
    key("create", "bob", "--expires", "1d")
    key("rotate", "alice", "--grace", "1h")
    code, out, _ = key("list")
    assert code == 0
    header, alice, bob = out.splitlines()
    assert header.split()[:3] == ["name", "state", "models"]
    assert re.match(r"alice  valid, old secret until ....-..-.. ..:..  a +-", alice)
    assert re.match(r"bob    until ....-..-.. ..:..", bob)
    _, out, _ = key("list", "--json")
    assert [each["name"] for each in json.loads(out)] == ["alice", "bob"]
    assert "sha256" not in out
    assert secret.strip() not in out


def test_rotate_and_revoke(key, tmp_path):
    _, first, _ = key("create", "alice")
    key("create", "bob")
    code, second, err = key("rotate", "alice")
    assert (code, first == second) == (0, False)
    assert "The old one is taken" not in err
    alice = KeyFile(tmp_path / "keys.json").read()[0]
    assert (alice.hash, alice.previous) == (show_digest(digest(second.strip())), None)
    code, out, _ = key("revoke", "alice", "bob")
    assert (code, "alice, bob" in out) == (0, True)
    assert key("list")[1] == "no keys\n"


def test_of_several_names_with_a_wrong_one_none_is_revoked(key):
    key("create", "alice")
    code, _, err = key("revoke", "alice", "bob")
    assert code == 2
    assert "there is no key 'bob'; the keys are: " in err
    assert "alice" in key("list")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "a b"], "name: "),
        (["create", "alice"], "there is a key 'alice' already"),
        (["create", "--expires", "2001-01-01"], "2001-01-01 00:00 UTC has passed"),
        (["create", "--expires", "0d"], "has passed"),
        (["create", "--expires", "999999999d"], "beyond the year 9999"),
        (["rotate", "bob"], "there is no key 'bob'; the keys are: alice"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(key, arguments, told):
    key("create", "alice")
    code, out, err = key(*arguments)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    "arguments",
    [["--rate", "0"], ["--concurrency", "-1"], ["--expires", "soon"], ["--models", ","]],
)
def test_values_out_of_range_are_refused_by_the_command_line(key, arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        key("create", *arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_file_is_the_yamls(key, tmp_path):
    config = tmp_path / "deploy.yaml"
    config.write_text("server: {key_file: conf/keys.json}\n", encoding="utf-8")
    code, _, _ = key("create", "--config", str(config), file=None)
    assert code == 0
    assert (tmp_path / "conf" / "keys.json").exists()


def test_without_a_file_it_says_where_to_name_one(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = key("list", file=None)
    assert code == 2
    assert "--file" in err
    assert "server.key_file" in err
