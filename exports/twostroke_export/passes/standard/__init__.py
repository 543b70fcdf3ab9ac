"""The standard dialect: fused operators written out in ONNX's own operators, one file a kind."""
