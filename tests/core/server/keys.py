"""A key file and a server that reads it."""

from __future__ import annotations

from datetime import UTC, datetime

from twostroke.api_keys import KeyFile
from twostroke.api_keys.edits import created
from twostroke.server import watch


class Keys:
    """A key file and a server that reads it."""

    def __init__(self, path, serve_echo, monkeypatch):
        self.file = KeyFile(path)
        self._serve = serve_echo
        monkeypatch.setattr(watch, "PERIOD_S", 0.02)
        self.file.change(lambda keys: keys)

    def add(self, name, **rights):
        """A key whose secret is its name."""
        now = datetime.now(UTC)
        self.file.change(lambda keys: created(keys, name, name, now, rights))

    def serve(self, server=None, **options):
        return self._serve(server={"key_file": str(self.file.path), **(server or {})}, **options)


def ask(live, secret, path="/generate", body=None, **headers):
    return live.post(path, body or {"prompt": "hi"}, Authorization=f"Bearer {secret}", **headers)
