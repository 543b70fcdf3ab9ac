"""Streams an answer with nothing but Python's standard library.

Usage: python stdlib_client.py [URL] [PROMPT]
Where the server wants a key, it is taken from TWOSTROKE_KEY.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request


def stream(url: str, prompt: str, max_tokens: int = 64) -> None:
    request = urllib.request.Request(
        f"{url}/generate",
        data=json.dumps({"prompt": prompt, "max_tokens": max_tokens}).encode(),
        headers={
            "Content-Type": "application/json",
            "Accept": "application/x-ndjson",
            "Authorization": f"Bearer {os.environ.get('TWOSTROKE_KEY', 'none')}",
        },
    )
    try:
        with urllib.request.urlopen(request) as response:
            for line in response:
                event = json.loads(line)
                if "error" in event:  # the answer broke off
                    sys.exit(f"\n{event['error']['message']}")
                if event.get("done"):
                    print(f"\n[{event['finish_reason']}] {event['timings']}")
                else:
                    print(event["text"], end="", flush=True)
    except urllib.error.HTTPError as error:  # refused before the first token
        sys.exit(json.load(error)["error"]["message"])


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    stream(server, sys.argv[2] if len(sys.argv) > 2 else "The capital of France is")
