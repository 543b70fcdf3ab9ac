"""Names of models as Ollama has them: one without a tag is that with the tag `latest`."""

from __future__ import annotations

from collections.abc import Collection

from twostroke.server.models import Models

_LATEST = ":latest"


def served_name(name: str | None, served: Collection[str]) -> str | None:
    """The name that is served under an asked one; what fits none stays, for the error to name."""
    if not name:
        return None
    untagged = name.removesuffix(_LATEST)
    return untagged if name not in served and untagged in served else name


def tagged_name(name: str) -> str:
    """A served name as lists show it: with a tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}{_LATEST}"


def known_names(models: Models) -> set[str]:
    """All names that mean a model, aliases too."""
    aliases = {alias for served in models.served.values() for alias in served.aliases}
    return {*models.names, *aliases}
