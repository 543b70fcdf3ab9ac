"""Load from outside: what an endpoint does under streams, over real HTTP.

Knows servers by their URL only, so that others' can be measured in the same way; see
`docs/bench.md`.
"""
