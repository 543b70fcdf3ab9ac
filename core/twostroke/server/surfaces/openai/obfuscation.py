"""Random letters that make the sizes of a stream's events say less of what is in them.

OpenAI's `stream_options.include_obfuscation`. Whoever reads only the sizes and times of encrypted
packets could else guess at the tokens (Weiss et al. 2024, "What Was Your Prompt?").
"""

from __future__ import annotations

import secrets

_STEP_BYTES = 16


def obfuscation(num_bytes: int) -> str:
    """Letters that fill so many bytes up to the next multiple of 16, at least one."""
    num_missing = _STEP_BYTES - num_bytes % _STEP_BYTES
    return secrets.token_hex(_STEP_BYTES // 2)[:num_missing]
