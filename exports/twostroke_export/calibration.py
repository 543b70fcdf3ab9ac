"""The token ids that quantisation is calibrated on: mixed prose and, for chat models, turns."""

from __future__ import annotations

import jinja2

from twostroke_export.load import Loaded
from twostroke_export.reference import encode_packaged

_TURNS = (
    (
        "What does a thermostat do?",
        "It compares the temperature of a room with the one you asked for, and turns the heating "
        "on or off until the two agree.",
    ),
    (
        "Write a Python function that returns the mean of a list.",
        "def mean(values):\n    return sum(values) / len(values)",
    ),
    (
        "How do I cook lentils?",
        "Rinse them, fry an onion in oil, add cumin, tomatoes and water, and simmer for 25 "
        "minutes.",
    ),
)


def calibration_ids(loaded: Loaded, context_tokens: int) -> list[int]:
    """Text that shares no sentence with the one exports are measured on, at most the context.

    A chat model sees its control tokens here as it does in use: their activations are the largest.
    """
    prose = encode_packaged(loaded, "calibration.txt", context_tokens)
    return (prose + _chat_ids(loaded))[:context_tokens]


def _chat_ids(loaded: Loaded) -> list[int]:
    if loaded.tokenizer.chat_template is None:
        return []
    ids: list[int] = []
    for question, answer in _TURNS:
        turn = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        try:
            ids += loaded.tokenizer.apply_chat_template(turn, return_dict=True)["input_ids"]
        except jinja2.TemplateError:
            return []  # a template with demands of its own: the prose has to do
    return [i for i in ids if i < loaded.vocab_size]
