"""twostroke: prefill and decode as two ONNX graphs, served as one engine."""
