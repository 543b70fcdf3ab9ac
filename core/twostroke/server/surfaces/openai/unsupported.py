"""Fields of OpenAI's bodies that change the answer and that this server does not build yet.

SDKs and frameworks send fields of all kinds, so unknown ones are ignored; but one that would
make the answer another one is refused by name. Silently different is the worst answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twostroke.server.harmless import refuse_unless_harmless

# The values that ask for nothing; null always does.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "grammar": ("",),
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_special_tokens": (),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "return_tokens_as_token_ids": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "max_new_tokens": (),
    "n_predict": (-1,),
    "repeat_penalty": (1, 1.0),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
}


def refuse_unsupported(body: Mapping[str, Any], taken: Collection[str] = ()) -> None:
    """Refuses a body with a field that would change the answer but is not built.

    `taken` are fields that the surface at hand does build.

    Raises:
        RequestError: names the field and the values that are taken.
    """
    refuse_unless_harmless(body, HARMLESS, taken)
