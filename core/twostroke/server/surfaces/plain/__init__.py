"""The plain surface: `POST /generate`, the simplest of all."""
