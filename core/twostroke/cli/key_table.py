"""What `twostroke key list` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from twostroke.api_keys.entry import KeyEntry

HEADINGS = ("name", "state", "models", "requests/min", "tokens/min", "at once", "created")


def key_table(keys: Sequence[KeyEntry], now: datetime) -> str:
    """One line a key; `-` where there is no limit."""
    if not keys:
        return "no keys"
    rows = [HEADINGS, *(_row(key, now) for key in keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def key_json(keys: Sequence[KeyEntry], now: datetime) -> str:
    """The entries, without hashes, and the state of each."""
    found = [
        {
            **key.model_dump(mode="json", exclude={"hash": True, "previous": {"hash": True}}),
            "state": key_state(key, now),
        }
        for key in keys
    ]
    return json.dumps(found, indent=2, ensure_ascii=False)


def key_state(key: KeyEntry, now: datetime) -> str:
    """`valid`, until when, or since when no more. `now` has a time zone."""
    if key.expires_at is None:
        state = "valid"
    elif key.is_expired(now):
        return f"expired {key.expires_at:%Y-%m-%d %H:%M}"
    else:
        state = f"until {key.expires_at:%Y-%m-%d %H:%M}"
    if key.previous is not None and now < key.previous.until:
        state += f", old secret until {key.previous.until:%Y-%m-%d %H:%M}"
    return state


def _row(key: KeyEntry, now: datetime) -> tuple[str, ...]:
    limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrency)
    return (
        key.name,
        key_state(key, now),
        "all" if key.models is None else ",".join(key.models) or "none",
        *("-" if limit is None else str(limit) for limit in limits),
        f"{key.created_at:%Y-%m-%d}",
    )
