"""The exporter: a Hugging Face folder, hub id or GGUF file becomes a bundle of two graphs."""
