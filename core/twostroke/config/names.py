"""The names that models are asked for by: each means one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pydantic_core import PydanticCustomError

WRONG_NAME = "wrong_name"  # pydantic's kind of error; its context has the `path` of the name


class Named(Protocol):
    """A model's section, as far as it is about names."""

    @property
    def name(self) -> str:
        """What clients send."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """What they may send instead."""
        ...


def check_names(models: Sequence[Named]) -> None:
    """Names and aliases of all models must differ.

    Raises:
        PydanticCustomError: two are the same; names are told before aliases.
    """
    seen: set[str] = set()
    for name, path in sorted(_names(models), key=lambda found: len(found[1])):
        if name in seen:
            is_alias = len(path) > 3  # models, index, aliases, index
            told = "a model has this name or alias" if is_alias else "another model is named"
            raise PydanticCustomError(
                WRONG_NAME,
                "{told} {name} already; names must be unique",
                {"told": told, "name": repr(name), "path": path},
            )
        seen.add(name)


def check_default(default: str | None, models: Sequence[Named]) -> None:
    """The default must be one of the models, by its name or an alias.

    Raises:
        PydanticCustomError: it is none of them.
    """
    if default is None or any(name == default for name, _ in _names(models)):
        return
    raise PydanticCustomError(
        WRONG_NAME,
        "expected the name of a model ({names}), got {name}",
        {
            "names": ", ".join(model.name for model in models),
            "name": repr(default),
            "path": ("server", "default_model"),
        },
    )


def _names(models: Sequence[Named]) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    for index, model in enumerate(models):
        yield model.name, ("models", index, "name")
        for number, alias in enumerate(model.aliases):
            yield alias, ("models", index, "aliases", number)
