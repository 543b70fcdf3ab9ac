"""The shortest way to tokens: open a model, iterate over its answer.

python examples/quickstart.py [a bundle, a Hugging Face folder, a .gguf file]
"""

import sys

import twostroke

source = sys.argv[1] if len(sys.argv) > 1 else twostroke.DEMO_SOURCE

with twostroke.open(source) as model:
    for token in model.generate("The capital of France is", max_tokens=24, temperature=0):
        print(token, end="", flush=True)
    print()

    answer = model.complete(
        [{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=48,
        temperature=0,
    )
    print(answer.text)
    print(f"{answer.num_completion_tokens} tokens, first after {answer.timings.ttft_ms:.0f} ms")
