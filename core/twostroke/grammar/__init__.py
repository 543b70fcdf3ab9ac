"""Constrained answers: what an answer must look like, compiled and followed token by token."""

from twostroke.grammar.compiler import Grammars
from twostroke.grammar.matcher import Matcher
from twostroke.grammar.words import constraint_from

__all__ = ["Grammars", "Matcher", "constraint_from"]
