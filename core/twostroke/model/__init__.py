"""The model façade: a bundle, its text side and its engine behind one door."""

from twostroke.model.answer import Answer, AsyncAnswer, Completion, Token
from twostroke.model.choices import Choices
from twostroke.model.events import AnswerEvent, TextEvent, TextEvents
from twostroke.model.model import Model
from twostroke.model.preparing import Prompt
from twostroke.model.read_answer import ReadAnswer, ToolCall

__all__ = [
    "Answer",
    "AnswerEvent",
    "AsyncAnswer",
    "Choices",
    "Completion",
    "Model",
    "Prompt",
    "ReadAnswer",
    "TextEvent",
    "TextEvents",
    "Token",
    "ToolCall",
]
