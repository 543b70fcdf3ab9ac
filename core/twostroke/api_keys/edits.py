"""What can be done to the keys of a file: create, rotate, revoke."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from twostroke.api_keys.entry import KeyEntry, PreviousSecret
from twostroke.api_keys.key_file import Entries
from twostroke.api_keys.secret import digest, show_digest
from twostroke.errors import ConfigError


def created(
    keys: Entries, name: str | None, secret: str, now: datetime, rights: Mapping[str, Any]
) -> Entries:
    """The keys and a new one at the end; without a name it is `key-1`, `key-2`, …

    `rights` are fields of `KeyEntry`: what it may do and until when.

    Raises:
        ConfigError: the name is taken or no name, or a right is out of its bounds.
    """
    names = {entry.name for entry in keys}
    if name is None:
        name = next(each for n in range(1, len(keys) + 2) if (each := f"key-{n}") not in names)
    if name in names:
        raise ConfigError(
            [f"there is a key {name!r} already; `twostroke key rotate` gives it a new secret"]
        )
    try:
        entry = KeyEntry(
            name=name,
            id=secrets.token_hex(8),
            hash=show_digest(digest(secret)),
            created_at=now,
            **rights,
        )
    except ValidationError as error:
        raise ConfigError(
            [
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors(include_input=False)
            ]
        ) from None
    return (*keys, entry)


def rotated(keys: Entries, name: str, secret: str, now: datetime, grace: timedelta) -> Entries:
    """The keys, of which one has a new secret; its old one is taken for `grace` longer.

    Raises:
        ConfigError: no key has that name.
    """
    entry = find(keys, name)
    previous = PreviousSecret(hash=entry.hash, until=now + grace) if grace else None
    changed = entry.model_copy(
        update={"hash": show_digest(digest(secret)), "previous": previous},
    )
    return tuple(changed if each is entry else each for each in keys)


def revoked(keys: Entries, name: str) -> Entries:
    """The keys without that one.

    Raises:
        ConfigError: no key has that name.
    """
    entry = find(keys, name)
    return tuple(each for each in keys if each is not entry)


def find(keys: Entries, name: str) -> KeyEntry:
    """The key of that name.

    Raises:
        ConfigError: there is none.
    """
    for entry in keys:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in keys) or "none"
    raise ConfigError([f"there is no key {name!r}; the keys are: {names}"])
