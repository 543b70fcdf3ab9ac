"""The YAML that `tune` writes to: read once, shown as a diff, replaced in one step."""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from twostroke.config.load import load_text
from twostroke.config.schema import ModelConfig
from twostroke.errors import ConfigError
from twostroke.tune.edits import Edit, edited
from twostroke.tune.yaml_text import change

_BOM = "\ufeff"


class YamlFile:
    """A configuration file as it stood when it was opened. A symbolic link stays one."""

    def __init__(self, path: Path) -> None:
        """Reads it.

        Raises:
            ConfigError: it cannot be read.
        """
        self.path = path
        self._target = path.resolve()
        self._contents = self._read()
        self._text = self._contents.decode("utf-8")

    def changed(self, model_index: int, edits: Sequence[Edit]) -> str:
        """The text with the edits, proved to mean just that.

        Raises:
            ConfigError: an edit cannot be made; says why and what to write by hand.
        """
        bom, text = (_BOM, self._text[1:]) if self._text.startswith(_BOM) else ("", self._text)
        new = change(text, model_index, edits)
        before = load_text(text, self.path)
        models = list(before.models)
        models[model_index] = edited(models[model_index], tuple(edits))
        if load_text(new, self.path).models != tuple(_plain(model) for model in models):
            by_hand = ", ".join(f"{'.'.join(edit.path)}: {edit.value}" for edit in edits)
            raise ConfigError(
                [
                    f"{self.path}: the section of {models[model_index].name!r} is written in a way "
                    f"that cannot be changed safely; set by hand {by_hand}"
                ]
            )
        return bom + new

    def diff(self, new: str) -> str:
        """What `write` would change, as `diff -u` shows it."""
        before, after = (text.splitlines(keepends=True) for text in (self._text, new))
        name = str(self.path)
        return "".join(difflib.unified_diff(before, after, name, name))

    def write(self, new: str) -> None:
        """Replaces the file, with its permissions, in one step.

        Raises:
            ConfigError: it has changed since it was opened, or cannot be written; it then stays
                as it is.
        """
        if self._read() != self._contents:
            raise ConfigError(
                [
                    f"{self.path}: has changed since it was read, so nothing was written; "
                    f"run it again"
                ]
            )
        beside = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("xb") as file:
                file.write(new.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(self._target, beside)
            beside.replace(self._target)
        except OSError as error:
            raise ConfigError(
                [f"{self.path}: cannot be written: {error.strerror}; nothing was changed"]
            ) from error
        finally:
            beside.unlink(missing_ok=True)

    def _read(self) -> bytes:
        try:
            return self._target.read_bytes()
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from None


def _plain(model: ModelConfig) -> ModelConfig:
    return ModelConfig.model_validate(model.model_dump())
