"""`twostroke chat`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from twostroke.cli import options
from twostroke.cli.session import add_model_flags, open_model, stats
from twostroke.errors import BundleError, TwostrokeError

if TYPE_CHECKING:
    from twostroke.model import Model

ABOUT = """\
A conversation on the terminal: answers stream as they are made, followed by the time to the first
token (TTFT) and tokens a second. Runs in this process: no server is needed. Ctrl-C stops the
running answer, Ctrl-D leaves. Questions may also be piped in, one a line."""

HELP = """\
  /help          this list
  /reset         forget the conversation, keep the system message
  /system TEXT   set the system message; without TEXT, remove it
  /quit          leave (also Ctrl-D)
Ctrl-C stops the running answer."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "chat",
        run,
        summary="talk to a model on the terminal",
        about=ABOUT,
        examples=(
            "twostroke chat",
            'twostroke chat --model bundles/mine --system "Answer in one sentence."',
            'echo "What is the capital of France?" | twostroke chat --temperature 0',
        ),
    )
    add_model_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    options.add_sampling_flags(parser, max_tokens=1024)


def run(arguments: argparse.Namespace) -> int:
    """Talks until the user leaves; 2 where piped questions were not all answered."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401  # importing it gives `input` its history and keys
    with open_model(arguments) as model:
        if model.template is None:
            raise BundleError(
                f"{model.name} has no chat template, so it cannot chat; use `twostroke generate`"
            )
        if is_terminal:
            print(f"{model.name}: /help lists the commands", file=sys.stderr)
        conversation = Conversation(
            model, options.read_sampling(arguments), arguments.system, sys.stdout, sys.stderr
        )
        while (line := _read_line("> " if is_terminal else "")) is not None:
            if not conversation.take(line):
                break
    return 0 if is_terminal or not conversation.num_failed else 2


def _read_line(prompt: str) -> str | None:
    """One line; None at the end of the input. Ctrl-C at the prompt starts the line anew."""
    while True:
        try:
            return input(prompt)
        except EOFError:
            if prompt:
                print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            if not prompt:
                raise
            print("\n(Ctrl-D or /quit leaves)", file=sys.stderr)


class Conversation:
    """What was said so far. Answers go to `out`, everything else to `notes`."""

    def __init__(
        self,
        model: Model,
        sampling: dict[str, Any],
        system: str | None,
        out: TextIO,
        notes: TextIO,
    ) -> None:
        self.num_failed = 0
        self._model = model
        self._sampling = sampling
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._out = out
        self._notes = notes

    @property
    def messages(self) -> list[dict[str, str]]:
        """The system message, if any, and the turns."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*system, *self._turns]

    def take(self, line: str) -> bool:
        """Does what the line asks for: a command or a question. False: the user leaves.

        Mutates the conversation.
        """
        text = line.strip()
        if not text.startswith("/"):
            if text:
                self._ask(text)
            return True
        command, _, rest = text.partition(" ")
        if command == "/quit":
            return False
        if command == "/reset":
            self._turns.clear()
            self._note("the conversation is forgotten")
        elif command == "/system":
            self._system = rest.strip() or None
            self._note("the system message is " + ("set" if self._system else "removed"))
        elif command == "/help":
            self._note(HELP)
        else:
            self._note(f"there is no {command}; /help lists the commands")
        return True

    def _ask(self, text: str) -> None:
        """Streams the answer. A question that fails is forgotten; a stopped answer is kept."""
        self._turns.append({"role": "user", "content": text})
        try:
            said, note = self._answer()
        except TwostrokeError as error:
            self._turns.pop()
            self.num_failed += 1
            hint = " (/reset starts anew)" if self._turns else ""
            self._note(f"error: {error}{hint}")
            return
        if said:
            self._turns.append({"role": "assistant", "content": said})
        else:
            self._turns.pop()
        self._note(note)

    def _answer(self) -> tuple[str, str]:
        """The answer's text and a note about it.

        Raises:
            TwostrokeError: the conversation does not fit, or the sequence failed.
        """
        with self._model.generate(self.messages, **self._sampling) as answer:
            try:
                for token in answer:
                    self._out.write(token.text)
                    self._out.flush()
                completion = answer.complete()
            except KeyboardInterrupt:
                return answer.text, "stopped"
            finally:
                if answer.text and not answer.text.endswith("\n"):
                    self._out.write("\n")
                    self._out.flush()
        return completion.text, stats(completion)

    def _note(self, text: str) -> None:
        dim = ("\x1b[2m", "\x1b[0m") if self._notes.isatty() else ("", "")
        self._notes.write(f"{dim[0]}{text}{dim[1]}\n")
        self._notes.flush()
