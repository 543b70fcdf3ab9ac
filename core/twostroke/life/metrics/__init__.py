"""What an engine has done, counted for a monitoring system."""

from twostroke.life.metrics.counts import EngineMetrics
from twostroke.life.metrics.tally import Tally

__all__ = ["EngineMetrics", "Tally"]
