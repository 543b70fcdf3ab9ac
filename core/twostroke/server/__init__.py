"""The HTTP endpoint: an aiohttp application, one thin module a surface.

A request takes one path, whatever its surface: `middleware` gives it an id and guards it, `body`
reads strict JSON, `fields` checks its shape, `turn` tokenises it in a thread and runs it through
the model, and `stream` or `turn.gather` writes the answer. Surfaces only translate names.
"""
