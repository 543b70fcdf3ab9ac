"""How much of a model's quality a bundle keeps: perplexity, and divergence from its source."""

from twostroke.evaluation.evaluate import Evaluated, as_evaluation, evaluate_bundles
from twostroke.evaluation.figures import Figures, measure
from twostroke.evaluation.windows import NUM_TOKENS, Text, Window, cut, read_text
from twostroke.evaluation.yardstick import Yardstick

__all__ = [
    "NUM_TOKENS",
    "Evaluated",
    "Figures",
    "Text",
    "Window",
    "Yardstick",
    "as_evaluation",
    "cut",
    "evaluate_bundles",
    "measure",
    "read_text",
]
