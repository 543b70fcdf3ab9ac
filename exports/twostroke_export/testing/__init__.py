"""What tests of the exporter share: tiny models and the parity of architectures."""
