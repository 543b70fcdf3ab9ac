"""Compiles constraints for one vocabulary, within limits, and keeps what it has compiled."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from twostroke.errors import BundleError, InstallError, RequestError
from twostroke.grammar.bounded import run_bounded
from twostroke.grammar.bounds import check_constraint, parsed, schemas_of
from twostroke.grammar.matcher import Matcher, first_line
from twostroke.life.heap import give_memory_back
from twostroke.types import Constraint, ConstraintKind, TokenId

COMPILE_LIMIT_S = 5.0
MAX_KEPT = 32
MAX_LEXER_STATES = 50_000  # 1 to 2 kB each
# Between the tokens of JSON: nothing, one space, or a new line with its indentation. Small models
# that may write any whitespace write nothing else.
_WHITESPACE = r"(\n[ \t]{0,32}| )?"
JSON_OPTIONS = {
    "whitespace_pattern": _WHITESPACE,
    # An escape may be half of a surrogate pair, which is no text.
    "json_allow_general_unicode_escapes": False,
}


class Grammars:
    """Compiled constraints of one model, the last used ones. Any thread.

    The vocabulary is read when the first constraint comes. That holds the GIL for half a second: a
    server asks for a constraint before it serves.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, eos_ids: frozenset[TokenId]) -> None:
        """`tokenizer` is a tokenizer.json; `eos_ids` are allowed where an answer may end."""
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._vocabulary: Any = None
        self._kept: OrderedDict[Constraint, Any] = OrderedDict()

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of `constraint`, compiled now unless it is kept.

        Compiling takes a few milliseconds, at most `COMPILE_LIMIT_S` seconds; reading the
        vocabulary for the first one takes about a second. Never call it on an event loop with
        a constraint that is not kept.

        Raises:
            RequestError: it is no valid constraint, exceeds a limit, or nothing can satisfy it.
            UnavailableError: too many are being compiled.
            InstallError: llguidance is not installed.
        """
        with self._lock:
            native = self._kept.get(constraint)
            if native is not None:
                self._kept.move_to_end(constraint)
        if native is None:
            native = self._compile(constraint)
            with self._lock:
                self._kept[constraint] = native
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        return Matcher(native.deep_copy())

    def _compile(self, constraint: Constraint) -> Any:
        check_constraint(constraint)
        if constraint.kind is ConstraintKind.GRAMMAR:
            _try_schemas(constraint)
        names_tokens = constraint.kind is ConstraintKind.GRAMMAR and "<[" in constraint.text
        if self._vocabulary is None and not names_tokens:
            # What is wrong is said at once, not after a large vocabulary was read.
            _bounded(constraint, _bytes_vocabulary())
        return _bounded(constraint, self._read_vocabulary())

    def _read_vocabulary(self) -> Any:
        with self._reading:
            if self._vocabulary is None:
                self._vocabulary = self._new_vocabulary()
                give_memory_back()  # reading it takes twice what keeping it does
            return self._vocabulary

    def _new_vocabulary(self) -> Any:
        try:
            core = tokenizers.Tokenizer.from_str(self._path.read_text(encoding="utf-8"))
            core.no_truncation()
            core.no_padding()
            return _guidance().LLTokenizer(
                core.to_str(),
                n_vocab=max(self._vocab_size, core.get_vocab_size()),
                # Ids beyond the tokenizer's own are refused; where none is left, the package
                # looks for the usual names of an end.
                eos_token=[i for i in self._eos_ids if i < core.get_vocab_size()] or None,
            )
        except InstallError:
            raise
        except Exception as error:  # both packages raise bare exceptions
            raise BundleError(
                f"The vocabulary of {self._path} cannot be used for grammars: {error}. "
                "Answers of this model cannot be constrained."
            ) from None


def _bounded(constraint: Constraint, vocabulary: Any) -> Any:
    return run_bounded(
        lambda: _native(constraint, vocabulary),
        limit_s=COMPILE_LIMIT_S,
        param=constraint.kind.value,
    )


def _try_schemas(constraint: Constraint) -> None:
    """Refuses a grammar with a schema that nothing satisfies: tokens before it would hide that."""
    name = constraint.kind.value
    schemas, _ = schemas_of(constraint.text, name)
    kind = ConstraintKind.JSON_SCHEMA
    each = [Constraint(kind, json.dumps(schema)) for schema in schemas]
    run_bounded(
        lambda: [_native(one, _bytes_vocabulary()) for one in each],
        limit_s=COMPILE_LIMIT_S,
        param=name,
    )


def _native(constraint: Constraint, vocabulary: Any) -> Any:
    """An LLMatcher that can begin."""
    name, guidance = constraint.kind.value, _guidance()
    try:
        source = _source(constraint)
    except ValueError as error:
        raise RequestError(f"{name} is not valid: {error}.", param=name) from None
    limits = guidance.LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = guidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError(f"{name} is not valid: {_reason(matcher)}.", param=name)
    probe = matcher.deep_copy()
    probe.compute_bitmask()  # finds out whether a grammar is nothing but a cycle
    if probe.is_error():
        raise RequestError(
            f"{name} cannot be satisfied by any answer: {_reason(probe)}.", param=name
        )
    return matcher


def _source(constraint: Constraint) -> str:
    """The constraint as a grammar of llguidance."""
    native, text = _guidance().LLMatcher, constraint.text
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA | ConstraintKind.JSON_OBJECT:
            is_any = constraint.kind is ConstraintKind.JSON_OBJECT
            source = native.grammar_from_json_schema(
                '{"type": "object"}' if is_any else text,
                overrides=JSON_OPTIONS,
            )
        case ConstraintKind.REGEX:
            source = native.grammar_from_regex(text)
        case ConstraintKind.CHOICE:
            choices = parsed(text, constraint.kind.value)
            literals = (json.dumps(each, ensure_ascii=False) for each in choices)
            source = native.grammar_from_lark("start: " + " | ".join(literals))
        case ConstraintKind.GRAMMAR:
            source = native.grammar_from_lark(text)
    return str(source)


def _reason(matcher: Any) -> str:
    return first_line(matcher.get_error())


@cache
def _bytes_vocabulary() -> Any:
    """The 256 bytes and an end: the smallest vocabulary that a grammar can be tried with."""

    class Bytes:
        eos_token_id = 256
        bos_token_id = None
        tokens = (*(bytes([value]) for value in range(256)), b"<end>")
        special_token_ids = (256,)

        def __call__(self, text: bytes) -> list[int]:
            return list(text)

    guidance = _guidance()
    return guidance.LLTokenizer(guidance.TokenizerWrapper(Bytes()), slices=[])


def _guidance() -> Any:
    """llguidance, imported where it is needed: it takes 8 MB and 50 ms."""
    try:
        import llguidance
    except ImportError as error:
        raise InstallError(
            f"Constrained answers need llguidance, which cannot be imported: {error}. "
            "Run `pip install 'llguidance>=1.9,<2'`."
        ) from None
    return llguidance
