"""The life cycle made visible: the timings of a request and the memory plan."""

from twostroke.life.memory import MemoryPlan, free_memory_bytes, plan_memory
from twostroke.life.timeline import Clock, Timeline

__all__ = ["Clock", "MemoryPlan", "Timeline", "free_memory_bytes", "plan_memory"]
