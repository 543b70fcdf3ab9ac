"""`Model`: a bundle, its text side and its engine behind one door, sync and asyncio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.engine.engine import NOT_PREPARED
from twostroke.model.answer import Answer, AsyncAnswer, Completion
from twostroke.model.asking import Ready, asked_of, make_ready
from twostroke.model.choices import Choices, submit_choices
from twostroke.model.events import SyncTextEvents, TextEvents
from twostroke.model.loading import load
from twostroke.model.opened import OpenedModel
from twostroke.model.preparing import Prompt, encode_timed
from twostroke.model.sampling import build_sampling
from twostroke.model.settings import settings_of
from twostroke.text.template import ChatEnd
from twostroke.text.tools import ToolUse
from twostroke.timings import Preparation
from twostroke.types import Request, SamplingParams, TokenId


class Model(OpenedModel):
    """An open model. Any number of prompts may be answered at once, from any thread.

    Use it as a context manager, or `close` it.
    """

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
        measure_device: bool = False,
    ) -> Model:
        """Opens a model as the YAML describes it.

        `measure_device`: where it is not known yet what the device can do, that is measured first,
        in about two seconds; the roofline of each answer needs it.

        Raises:
            TwostrokeError: as `open`.
        """
        plugins = load_plugins() if plugins is None else plugins
        scheduler = scheduler or SchedulerConfig()
        loaded = load(model, scheduler, plugins, progress, measure_device=measure_device)
        return cls(model.name, loaded, model.sampling)

    def encode(
        self,
        prompt: Prompt,
        tools: ToolUse | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[TokenId, ...]:
        """Token ids of a text, of ids (which are checked) or of chat messages.

        With `tools` the model is told of the functions in them, and `variables` are for its chat
        template; both need messages.

        Takes about a second for a million characters: never call it on an event loop.

        Raises:
            RequestError: the prompt is empty, malformed or outside of the vocabulary.
        """
        return self.encode_timed(prompt, tools, variables)[0]

    def encode_timed(
        self,
        prompt: Prompt,
        tools: ToolUse | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
        end: ChatEnd = ChatEnd.BEGUN,
    ) -> tuple[tuple[TokenId, ...], Preparation]:
        """As `encode`, and what rendering the template and tokenising took.

        `end` says where the text of a conversation ends.

        Raises:
            RequestError: as `encode`.
        """
        return encode_timed(self.tokenizer, self.template, prompt, tools, variables, end)

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
                `tool_calls`. With messages also `chat_template_kwargs`: values that the chat
                template asks for, e.g. `{"enable_thinking": False}`.

        Raises:
            RequestError: the prompt, a parameter or the constraint is wrong.
            UnavailableError: too many requests wait already, or the model is closed.
        """
        self._refuse_closed()
        ready = make_ready(self, prompt, asked_of(self, given))
        events = SyncTextEvents(
            self.engine,
            self.tokenizer,
            [ready.request],
            arrived_at=ready.arrived_at,
            prepared=ready.prepared,
            shown_ids=ready.shown_ids,
        )
        return Answer(events, ready)

    def complete(self, prompt: Prompt, **given: Any) -> Completion:
        """A whole answer.

        Raises:
            TwostrokeError: as `generate`, or the sequence failed.
        """
        return self.generate(prompt, **given).complete()

    def choices(self, prompt: Prompt, n: int, **given: Any) -> Choices:
        """Begins `n` answers to one prompt, which is read once; iterate over (index, token).

        With a `seed`, choice i is what the seed plus i gives alone.

            for completion in model.choices("Once upon a time", 3, max_tokens=64).complete():
                print(completion)

        Raises:
            RequestError: as `generate`; also for more answers than the engine can ever hold.
            UnavailableError: too many requests wait already, or the model is closed.
        """
        self._refuse_closed()
        asked = asked_of(self, given)
        return submit_choices(self, make_ready(self, prompt, asked), asked, n)

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

        def start() -> tuple[Callable[[], TextEvents], Ready]:
            self._refuse_closed()
            ready = make_ready(self, prompt, asked)
            submit = partial(
                self.events,
                [ready.request],
                arrived_at=ready.arrived_at,
                prepared=ready.prepared,
                shown_ids=ready.shown_ids,
            )
            return submit, ready

        return AsyncAnswer(start)

    def events(
        self,
        requests: Sequence[Request],
        *,
        arrived_at: float | None = None,
        prepared: Preparation = NOT_PREPARED,
        shown_ids: frozenset[TokenId] = frozenset(),
    ) -> TextEvents:
        """Submits requests; their events, for whoever serves them, each with its request's index.

        All are taken or none. Call it in a running event loop. Closing the iterator (`aclose`)
        aborts what has not ended; cancelling or dropping it does too.

        Args:
            requests: with ids from `encode` and parameters from `sampling`.
            arrived_at: when they came in, by `time.monotonic`; None is now.
            prepared: what was done since; `encode_timed` says it.
            shown_ids: control tokens that a parser of the answers must see as text.

        Raises:
            ContextLengthError: a prompt leaves no room for an answer.
            UnavailableError: too many requests wait already, or the engine is stopping.
        """
        return TextEvents(
            self.engine,
            self.tokenizer,
            requests,
            arrived_at=arrived_at,
            prepared=prepared,
            shown_ids=shown_ids,
        )
