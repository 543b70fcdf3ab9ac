"""Random letters that make the sizes of a stream's events say less of what is in them.

OpenAI's `stream_options.include_obfuscation`. Whoever reads only the sizes and times of encrypted
packets could else guess at the tokens (Weiss et al. 2024, "What Was Your Prompt?").
"""

from __future__ import annotations

import secrets

_STEP_BYTES = 16


def obfuscation(text: str) -> str:
    """Letters that fill `text` up to the next multiple of 16 bytes in UTF-8, at least one."""
    num_missing = _STEP_BYTES - len(text.encode()) % _STEP_BYTES
    return secrets.token_hex(_STEP_BYTES // 2)[:num_missing]
