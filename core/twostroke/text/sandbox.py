"""A Jinja environment for templates that nobody has read: no escapes, and an end to everything.

Jinja's own sandbox keeps a template from the interpreter, not from `range(99999)` squared nor
from a product of strings. Here every turn of a loop and every call is counted, a clock runs, and
what multiplies text is measured before it is made.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twostroke.text.budget import current

_TAKES_FROM_LISTS = {  # filters that don't write out what they are given
    *("length", "count", "first", "last", "list", "map", "select", "selectattr", "reject"),
    *("rejectattr", "items", "reverse", "default", "d", "attr", "random", "min", "max"),
}


def _concat(pieces: Iterable[str]) -> str:
    """All output of a template, a macro or a block comes through here."""
    return "".join(current().collect(pieces))


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with limits, set up as transformers sets up its own for chat templates.

    Compile and render inside of `budget.limited` only.
    """

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=_written,
        )
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: datetime.now().strftime(pattern),
        }
        self.filters["tojson"] = _to_json
        self.filters = {name: _guarded(name, f) for name, f in self.filters.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _call("count_turns", loop.iter)
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_call("concatenate", *concat.nodes)]
        return tree

    def count_turns(self, items: Iterable[Any]) -> Iterator[Any]:
        """Every loop's items come through here."""
        step = current().step
        for item in items:
            step()
            yield item

    def concatenate(self, *parts: Any) -> str:
        """Every `a ~ b` a template writes comes through here."""
        for part in parts:
            current().weigh(part)
        texts = [str(part) for part in parts]
        current().size(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call a template makes comes through here."""
        budget = current()
        budget.step()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            budget.numbers(*args, *kwargs.values())
            if name in ("format", "format_map"):
                budget.pattern(owner)
                budget.weigh([*args, *kwargs.values()])
            elif name == "replace":
                budget.replace(owner, args)
            elif name == "join" and args:
                args = (budget.collect(args[0]), *args[1:])
                budget.join(owner, args[0])
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Every product, power, remainder and sum a template makes comes through here."""
        current().binary(operator, left, right)
        return super().call_binop(context, operator, left, right)


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`: marks an answer for training; here it shows as is."""

    tags = {"generation"}  # noqa: RUF012 - the name and kind that Jinja asks for

    def parse(self, parser: Parser) -> nodes.Node:
        """Puts the body in place of the tag, in a scope of its own as transformers does."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _call(method: str, *args: nodes.Node) -> nodes.Call:
    # An attribute of the environment, unlike a global, can't be shadowed by a template.
    lineno = args[0].lineno
    function = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(function, list(args), [], None, None, lineno=lineno)


def _written(value: Any) -> str:
    """What an expression in `{{ }}` writes."""
    current().weigh(value)
    text = str(value)
    current().write(text)
    return text


def _guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are measured before it runs, and its text afterwards."""
    num_passed = 1 if hasattr(filter_, "jinja_pass_arg") else 0  # the context or environment

    @functools.wraps(filter_)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        passed, value, rest = args[:num_passed], args[num_passed], args[num_passed + 1 :]
        budget.numbers(*rest, *kwargs.values())
        if name == "list" and not isinstance(value, str):
            value = budget.collect(value)
        elif name == "join" and not isinstance(value, str):
            value = budget.collect(value)
            budget.join(str(rest[0] if rest else kwargs.get("d", "")), value)
        if name not in _TAKES_FROM_LISTS:
            budget.weigh(value)
        if isinstance(value, str):
            _check_text_filter(name, value, rest, kwargs)
        result = filter_(*passed, value, *rest, **kwargs)
        if isinstance(result, str):
            budget.size(len(result))
        return result

    return guarded


def _check_text_filter(name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    budget = current()
    if name == "format":
        budget.pattern(text)
        budget.weigh([*args, *kwargs.values()])
    elif name == "replace":
        budget.replace(text, (*args, *(kwargs[key] for key in ("old", "new") if key in kwargs)))
    elif name == "indent":
        width = args[0] if args else kwargs.get("width", 4)
        num_chars = width if isinstance(width, int) else len(str(width))
        budget.size(len(text) + num_chars * (text.count("\n") + 1))


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter would escape HTML's characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
