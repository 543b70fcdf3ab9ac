"""Long texts are tokenised by a thread that stands back.

The system gives it the processor only where running streams and the event loop leave it some. It
does nothing but the native part, which needs no GIL: a thread of low priority that held the GIL
would keep all others from it for as long as the system keeps the processor from it.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import tokenizers

LONG_CHARACTERS = 32_768  # takes about 10 ms
_NICENESS = 10


def _stand_back() -> None:
    """Lowers this thread's priority, where the system knows priorities of threads."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


_threads = ThreadPoolExecutor(
    max_workers=1, thread_name_prefix="twostroke-tokenise", initializer=_stand_back
)


def encode(core: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """What `core` makes of `text`, without the tokens that its post-processor adds."""
    if len(text) < LONG_CHARACTERS:
        return _encode(core, text)
    return _threads.submit(_encode, core, text).result()


def _encode(core: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    # encode() would hold the GIL, and with it the event loop and the engine.
    return core.encode_batch_fast([text], add_special_tokens=False)[0]
