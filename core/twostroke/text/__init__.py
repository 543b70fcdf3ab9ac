"""Text: tokenizer, chat template, incremental detokenizer, stop strings."""

from twostroke.text.detokenizer import Detokenizer
from twostroke.text.messages import Message, check_messages
from twostroke.text.prompt import encode_chat, encode_prompt, encode_rendered, render_chat
from twostroke.text.stops import StopMatcher
from twostroke.text.template import ChatTemplate
from twostroke.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "Message",
    "StopMatcher",
    "Tokenizer",
    "check_messages",
    "encode_chat",
    "encode_prompt",
    "encode_rendered",
    "render_chat",
]
