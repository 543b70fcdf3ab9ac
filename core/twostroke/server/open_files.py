"""How many files and connections the system lets this process have open."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("twostroke.server")
_BESIDE_CONNECTIONS = 256  # models, libraries, threads' pipes, logs


def make_room(max_connections: int) -> int:
    """Raises the process's limit as far as it may; answers how many connections it then can have.

    Where that is fewer than `max_connections` the log says what to do.
    """
    allowed = _raise_limit()
    if allowed is None:
        return max_connections
    possible = max(allowed - _BESIDE_CONNECTIONS, 16)
    if possible < max_connections:
        logger.warning(
            "this process may open %d files, which is room for %d connections; for "
            "server.max_connections: %d raise the limit (LimitNOFILE of systemd, ulimit -Hn)",
            allowed,
            possible,
            max_connections,
        )
    return min(possible, max_connections)


def _raise_limit() -> int | None:
    """The limit, raised to the hard one; None where the system has none such."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS: the hard one may say infinite and not be had
            pass
    return None if soft == resource.RLIM_INFINITY else soft
