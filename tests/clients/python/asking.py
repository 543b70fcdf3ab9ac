"""What every Python program here shares: the facts that it is told, and the report of a cell."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace

# What the server is and what `/generate` answered there, greedily:
#   url, key, wrong_key, one_at_a_time (a key for one request at once)
#   model, precise, broken (one that cannot be loaded), max_tokens
#   prompt, completion; messages, chat: each answer with text, finish_reason, num_prompt_tokens
#   and num_completion_tokens; too_long: a prompt beyond the context
#   lm_eval_arguments: of local-completions, as its command takes them; tokenizer: a folder;
#   transformers: a folder to import it from; weights: a .gguf file
FACTS: SimpleNamespace = json.loads(
    sys.argv[1], object_hook=lambda fields: SimpleNamespace(**fields)
)
MESSAGES = [vars(message) for message in FACTS.messages]
CITY = {"type": "string", "enum": ["Paris", "London"]}
SCHEMA = {
    "type": "object",
    "properties": {"city": CITY},
    "required": ["city"],
    "additionalProperties": False,
}


def cell(surface: str, way: str) -> Callable[[Callable[[], None]], None]:
    """Runs the function at once and prints whether the cell is right, with the fault if not."""

    def run(check: Callable[[], None]) -> None:
        try:
            check()
            fault = None
        except Exception:
            fault = traceback.format_exc(limit=-3)
        print(json.dumps({"surface": surface, "way": way, "fault": fault}), flush=True)

    return run


def refused(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """The exception of that class that the call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def equal(found: object, wanted: object) -> None:
    """Like an assertion, but says both."""
    assert found == wanted, f"{found!r} instead of {wanted!r}"
