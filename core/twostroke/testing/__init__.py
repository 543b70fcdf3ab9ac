"""For tests of the engine, of surfaces and of backend plugins; needs no ONNX Runtime."""
