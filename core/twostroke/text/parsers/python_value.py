"""One value as Python writes it, turned into JSON character by character.

Strings, numbers, True, False, None, lists, tuples and dicts; `true`, `false` and `null` are taken
too. A word that is none of these becomes a string. Escapes are those of Python's language
reference, 2.4.1.
"""

from __future__ import annotations

import json

_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"[": "]", "(": "]", "{": "}"}
_SPACE = " \t\r\n"


class PythonValue:
    """A value that is read. `is_over` says that the last character lies behind it."""

    def __init__(self) -> None:
        self.is_over = False
        self._json = ""
        self._open: list[str] = []  # brackets
        self._quote = ""  # of the string that is open
        self._escape: str | None = None  # what of an escape has been read, without its backslash
        self._word = ""
        self._has_comma = False  # which is written when something follows it

    def take(self) -> str:
        """The JSON since the last call. Mutates self."""
        taken, self._json = self._json, ""
        return taken

    def push(self, char: str) -> None:
        """Takes the next character. Mutates self."""
        if self._quote:
            self._push_string(char)
        elif char in "\"'" and not self._word:
            self._quote = char
            self._write('"')
        elif char in _SPACE:
            self._word += " " if self._word else ""
        elif char in ",:)]}":
            self._push_between(char)
        elif char in "[({" and not self._word:
            self._write("{" if char == "{" else "[")
            self._open.append(char)
        else:
            self._word += char

    def finish(self) -> None:
        """Nothing more comes: writes the word that is open. Mutates self."""
        self._end_word("")

    def _push_between(self, char: str) -> None:
        self._end_word(char)
        if char in ",)" and not self._open:
            self.is_over = True
        elif char == ",":
            self._has_comma = True
        elif char == ":":
            self._json += ": "
        elif self._open:
            self._has_comma = False
            self._json += _CLOSING[self._open.pop()]
        else:  # a bracket that nothing has opened
            self.is_over = True

    def _push_string(self, char: str) -> None:
        if self._escape is not None:
            self._push_escape(char)
        elif char == "\\":
            self._escape = ""
        elif char == self._quote:
            self._quote = ""
            self._json += '"'
        else:
            self._json += _inner(char)

    def _push_escape(self, char: str) -> None:
        escape = (self._escape or "") + char
        num_digits = _DIGITS.get(escape[0], 0)
        if num_digits and len(escape) <= num_digits and (len(escape) == 1 or _is_hex(char)):
            self._escape = escape
            return
        self._escape = None
        if num_digits and _is_hex(escape[1:]):
            code = int(escape[1:], 16)
            self._json += _inner(chr(code)) if code < 0x110000 else ""
        elif num_digits:
            self._json += _inner("\\" + escape)
        elif char != "\n":  # a line that goes on
            self._json += _inner(_ESCAPES.get(char, char if char in "\\'\"" else "\\" + char))

    def _end_word(self, before: str) -> None:
        """Writes the word that is open; `before` is what follows it."""
        word, self._word = self._word.strip(), ""
        if word:
            is_key = before == ":" and bool(self._open) and self._open[-1] == "{"
            self._write(json.dumps(word) if is_key else _literal(word))

    def _write(self, text: str) -> None:
        if self._has_comma:
            self._has_comma = False
            text = ", " + text
        self._json += text


def _literal(word: str) -> str:
    if word in ("true", "false", "null"):
        return word
    if word in _WORDS:
        return _WORDS[word]
    for read in (int, float):
        try:
            value = read(word)
        except (ValueError, OverflowError):
            continue
        text = json.dumps(value)
        return text if text.lstrip("-")[:1].isdigit() else json.dumps(word)  # not NaN
    return json.dumps(word, ensure_ascii=False)


def _inner(text: str) -> str:
    """Text as it stands in a JSON string; halves of surrogate pairs as escapes."""
    is_whole = not any("\ud800" <= char <= "\udfff" for char in text)
    return json.dumps(text, ensure_ascii=not is_whole)[1:-1]


def _is_hex(text: str) -> bool:
    return bool(text) and all(char in "0123456789abcdefABCDEF" for char in text)
