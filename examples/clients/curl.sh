#!/bin/sh
# Talks to a running server with curl. Usage: sh curl.sh [URL]
set -eu
url="${1:-http://127.0.0.1:8080}"

echo "--- plain text, token by token (-N: curl must not wait for a full buffer)"
curl -fsSN "$url/generate" -d '{"prompt": "The capital of France is", "max_tokens": 24}'
echo

echo "--- one JSON object a token; the last one has the timings of the cycle"
curl -fsSN "$url/generate" -H 'Accept: application/x-ndjson' \
  -d '{"prompt": "The capital of France is", "max_tokens": 4}'

echo "--- OpenAI's chat, streamed as server-sent events"
curl -fsSN "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 8, "stream": true}'

echo "--- what is served, and how it is doing"
curl -fsS "$url/v1/models"
echo
curl -fsS "$url/health"
echo
