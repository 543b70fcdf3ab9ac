import json
import threading

import pytest

from twostroke.errors import EngineError, RequestError
from twostroke.grammar import Grammars, compiler
from twostroke.testing.bundles import byte_tokenizer
from twostroke.types import Constraint, ConstraintKind

EOS = 2
TREE = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}


def schema(value):
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value, ensure_ascii=False))


def byte(character):
    (token_id,) = byte_tokenizer().encode(character).ids
    return token_id


@pytest.mark.parametrize(
    ("constraint", "answer"),
    [
        (schema({"const": "😀👍🏽🇫🇷"}), '"😀👍🏽🇫🇷"'),
        (schema({"type": "object"}), '{"a": [1, true, null, {"b":"\\n"}]}'),
        (schema({"type": "object"}), '{\n  "a": 1\n}'),
        (schema(TREE), '{"child": {"child": {}}}'),
        (schema({"type": "string", "pattern": "^(a|b)+c$"}), '"abac"'),
        (Constraint(ConstraintKind.JSON_OBJECT), '{"any": "thing"}'),
        (Constraint(ConstraintKind.REGEX, r"[0-9]{3}-[a-z]"), "123-x"),
        (Constraint(ConstraintKind.REGEX, r"^yes$"), "yes"),
        (Constraint(ConstraintKind.GRAMMAR, 'start: word " " word\nword: /[a-z]/'), "a b"),
        (Constraint(ConstraintKind.GRAMMAR, 'start: "x" obj\nobj: %json {"const": 1}'), "x1"),
        (Constraint(ConstraintKind.CHOICE, json.dumps(["no", 'say "hi"\n\\', "né→"])), "né→"),
        (Constraint(ConstraintKind.CHOICE, json.dumps(["no", 'say "hi"\n\\'])), 'say "hi"\n\\'),
    ],
)
def test_a_right_answer_is_followed_to_its_end(grammars, follow, constraint, answer):
    matcher = grammars.matcher(constraint)
    follow(matcher, answer)
    assert matcher.is_complete
    assert matcher.allowed(300).tolist() == [EOS]


def test_the_end_is_allowed_only_where_the_grammar_may_stop(grammars, follow):
    matcher = grammars.matcher(Constraint(ConstraintKind.REGEX, "ab+"))
    assert EOS not in matcher.allowed(300)
    follow(matcher, "ab")
    assert matcher.allowed(300).tolist() == sorted([EOS, byte("b")])
    assert not matcher.is_complete


def test_ids_stay_below_the_vocabulary_of_the_logits(grammars):
    matcher = grammars.matcher(Constraint(ConstraintKind.REGEX, ".*"))
    assert matcher.allowed(100).max() < 100
    assert matcher.allowed(10_000).max() < byte_tokenizer().get_vocab_size()


@pytest.mark.parametrize("eos_ids", [{EOS, 500}, {500}, set()])
def test_ends_that_the_tokenizer_does_not_know_stop_no_grammar(grammars, follow, eos_ids):
    odd = Grammars(grammars._path, 600, frozenset(eos_ids))
    matcher = odd.matcher(Constraint(ConstraintKind.REGEX, "ab"))
    follow(matcher, "ab")
    assert matcher.is_complete


def test_whitespace_between_tokens_cannot_go_on_for_ever(grammars, follow):
    matcher = grammars.matcher(schema({"type": "object"}))
    follow(matcher, '{"a":')
    follow(matcher, " ")
    assert byte(" ") not in matcher.allowed(300)


def test_no_escape_can_be_half_of_a_character(grammars, follow):
    matcher = grammars.matcher(schema({"type": "string"}))
    follow(matcher, '"\\u00')
    assert byte("d") not in matcher.allowed(300)


def test_a_token_that_is_not_allowed_is_a_fault(grammars):
    matcher = grammars.matcher(schema({"const": 1}))
    with pytest.raises(EngineError, match="cannot go on in its grammar"):
        matcher.accept(byte("x"))


def test_answers_to_one_constraint_do_not_share_a_state(grammars, follow):
    constraint = Constraint(ConstraintKind.REGEX, "abc")
    first = grammars.matcher(constraint)
    follow(first, "ab")
    follow(grammars.matcher(constraint), "abc")
    follow(first, "c")


def test_what_was_compiled_is_kept_and_the_oldest_let_go(grammars, monkeypatch):
    compiled = []
    native = compiler._native
    monkeypatch.setattr(compiler, "MAX_KEPT", 2)
    monkeypatch.setattr(
        compiler, "_native", lambda *args: compiled.append(args[0].text) or native(*args)
    )
    fresh = Grammars(grammars._path, 300, frozenset({EOS}))
    fresh.matcher(Constraint(ConstraintKind.REGEX, "warm"))  # reads the vocabulary
    compiled.clear()
    for text in ("a", "b", "a", "c", "a", "b"):
        fresh.matcher(Constraint(ConstraintKind.REGEX, text))
    assert compiled == ["a", "b", "c", "b"]


def nested(depth):
    return '{"properties":{"a":' * depth + "{}" + "}}" * depth


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("json_schema", nested(60_000), "256 KiB"),
        ("json_schema", "[" * 60_000 + "]" * 60_000, "nested"),
        ("json_schema", nested(90), "nested more than 100 deep"),
        ("json_schema", '{"$ref": "#"}', "cannot be satisfied"),
        ("json_schema", '{"anyOf": [{"$ref": "#"}]}', "cannot be satisfied"),
        ("json_schema", '{"$ref": "http://elsewhere/schema"}', "elsewhere"),
        ("json_schema", '{"not": {"type": "string"}}', "not"),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("json_schema", "[1]", "object"),
        ("json_schema", "{broken", "not valid JSON"),
        ("json_schema", '{"pattern": "(a+)+$", "type": "string"}', "repeats a repetition"),
        ("json_schema", '{"a": "' + "x" * 300_000 + '"}', "256 KiB"),
        ("regex", "((((", "unclosed group"),
        ("regex", "(a+)+$", "repeats a repetition"),
        ("regex", "x(?:\\d*){2,}", "repeats a repetition"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "(" * 60_000, "KiB"),
        ("regex", "(" * 5_000 + ")" * 5_000, "regex is not valid"),
        ("grammar", 'start: "a', "grammar is not valid"),
        ("grammar", "start: missing", "missing"),
        ("grammar", 'start: start "a"', "cannot be satisfied"),
        ("grammar", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000, "deeply nested"),
        ("grammar", "start: %json " + "[" * 60_000, "nested"),
        ("grammar", "start: %json " + nested(90), "nested"),
        ("choice", "[]", "1 to"),
        ("choice", '["a", ""]', "empty"),
        ("choice", '"a"', "list of strings"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(grammars, kind, text, says):
    with pytest.raises(RequestError, match="(?i)" + says) as caught:
        grammars.matcher(Constraint(ConstraintKind(kind), text))
    assert caught.value.param == kind
    assert len(str(caught.value)) < 600


def test_chains_that_would_overflow_the_compilers_stack_never_reach_it(grammars):
    links = {f"a{i}": {"properties": {"b": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(4000)}
    with pytest.raises(RequestError, match="4001 references"):
        grammars.matcher(schema({"$ref": "#/$defs/a0", "$defs": {**links, "a4000": {}}}))
    rules = [f'a{i}: a{i + 1} "x"' for i in range(4000)]
    with pytest.raises(RequestError, match="1,000 rules"):
        grammars.matcher(
            Constraint(ConstraintKind.GRAMMAR, "\n".join(["start: a0", *rules, 'a4000: "y"']))
        )


def test_the_longest_chain_that_is_taken_compiles(grammars):
    def inner(link):
        for _ in range(20):
            link = {"type": "object", "properties": {"a": link}}
        return link

    links = {f"a{i}": inner({"$ref": f"#/$defs/a{i + 1}"}) for i in range(200)}
    deepest = schema({"$ref": "#/$defs/a0", "$defs": {**links, "a200": {"type": "null"}}})
    grammars.matcher(deepest)


def test_a_compilation_that_hangs_does_not_hang_its_request(grammars, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(compiler, "COMPILE_LIMIT_S", 0.05)
    monkeypatch.setattr(compiler, "_native", lambda *_: release.wait(30))
    try:
        with pytest.raises(RequestError, match=r"more than 0\.05 seconds") as caught:
            grammars.matcher(Constraint(ConstraintKind.REGEX, "never seen before"))
        assert caught.value.param == "regex"
    finally:
        release.set()
