"""A bundle's `tokenizer.json`, over the `tokenizers` package.

Text is encoded in two ways: with `special`, the text of a control token (`<|im_end|>`) becomes
that token; without, it stays text. The second way needs an instance of its own, because the flag
that makes the difference is shared state and requests are encoded in many threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

# Only batches of texts profit from its threads, and a fork would print a warning about them.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

from twostroke.bundle import Bundle
from twostroke.errors import BundleError
from twostroke.text import long_texts
from twostroke.text.control import control_tokens
from twostroke.text.decoding import Decoding
from twostroke.text.template_source import template_source
from twostroke.text.valid_unicode import check_unicode
from twostroke.types import TokenId


class Tokenizer:
    """Text to token ids and back. Immutable once made; every method may run in any thread.

    Attributes:
        vocab_size: number of ids that the model's embedding takes; valid ids lie below it.
        bos_id: the id that begins a sequence, or None.
        adds_bos: whether the tokenizer's own rule puts `bos_id` before plain text.
        control: control tokens by their text; user text never becomes one of them.
        decoding: how ids become text again, for `Detokenizer`.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        vocab_size: int | None = None,
        bos_id: TokenId | None = None,
        template_source: str = "",
    ) -> None:
        """Takes over `core`: truncation and padding are switched off in it."""
        core.no_truncation()
        core.no_padding()
        self._core = core
        self._plain_lock = threading.Lock()
        self.vocab_size = vocab_size or core.get_vocab_size(with_added_tokens=True)
        added = core.get_added_tokens_decoder()
        self.control = control_tokens(added, template_source)
        first = _first_added_by_rule(core)
        self.bos_id = first if bos_id is None else bos_id
        self.adds_bos = first is not None and first == self.bos_id
        self.decoding = Decoding(core, {i for i, token in added.items() if token.special})
        # A normaliser may turn other text (fullwidth letters, say) into a control token's.
        self.control_is_normalised = core.normalizer is not None and any(
            token.normalized for token in added.values() if token.content in self.control
        )

    @classmethod
    def open(cls, bundle: Bundle) -> Tokenizer:
        """Reads `tokenizer.json` of a bundle.

        Raises:
            BundleError: the file is not there or not a tokenizer.
        """
        path = bundle.file("tokenizer.json") or bundle.root / "tokenizer.json"
        manifest = bundle.manifest
        return cls(
            _read(path),
            vocab_size=manifest.architecture.vocab_size,
            bos_id=manifest.tokens.bos_id,
            template_source=template_source(bundle) or "",
        )

    def encode(self, text: str, *, special: bool, add_bos: bool) -> list[TokenId]:
        """Token ids of `text`; takes about a second for a million characters, without the GIL.

        Args:
            text: any text, as long as it is valid Unicode.
            special: whether control tokens written out in `text` become control tokens.
            add_bos: whether `bos_id` goes first; it is never doubled, and nothing is added where
                the model has none.

        Raises:
            RequestError: `text` holds half of a surrogate pair.
        """
        core = self._core if special else self._plain
        check_unicode(text)
        ids: list[TokenId] = long_texts.encode(core, text).ids
        if add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[TokenId]) -> str:
        """Text of `ids`, control tokens left out. For a stream use `Detokenizer`."""
        return self.decoding.decode(ids)

    def token(self, token_id: TokenId) -> str | None:
        """A token as the vocabulary writes it (`Ġthe`, `<|im_end|>`); None for an unknown id."""
        text: str | None = self._core.id_to_token(token_id)
        return text

    def spelling(self, token_id: TokenId) -> bytes:
        """The bytes that a token stands for, maybe a part of a character; b"" for an unknown id.

        Of a control token, its own text.
        """
        if token_id in self.decoding.special_ids:
            return (self.token(token_id) or "").encode()
        return self.decoding.piece_bytes(token_id)

    @cached_property
    def _plain_core(self) -> tokenizers.Tokenizer:
        plain = tokenizers.Tokenizer(self._core.model)  # shares the vocabulary
        plain.normalizer = self._core.normalizer
        plain.pre_tokenizer = self._core.pre_tokenizer
        for _, token in sorted(self._core.get_added_tokens_decoder().items()):
            # One by one in the order of their ids, so that each gets the same id again.
            add = plain.add_special_tokens if token.content in self.control else plain.add_tokens
            add([token])
        plain.encode_special_tokens = True
        return plain

    @property
    def _plain(self) -> tokenizers.Tokenizer:
        with self._plain_lock:
            return self._plain_core


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the package raises bare Exception
        raise BundleError(
            f"{path} cannot be read as a tokenizer: {error}. "
            f"Export the model again with `twostroke export`."
        ) from None


def _first_added_by_rule(core: tokenizers.Tokenizer) -> TokenId | None:
    """The id that the tokenizer's post-processor puts before a text, if it puts one."""
    without = core.encode("a", add_special_tokens=False).ids
    with_rule = core.encode("a", add_special_tokens=True).ids
    if len(with_rule) > len(without) and with_rule[:1] != without[:1]:
        return int(with_rule[0])
    return None
