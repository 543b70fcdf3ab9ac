"""Several answers at once with asyncio: their tokens share the steps of one engine.

python examples/several_at_once.py [a bundle, a Hugging Face folder, a .gguf file]
"""

import asyncio
import sys

import twostroke

PROMPTS = ["The sea is", "A good bicycle has", "My grandmother used to say"]


async def answer(model: twostroke.Model, number: int, prompt: str) -> None:
    async for token in model.stream(prompt, max_tokens=16, temperature=0.7, seed=number):
        print(f"[{number}] {token.text!r}")


async def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else twostroke.DEMO_SOURCE
    with await asyncio.to_thread(twostroke.open, source) as model:
        await asyncio.gather(*(answer(model, n, prompt) for n, prompt in enumerate(PROMPTS, 1)))


asyncio.run(main())
