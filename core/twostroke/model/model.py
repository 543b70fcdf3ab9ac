"""`Model`: a bundle, its text side and its engine behind one door, sync and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import ModelConfig, SamplingConfig, SchedulerConfig
from twostroke.engine.engine import Engine
from twostroke.errors import RequestError, UnavailableError
from twostroke.life.metrics import EngineMetrics
from twostroke.model.answer import Answer, AsyncAnswer, Completion
from twostroke.model.events import SyncTextEvents, TextEvents
from twostroke.model.loading import Loaded, load
from twostroke.model.prepared import Prepared, Prompt, asked_of, is_chat, prepare
from twostroke.model.sampling import UNADVISED, build_sampling
from twostroke.model.settings import settings_of
from twostroke.model.status import (
    fallback_sentence,
    load_report,
    memory_report,
    placement_report,
)
from twostroke.text import encode_chat, encode_prompt
from twostroke.text.tools import ToolUse
from twostroke.types import Request, SamplingParams, TokenId


class Model:
    """An open model. Any number of prompts may be answered at once, from any thread.

    Use it as a context manager, or `close` it.
    """

    def __init__(self, name: str, loaded: Loaded, sampling: SamplingConfig | None = None) -> None:
        """Takes over a running engine; `open` and `from_config` are the usual ways here."""
        self.name = name
        self.bundle = loaded.bundle
        self.tokenizer = loaded.tokenizer
        self.template = loaded.template
        self.reader = loaded.reader  # of reasoning and calls in answers; None reads neither
        self._opened = loaded.opened
        self._is_closed = False
        recommended = loaded.bundle.manifest.generation.model_dump(exclude_none=True)
        configured = (sampling or SamplingConfig()).model_dump(exclude_none=True)
        self._sampling_defaults: Mapping[str, Any] = {**UNADVISED, **recommended, **configured}

    @classmethod
    def open(
        cls,
        source: str | Path,
        *,
        name: str | None = None,
        plugins: Plugins | None = None,
        progress: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> Model:
        """Opens a bundle, or anything that can be exported to one, or a model of a YAML file.

        Args:
            source: a bundle, a folder of ONNX graphs that another tool made, a Hugging Face folder,
                a hub id, a .gguf file, `package:NAME/PATH`, or a .yaml file. What holds no graphs
                is exported once and kept in the cache.
            name: the model's name; of a YAML file, which of its models (default: the first).
            plugins: what `load_plugins` found; None loads them.
            progress: told how far an export is.
            settings: any key of a model or of the scheduler in the YAML (`backend="cpu"`,
                `precision="int4"`, `context_tokens=2048`, `max_rows=4`, `kv={"budget": "1GiB"}`).

        Raises:
            ConfigError: unknown settings, or ones that do not fit the model.
            TwostrokeError: the source, the backend or the memory, each with its own kind.
        """
        chosen = settings_of(str(source), name, settings)
        if plugins is None:
            plugins = load_plugins(chosen.block)
        model = cls.from_config(chosen.model, chosen.scheduler, plugins=plugins, progress=progress)
        model.name = chosen.name or model.bundle.manifest.name
        return model

    @classmethod
    def from_config(
        cls,
        model: ModelConfig,
        scheduler: SchedulerConfig | None = None,
        *,
        plugins: Plugins | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Model:
        """Opens a model as the YAML describes it.

        Raises:
            TwostrokeError: as `open`.
        """
        plugins = load_plugins() if plugins is None else plugins
        loaded = load(model, scheduler or SchedulerConfig(), plugins, progress)
        return cls(model.name, loaded, model.sampling)

    @property
    def engine(self) -> Engine:
        """The engine below: `submit`, `abort`, `stats`."""
        return self._opened.engine

    @property
    def metrics(self) -> EngineMetrics:
        """Counts of the engine's work since it was opened."""
        return self._opened.metrics

    @property
    def context_tokens(self) -> int:
        """Tokens that prompt and answer may take together."""
        return self._opened.engine.context_tokens

    @property
    def placement_report(self) -> dict[str, Any]:
        """For each stroke: backend, device, nodes by provider, a summary. Ready for JSON."""
        return placement_report(self._opened)

    @property
    def fallback_sentence(self) -> str | None:
        """Why another backend runs than the one asked for; None where none had to take over."""
        return fallback_sentence(self._opened)

    def status(self) -> dict[str, Any]:
        """Everything that a health check shows. Ready for JSON."""
        return {
            "name": self.name,
            "precision": self.bundle.manifest.precision,
            "context_tokens": self.context_tokens,
            "placement": self.placement_report,
            "fallback": self.fallback_sentence,
            "memory": memory_report(self.bundle, self._opened),
            "load": load_report(self._opened),
        }

    def encode(self, prompt: Prompt, tools: ToolUse | None = None) -> tuple[TokenId, ...]:
        """Token ids of a text, of ids (which are checked) or of chat messages.

        With `tools` the model is told of the functions in them, for which messages are needed.

        Takes about a second for a million characters: never call it on an event loop.

        Raises:
            RequestError: the prompt is empty, malformed or outside of the vocabulary.
        """
        if not isinstance(prompt, str) and is_chat(prompt):
            told = () if tools is None else tools.tools
            return encode_chat(self.tokenizer, self.template, prompt, told)
        if tools is not None:
            raise RequestError("tools need messages, not a prompt.", param="tools")
        if isinstance(prompt, str):
            return encode_prompt(self.tokenizer, prompt)
        return encode_prompt(self.tokenizer, cast(Sequence[TokenId], prompt))

    def sampling(self, **given: Any) -> SamplingParams:
        """The given values over the configured ones over what the model recommends.

        None counts as not given.

        Names are those of `SamplingParams`; `stop` may be one string.

        Raises:
            RequestError: an unknown name or a value out of range, named in `param`.
        """
        return build_sampling(
            given,
            defaults=self._sampling_defaults,
            vocab_size=self.tokenizer.vocab_size,
            context_tokens=self.context_tokens,
            control_ids=self.tokenizer.control.ids,
        )

    def generate(self, prompt: Prompt, **given: Any) -> Answer:
        """Begins an answer; iterate over it for tokens, or call its `complete`.

            for token in model.generate("Once upon a time", max_tokens=64):
                print(token, end="", flush=True)

        Args:
            prompt: a text, token ids or chat messages.
            given: what `sampling` takes, and at most one constraint on the answer:
                `json_schema` (an object), `json_object=True`, `regex`, `choice` (a list of
                strings) or `grammar` (llguidance's Lark dialect). With messages: `tools`,
                `tool_choice` and `parallel_tool_calls` in OpenAI's form; the completion then holds
                `tool_calls`.

        Raises:
            RequestError: the prompt, a parameter or the constraint is wrong.
            UnavailableError: too many requests wait already, or the model is closed.
        """
        self._refuse_closed()
        ready = prepare(self, prompt, asked_of(self, given))
        events = SyncTextEvents(
            self.engine,
            self.tokenizer,
            ready.request,
            arrived_at=ready.arrived_at,
            tokenise_ms=ready.tokenise_ms,
            shown_ids=ready.shown_ids,
        )
        return Answer(events, ready)

    def complete(self, prompt: Prompt, **given: Any) -> Completion:
        """A whole answer.

        Raises:
            TwostrokeError: as `generate`, or the sequence failed.
        """
        return self.generate(prompt, **given).complete()

    def stream(self, prompt: Prompt, **given: Any) -> AsyncAnswer:
        """Begins an answer for asyncio; the prompt is tokenised in a thread.

            async for token in model.stream("Once upon a time", max_tokens=64):
                print(token, end="", flush=True)

        Raises:
            RequestError: a parameter is wrong; what is wrong with the prompt or the constraint
                shows when the first token is asked for.
            UnavailableError: the model is closed.
        """
        self._refuse_closed()
        asked = asked_of(self, given)

        def start() -> tuple[Callable[[], TextEvents], Prepared]:
            self._refuse_closed()
            ready = prepare(self, prompt, asked)
            if ready.request.constraint is not None:
                self.engine.compile(ready.request.constraint)
            submit = partial(
                self.events,
                ready.request,
                arrived_at=ready.arrived_at,
                tokenise_ms=ready.tokenise_ms,
                shown_ids=ready.shown_ids,
            )
            return submit, ready

        return AsyncAnswer(start)

    def events(
        self,
        request: Request,
        *,
        arrived_at: float | None = None,
        tokenise_ms: float | None = None,
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> TextEvents:
        """Submits a request; its events, for whoever serves it. Call it in a running event loop.

        Closing the iterator (`aclose`) aborts the sequence; cancelling or dropping it does too.

        Args:
            request: with ids from `encode` and parameters from `sampling`.
            arrived_at: when it came in, by `time.monotonic`; None is now.
            tokenise_ms: what `encode` took.
            shown_ids: control tokens that a parser of the answer must see as text.

        Raises:
            ContextLengthError: the prompt leaves no room for an answer.
            UnavailableError: too many requests wait already, or the engine is stopping.
        """
        return TextEvents(
            self.engine,
            self.tokenizer,
            request,
            arrived_at=arrived_at,
            tokenise_ms=tokenise_ms,
            shown_ids=shown_ids,
        )

    def close(self, *, drain_timeout_s: float = 0.0) -> None:
        """Ends what still runs (after up to `drain_timeout_s`) and frees the device."""
        self._is_closed = True
        self._opened.close(drain_timeout_s=drain_timeout_s)

    def __repr__(self) -> str:
        decode = self.placement_report["decode"]
        state = ", closed" if self._is_closed else ""
        return (
            f"<twostroke.Model {self.name!r}: {self.bundle.manifest.precision} on "
            f"{decode['backend']}, context {self.context_tokens} tokens{state}>"
        )

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise UnavailableError(f"This model is closed: {self.name}. Open it again to use it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
