"""Chats through the official OpenAI client: `pip install openai`.

Usage: python openai_client.py [URL] [MESSAGE]
Where the server wants a key, it is taken from TWOSTROKE_KEY.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI


def chat(url: str, message: str) -> None:
    # A server without keys takes any; the client only insists that there is one.
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TWOSTROKE_KEY", "none"))
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": message}],
        max_completion_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n[{chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    chat(server, sys.argv[2] if len(sys.argv) > 2 else "What is the capital of France?")
