"""Changes single values in the text of a YAML file; every other character stays as it is.

PyYAML's nodes say where each key and value begins and ends, so comments, quotes and indentation
survive, which no parser that writes a whole file anew can promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from twostroke.errors import ConfigError
from twostroke.tune.edits import Edit

_AFTER = ("options", "device", "backend", "precision", "source", "name")  # the last that is there
_NULL = "tag:yaml.org,2002:null"


def change(text: str, model_index: int, edits: Sequence[Edit]) -> str:
    """The text with the edits made in the section `models[model_index]`.

    Raises:
        ConfigError: the file has no such section, or a value that must not be overwritten.
    """
    for edit in edits:
        text = _Change(text, model_index).made(edit)
    return text


class _Change:
    """One edit of one text."""

    def __init__(self, text: str, model_index: int) -> None:
        self._text = text
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        self._uses = Counter(id(node) for node in _walk(root))
        self._name = f"models[{model_index}]"
        models = _child(root, "models")
        if not isinstance(models, yaml.SequenceNode) or model_index >= len(models.value):
            raise ConfigError(
                [f"the file has no {self._name} to be changed; write out `models:` first"]
            )
        self._model = models.value[model_index]

    def made(self, edit: Edit) -> str:
        """The text with the edit."""
        where, node = self._name, self._model
        for depth, key in enumerate(edit.path):
            self._refuse_shared(node, where)
            if not isinstance(node, yaml.MappingNode):
                break
            found = _child(node, key)
            if found is None:
                return self._inserted(node, key, _nested(edit.path[depth + 1 :], edit.value))
            where, parent_key, node = f"{where}.{key}", _key(node, key), found
            if depth == len(edit.path) - 1:
                return self._replaced(parent_key, node, edit.value, where)
            if node.tag == _NULL:
                rest = _nested(edit.path[depth + 1 :], edit.value)
                return self._replaced(parent_key, node, rest, where)
        raise ConfigError([f"{where}: expected a mapping; change it by hand"])

    def _replaced(self, key: yaml.Node, node: yaml.Node, value: Any, where: str) -> str:
        self._refuse_shared(node, where)
        start, end = node.start_mark.index, self._end(node)
        old = self._text[start:end]
        if "${" in old:
            raise ConfigError(
                [
                    f"{where}: is set from the environment ({old}), so it is not overwritten; "
                    f"change it by hand to {_dumped(value)}"
                ]
            )
        is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
        if is_block or start == end:  # behind the colon, on the key's own line
            start = self._text.index(":", key.end_mark.index) + 1
            return f"{self._text[:start]} {_dumped(value)}{self._text[max(start, end) :]}"
        return f"{self._text[:start]}{_dumped(value)}{self._text[end:]}"

    def _inserted(self, mapping: yaml.MappingNode, key: str, value: Any) -> str:
        text, entry = self._text, f"{key}: {_dumped(value)}"
        if mapping.flow_style:
            place = self._end_of_children(mapping)
            if place is None:
                start = mapping.start_mark.index + 1
                return f"{text[:start]}{entry}{text[start:]}"
            return f"{text[:place]}, {entry}{text[place:]}"
        column = mapping.value[0][0].start_mark.column
        beside = next((k for name in _AFTER for k in [_child(mapping, name)] if k), None)
        place = self._end_of_children(mapping)
        if mapping is self._model and beside is not None and self._uses[id(beside)] == 1:
            place = self._end(beside)
        assert place is not None  # a block mapping has keys
        line_end = text.find("\n", place)
        line_end = len(text) if line_end < 0 else line_end
        newline = "\r\n" if "\r\n" in text else "\n"
        if text[line_end - 1 : line_end] == "\r":
            line_end -= 1
        return f"{text[:line_end]}{newline}{' ' * column}{entry}{text[line_end:]}"

    def _end(self, node: yaml.Node) -> int:
        """Behind the last character of a node; of a block behind that of its last part."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style:
            inside = self._end_of_children(node)
            return node.end_mark.index if inside is None else inside
        end: int = node.end_mark.index
        while end > node.start_mark.index and self._text[end - 1] in "\r\n":
            end -= 1  # a block scalar's last line break is no part of it
        return end

    def _end_of_children(self, node: yaml.CollectionNode) -> int | None:
        low, high = node.start_mark.index, node.end_mark.index
        ends = [self._end(child) for child in _children(node) if child is not node]
        inside = [end for end in ends if low <= end <= high]  # an alias stands for another place
        return max(inside, default=None)

    def _refuse_shared(self, node: yaml.Node, where: str) -> None:
        if self._uses[id(node)] > 1:
            raise ConfigError(
                [
                    f"{where}: is shared with other places of the file (an anchor), so it is not "
                    f"changed; write it out by hand"
                ]
            )


def _walk(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Every node as often as it is used; the inside of one that is used again only once."""
    seen: set[int] = set()
    waiting = [] if node is None else [node]
    while waiting:
        each = waiting.pop()
        yield each
        if id(each) not in seen:
            seen.add(id(each))
            waiting += _children(each)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _key(node: yaml.MappingNode, key: str) -> yaml.Node:
    found: yaml.Node = next(name for name, _ in node.value if name.value == key)
    return found


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _dumped(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()
