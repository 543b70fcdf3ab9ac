"""Times on the command line: how long, and until when."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

from twostroke.errors import ConfigError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def duration(text: str) -> timedelta:
    """`90s`, `15m`, `12h`, `30d` or `2w`, for argparse."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 15m, 12h, 30d or 2w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def moment(text: str) -> timedelta | datetime:
    """A duration from now, or a date of ISO 8601; for argparse.

    A date without a time is its beginning, and one without a zone is UTC.
    """
    if re.fullmatch(r"\d+[a-z]", text.strip()):
        return duration(text)
    try:
        given = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time such as 90d or 12h nor a date such as 2027-01-31"
        ) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


def expiry(given: timedelta | datetime | None, now: datetime) -> datetime | None:
    """When that is; None where nothing was given. `now` has a time zone.

    Raises:
        ConfigError: it has passed, or is no date any more.
    """
    if given is None:
        return None
    try:
        when = now + given if isinstance(given, timedelta) else given
    except OverflowError:
        raise ConfigError(["--expires: that is beyond the year 9999"]) from None
    if when <= now:
        raise ConfigError([f"--expires: {when:%Y-%m-%d %H:%M %Z} has passed"])
    return when
