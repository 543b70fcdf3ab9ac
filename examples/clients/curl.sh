#!/bin/sh
# Talks to a running server with curl. Usage: sh curl.sh [URL]
# Where the server wants a key, it is taken from TWOSTROKE_KEY.
set -eu
url="${1:-http://127.0.0.1:8080}"

# The key goes by a file, since arguments can be seen by everybody on the machine.
ask() { printf 'header = "Authorization: Bearer %s"\n' "${TWOSTROKE_KEY:-none}" | curl -K - "$@"; }

echo "--- plain text, token by token (-N: curl must not wait for a full buffer)"
ask -fsSN "$url/generate" -d '{"prompt": "The capital of France is", "max_tokens": 24}'
echo

echo "--- one JSON object a token; the last one has the timings of the cycle"
ask -fsSN "$url/generate" -H 'Accept: application/x-ndjson' \
  -d '{"prompt": "The capital of France is", "max_tokens": 4}'

echo "--- OpenAI's chat, streamed as server-sent events"
ask -fsSN "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 8, "stream": true}'

echo "--- what is served, and how it is doing"
ask -fsS "$url/v1/models"
echo
ask -fsS "$url/health"
echo
