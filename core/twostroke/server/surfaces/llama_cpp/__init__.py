"""The useful parts of llama.cpp's own API; the rest of its server speaks OpenAI's.

Facts of the format: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md.
"""

from __future__ import annotations

from twostroke.server.surface import Route, Surface
from twostroke.server.surfaces.llama_cpp.completion import completion
from twostroke.server.surfaces.llama_cpp.fields import LlamaCompletionBody
from twostroke.server.surfaces.llama_cpp.shapes import LlamaCompletion, error_body
from twostroke.server.surfaces.llama_cpp.state import show_props, show_slots
from twostroke.server.surfaces.llama_cpp.text import (
    DetokenizeBody,
    TemplateBody,
    TokenizeBody,
    apply_template,
    detokenize,
    tokenize,
)

_TOKENS = {"type": "object", "properties": {"tokens": {"type": "array"}}, "required": ["tokens"]}
_CONTENT = {"type": "object", "properties": {"content": {"type": "string"}}}
_PROMPT = {"type": "object", "properties": {"prompt": {"type": "string"}}}

SURFACE = Surface(
    name="llama.cpp",
    api_version=1,
    summary="llama.cpp's own routes",
    routes=(
        Route(
            "POST",
            "/completion",
            completion,
            "The text that follows a prompt.",
            body=LlamaCompletionBody,
            reply=LlamaCompletion | list[LlamaCompletion],
            streams="text/event-stream",
            example={"prompt": "The capital of France is", "n_predict": 8},
        ),
        Route(
            "POST",
            "/tokenize",
            tokenize,
            "The tokens of a text.",
            body=TokenizeBody,
            reply=_TOKENS,
            example={"content": "Hello", "with_pieces": True},
        ),
        Route(
            "POST",
            "/detokenize",
            detokenize,
            "The text of tokens.",
            body=DetokenizeBody,
            reply=_CONTENT,
            example={"tokens": [42, 43]},
        ),
        Route(
            "POST",
            "/apply-template",
            apply_template,
            "The prompt that a conversation becomes.",
            body=TemplateBody,
            reply=_PROMPT,
            example={"messages": [{"role": "user", "content": "Hello"}]},
        ),
        Route("GET", "/props", show_props, "What a model is.", reply={"type": "object"}),
        Route("GET", "/slots", show_slots, "Which rows are busy.", reply={"type": "array"}),
    ),
    error_body=error_body,
)
