"""YAML text to a `Document`: PyYAML's safe loader, keeping the line of every key and value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from twostroke.config.document import Document, KeyPath, Origin
from twostroke.config.environment import expand
from twostroke.errors import ConfigError

MAX_NODES = 100_000  # aliases of aliases can multiply a small file into gigabytes

_MERGE_TAG = "tag:yaml.org,2002:merge"
_NULL_TAG = "tag:yaml.org,2002:null"
_STR_TAG = "tag:yaml.org,2002:str"


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Reads the file. An empty one is the defaults.

    Raises:
        ConfigError: there is no such file, it is not YAML, or its top is not a mapping.
    """
    return read_text(_read_text(path), path, environ)


def read_text(text: str, path: Path, environ: Mapping[str, str]) -> Document:
    """Reads what stands in a file, or will.

    Raises:
        ConfigError: it is not YAML, or its top is not a mapping.
    """
    node, loader = _compose(text, str(path))
    document = Document(Origin(f"{path}:1", 1))
    if node is None or node.tag == _NULL_TAG:
        return document
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError([f"{path}:{line}: expected sections such as `server:` and `models:`"])
    document.root = Origin(str(path), 0)
    document.data = _Builder(document, loader, str(path), environ).build(node, ())
    return document


def read_value(text: str, flag: str, order: int, document: Document, path: KeyPath) -> Any:
    """Reads the value of one `--set`; records its origin and its problems in the document.

    Variables are not filled in: the shell has done that.

    Raises:
        ConfigError: the value is not YAML.
    """
    node, loader = _compose(text, flag)
    document.values[path] = Origin(flag, order, text)
    if node is None:
        return None
    return _Builder(document, loader, flag, None, order).build(node, path)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a folder, not a YAML file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None


def _compose(text: str, place: str) -> tuple[yaml.Node | None, yaml.SafeLoader]:
    try:
        loader = yaml.SafeLoader(text)
        return loader.get_single_node(), loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        where = place if place.startswith("--set") else f"{place}:{line + 1}"
        raise ConfigError([f"{where}: {_syntax_message(error, text, line)}"]) from None
    except yaml.YAMLError as error:  # the reader: characters that YAML forbids
        raise ConfigError([f"{place}: is not YAML: {str(error).splitlines()[0]}"]) from None
    except RecursionError:
        raise ConfigError([f"{place}: is nested too deeply"]) from None


def _syntax_message(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    lines = text.splitlines()
    content = lines[line] if line < len(lines) else ""
    indent = content[: len(content) - len(content.lstrip())]
    if "\t" in indent or "'\\t'" in str(error.problem):
        return "is indented with a tab; YAML allows spaces only"
    message = f"is not YAML: {error.problem}"
    if error.context:
        message += f" ({error.context})"
    if "${" in content:
        message += '; inside [ ] and { } a variable needs quotes: "${NAME}"'
    return message


class _Builder:
    """Turns nodes into values, writing origins and problems into the document."""

    def __init__(
        self,
        document: Document,
        loader: yaml.SafeLoader,
        place: str,
        environ: Mapping[str, str] | None,
        order: int | None = None,
    ) -> None:
        self._document = document
        self._loader = loader
        self._place = place
        self._environ = environ
        self._order = order
        self._num_nodes = 0
        self._open: list[yaml.Node] = []  # the nodes being built: an alias to one of them loops

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """The value of the node, recursively. Mutates the document."""
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES or any(node is outer for outer in self._open):
            raise ConfigError([f"{self._origin(node).place}: aliases repeat without end"])
        if path:
            self._document.values[path] = self._origin(node)
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(cast("yaml.ScalarNode", node), path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._check_duplicates(node, path)
        try:
            self._loader.flatten_mapping(node)
        except yaml.MarkedYAMLError as error:
            self._document.complain(self._origin(node), path, str(error.problem))
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is not None:
                self._document.keys[*path, key] = self._origin(key_node)
                values[key] = self.build(value_node, (*path, key))
        return values

    def _check_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first: dict[Hashable, yaml.Node] = {}
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str) or key_node.tag == _MERGE_TAG:
                continue
            if key in first:
                line = first[key].start_mark.line + 1
                before = f", first in line {line}" if self._order is None else ""
                self._document.complain(
                    self._origin(key_node), (*path, key), f"the key stands here twice{before}"
                )
            first.setdefault(key, key_node)

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _STR_TAG:
            return str(node.value)
        shown = f" {node.value}" if isinstance(node, yaml.ScalarNode) else ""
        self._document.complain(
            self._origin(node), path, f"the key{shown} is not text; put it in quotes"
        )
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if self._environ is not None and node.tag == _STR_TAG and "$" in node.value:
            return self._expanded(node, path, self._environ)
        try:
            return self._loader.construct_object(node, deep=True)
        except yaml.MarkedYAMLError as error:
            self._document.complain(self._origin(node), path, str(error.problem))
        except ValueError as error:  # a date such as 2024-99-99
            self._document.complain(self._origin(node), path, f"{node.value!r}: {error}")
        return None

    def _expanded(self, node: yaml.ScalarNode, path: KeyPath, environ: Mapping[str, str]) -> Any:
        """Text that the field's own type converts later, so that a key `0123` stays text.

        Unquoted and empty is null, as an empty value is in YAML; below `options` no type is
        declared, so there unquoted text is read as YAML would read it.
        """
        try:
            text = expand(node.value, environ)
        except ValueError as error:
            self._document.complain(self._origin(node), path, str(error))
            return None
        if node.style is not None:
            return text
        if "options" in path:
            return _typed(text)
        return text or None

    def _origin(self, node: yaml.Node) -> Origin:
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        if self._order is not None:
            return Origin(self._place, self._order, text)
        line = node.start_mark.line + 1
        return Origin(f"{self._place}:{line}", line, text)


def _typed(text: str) -> Any:
    """The text as YAML reads a scalar: `8` is a number. Anything more is plain text."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, dict | list) else value
