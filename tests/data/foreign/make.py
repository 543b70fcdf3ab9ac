"""Makes the folders beside this file, with the very tools whose output twostroke reads.

Run it in environments of their own; README.md lists them and the commands:

    python make.py source    SOURCES   the tiny checkpoints and what transformers answers with them
    python make.py single    SOURCES   optimum-onnx: one graph, with past and without
    python make.py pair      SOURCES   optimum 1.24: the pair of graphs, and both merged
    python make.py genai     SOURCES   onnxruntime-genai's model builder
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CONTEXT_TOKENS = 256
NUM_GREEDY = 8
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.4,  # wide, so that the logits lie apart and greedy ids are no races
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = "In the beginning there was a stroke, and then another one; the engine ran on and on. "
PROMPT = "the engine ran on, and then there was another stroke"


def make_sources(sources: Path) -> None:
    """Random checkpoints with a tokenizer, and their answers in reference.json."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        GPT2Config,
        LlamaConfig,
        PreTrainedTokenizerFast,
    )

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )
    gpt2 = {
        "vocab_size": SHAPE["vocab_size"],
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": CONTEXT_TOKENS,
        "initializer_range": 0.4,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    configs = {
        "llama": LlamaConfig(**SHAPE),
        # Blocks of int4 weights want a hidden size of 32, rotary inside attention a head of 16.
        "llama-wide": LlamaConfig(**{**SHAPE, "hidden_size": 32, "head_dim": 16}),
        "gpt2": GPT2Config(**gpt2),
    }
    for name, config in configs.items():
        torch.manual_seed(1)  # greedy ids that are no close races, in int4 too
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():  # biases and norms start as 0 and 1
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        # Another end than the config's: both must count.
        model.generation_config.eos_token_id = [1, 2]
        folder = sources / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "reference.json").write_text(json.dumps(answer(model, tokenizer), indent=1))


def train_tokenizer() -> Any:
    """A byte-level BPE tokenizer with three control tokens and a few dozen merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    return tokenizer


def answer(model: Any, tokenizer: Any) -> dict[str, Any]:
    """The logits of the prompt's last token and the greedy ids behind it, in eager fp32."""
    import torch

    ids = tokenizer(PROMPT, add_special_tokens=False).input_ids
    given = torch.tensor([ids])
    greedy: list[int] = []
    with torch.no_grad():
        logits = model(given).logits[0, -1]
        for _ in range(NUM_GREEDY):
            row = model(given).logits[0, -1]
            greedy.append(int(row.argmax()))
            given = torch.cat([given, row.argmax().reshape(1, 1)], dim=1)
    return {
        "prompt": PROMPT,
        "prompt_ids": ids,
        "logits": [round(value, 6) for value in logits.tolist()],
        "greedy_ids": greedy,
    }


def make_single(sources: Path) -> None:
    """optimum-onnx: `model.onnx` with past of two families, and one without past."""
    cli = str(Path(sys.executable).with_name("optimum-cli"))
    for name, kind, task in (
        ("llama", "past", "text-generation-with-past"),
        ("gpt2", "past", "text-generation-with-past"),
        ("llama", "no-past", "text-generation"),
    ):
        out = fresh(f"optimum-{name}-{kind}")
        command = [cli, "export", "onnx", "--model", str(sources / name), "--task", task, str(out)]
        subprocess.run(command, check=True)
        tidy(out, sources / name)


def make_pair(sources: Path) -> None:
    """optimum 1.24: the legacy pair, without post-processing, and the merged graph with it."""
    import torch
    from optimum.exporters.onnx import main_export

    export = torch.onnx.export

    def by_script(*given: Any, **named: Any) -> Any:
        """That optimum knows only the exporter that was the default in its time."""
        return export(*given, **{"dynamo": False, **named})

    torch.onnx.export = by_script
    for name, kind in (("gpt2", "pair"), ("llama", "merged")):
        out = fresh(f"optimum-{name}-{kind}")
        main_export(
            str(sources / name),
            out,
            task="text-generation-with-past",
            legacy=True,
            no_post_process=kind == "pair",
        )
        if kind == "merged":
            (out / "decoder_model.onnx").unlink()
            (out / "decoder_with_past_model.onnx").unlink()
        tidy(out, sources / name)


def make_genai(sources: Path) -> None:
    """onnxruntime-genai's model builder, in fp32 and int4 for the CPU."""
    source = sources / "llama-wide"
    for precision in ("fp32", "int4"):
        out = fresh(f"genai-llama-{precision}")
        module = "onnxruntime_genai.models.builder"
        command = [sys.executable, "-m", module, "-i", str(source), "-o", str(out)]
        command += ["-p", precision, "-e", "cpu", "-c", str(sources / "cache")]
        subprocess.run(command, check=True)
        tidy(out, source)
        path = out / "reference.json"
        reference = json.loads(path.read_text())
        reference["genai"] = answer_of_genai(out, reference["prompt_ids"])
        path.write_text(json.dumps(reference, indent=1))


def answer_of_genai(folder: Path, prompt_ids: list[int]) -> dict[str, Any]:
    """What onnxruntime-genai itself answers: what int4 is compared with."""
    import numpy as np
    import onnxruntime_genai

    model = onnxruntime_genai.Model(str(folder))
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt_ids) + NUM_GREEDY, do_sample=False)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array(prompt_ids, np.int32))
    logits = np.array(generator.get_logits()).reshape(-1, SHAPE["vocab_size"])[-1]
    greedy = []
    while len(greedy) < NUM_GREEDY and not generator.is_done():
        generator.generate_next_token()
        greedy.append(int(generator.get_next_tokens()[0]))
    return {"logits": [round(float(value), 6) for value in logits], "greedy_ids": greedy}


def fresh(name: str) -> Path:
    shutil.rmtree(HERE / name, ignore_errors=True)
    return HERE / name


def tidy(out: Path, source: Path) -> None:
    """Puts the reference beside what a tool wrote."""
    shutil.copyfile(source / "reference.json", out / "reference.json")


if __name__ == "__main__":
    steps = {"source": make_sources, "single": make_single, "pair": make_pair, "genai": make_genai}
    steps[sys.argv[1]](Path(sys.argv[2]))  # relative: some tools write it into what they make
