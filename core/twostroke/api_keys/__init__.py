"""API keys: what one is, the file they are kept in, what each may do and how fast.

Knows nothing of HTTP: the server asks `KnownKeys` whose a key is and gets a `Caller`.
"""

from twostroke.api_keys.allowance import Admission, Allowance
from twostroke.api_keys.caller import NOBODY, Caller
from twostroke.api_keys.entry import KeyEntry
from twostroke.api_keys.key_file import KeyFile
from twostroke.api_keys.known_keys import KnownKeys

__all__ = ["NOBODY", "Admission", "Allowance", "Caller", "KeyEntry", "KeyFile", "KnownKeys"]
