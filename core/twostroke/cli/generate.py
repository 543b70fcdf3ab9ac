"""`twostroke generate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twostroke.cli import options
from twostroke.cli.explain import explain
from twostroke.cli.session import add_model_flags, open_model, stats

if TYPE_CHECKING:
    from twostroke.model import Completion

ABOUT = """\
Continues a prompt and prints each piece of text as it is made. Runs in this process: no server is
needed. PROMPT `-` reads the prompt from standard input; with --chat the prompt is a message to the
model rather than the beginning of a text."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "generate",
        run,
        summary="continue a prompt on the terminal",
        about=ABOUT,
        examples=(
            'twostroke generate "The capital of France is" --max-tokens 24 --temperature 0',
            'twostroke generate --model bundles/mine --chat "What is the capital of France?"',
            "twostroke generate --explain --chat 'Tell me a story'",
            "twostroke generate --json - < prompt.txt",
        ),
    )
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue, or - for stdin")
    add_model_flags(parser)
    parser.add_argument("--chat", action="store_true", help="send the prompt as a message")
    parser.add_argument("--system", metavar="TEXT", help="a system message; implies --chat")
    parser.add_argument(
        "--choices", type=int, default=1, metavar="N", help="answers to make side by side"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--stats", action="store_true", help="tokens and timings, on stderr")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="where the time and the memory went, on stderr; with --json in the object",
    )
    options.add_sampling_flags(parser, max_tokens=512)


def run(arguments: argparse.Namespace) -> int:
    """Streams the answer to stdout."""
    from twostroke.model.choices import check_n

    text = arguments.prompt
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    prompt: str | list[dict[str, Any]] = text
    if arguments.chat or arguments.system is not None:
        system = (
            [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
        )
        prompt = [*system, {"role": "user", "content": text}]
    n = check_n(arguments.choices)
    with (
        open_model(arguments, measure_device=arguments.explain, num_choices=n) as model,
        model.choices(prompt, n, **options.read_sampling(arguments)) as choices,
    ):
        if n > 1 and not arguments.json:
            print(_heading(0))
        for index, token in choices:
            if index == 0 and not arguments.json:
                print(token.text, end="", flush=True)
        completions = choices.complete()
        status = model.status() if arguments.explain else None
    if arguments.json:
        memory = {} if status is None else {"memory": status["memory"]}
        print(json.dumps({**as_json(completions), **memory}, ensure_ascii=False))
    else:
        _print_rest(completions)
    if arguments.stats:
        print(stats(*completions), file=sys.stderr)
    if status is not None and not arguments.json:
        print("\n".join(explain(completions, status)), file=sys.stderr)
    return 0


def _print_rest(completions: Sequence[Completion]) -> None:
    """What was not printed while the first choice was made."""
    first, *others = completions
    if not first.text.endswith("\n"):
        print()
    for index, completion in enumerate(others, start=1):
        print(_heading(index))
        print(completion.text, end="" if completion.text.endswith("\n") else "\n")


def _heading(index: int) -> str:
    return f"--- choice {index} ---"


def as_json(completions: Sequence[Completion]) -> dict[str, Any]:
    """What `--json` prints: the names are those of the endpoint's answers."""
    if len(completions) == 1:
        return _one_as_json(completions[0])
    from twostroke.life.together import together

    return {
        "choices": [_one_as_json(each) for each in completions],
        "prompt_tokens": completions[0].num_prompt_tokens,
        "completion_tokens": sum(each.num_completion_tokens for each in completions),
        "timings": together(completions).report(),
    }


def _one_as_json(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "finish_reason": str(completion.finish_reason),
        "prompt_tokens": completion.num_prompt_tokens,
        "completion_tokens": completion.num_completion_tokens,
        "timings": completion.timings.report(),
    }
