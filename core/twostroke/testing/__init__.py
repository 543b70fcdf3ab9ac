"""For tests of the engine, of surfaces and of backend plugins; needs no ONNX Runtime.

`make_echo_bundle` writes a bundle for the echo backend (`twostroke.testing.echo`),
`twostroke.testing.engines` puts an engine on it, and `twostroke.testing.conformance` is the class
that authors of backends inherit.
"""

from twostroke.testing.bundles import byte_tokenizer, make_echo_bundle

__all__ = ["byte_tokenizer", "make_echo_bundle"]
