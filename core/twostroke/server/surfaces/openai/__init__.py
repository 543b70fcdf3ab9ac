"""OpenAI's surface: chat completions, completions and models."""
