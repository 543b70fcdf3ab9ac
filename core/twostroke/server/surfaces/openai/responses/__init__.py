"""OpenAI's responses: conversations as items, answers as items and typed events."""
