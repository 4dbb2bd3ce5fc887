"""Greedy texts of SmolLM2-135M-Instruct from its GGUF file, by the reference.

python tests/goldens/make_smollm2.py FILE.gguf writes smollm2.json: prompts,
their ids, 128 further tokens each (nothing ends a text) and the gap between
the best logit and the next. Needs the `bench` extra, gguf and accelerate.
"""

import hashlib
import json
import pathlib
import sys

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

OUT = pathlib.Path(__file__).with_name("smollm2.json")
NEW = 128
CLEAR = 1e-3  # a gap above which two programs must agree
PROMPTS = [
    "The history of the lighthouse begins",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "In 2018, 37 of the 1,204 samples (3.07%) were",
    "Der schnelle braune Fuchs springt über den faulen Hund. Übersetzung:",
    "Once upon a time, in a village by the sea, there lived a clockmaker who"
    " could not sleep. Every night she",
    [("user", "Why is the sky blue?")],
    [("user", "Write a haiku about rain.")],
    [
        ("system", "You answer in one short sentence."),
        ("user", "What is the capital of Italy?"),
        ("assistant", "The capital of Italy is Rome."),
        ("user", "And of Japan?"),
    ],
    [("user", "List five fruits as a JSON array, then say which is red.")],
    [("user", "Explain what 2 + 2 * 3 is, step by step. 你好 🙂")],
]


def load(file: pathlib.Path):
  """(model in float32, tokenizer) of a GGUF file."""
  where = dict(gguf_file=file.name)
  tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
  # A GGUF file only names its pre-tokenizer; this is the one it names.
  tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
  ])
  model = AutoModelForCausalLM.from_pretrained(
      file.parent, dtype=torch.float32, **where
  )
  return model.eval(), tokenizer


def greedy(model, ids: list[int]) -> tuple[list[int], list[float]]:
  """(`NEW` tokens, top-1 minus top-2 logit at each), checked in one pass."""
  cache, fed, tokens, gaps = DynamicCache(), torch.tensor([ids]), [], []
  for _ in range(NEW):
    out = model(fed, past_key_values=cache, use_cache=True)
    top = out.logits[0, -1].topk(2)
    fed = top.indices[:1][None]
    tokens.append(fed.item())
    gaps.append((top.values[0] - top.values[1]).item())
  whole = torch.tensor([ids + tokens])
  best = model(whole, use_cache=False).logits[0, len(ids) - 1 : -1].argmax(-1)
  for i, (token, gap) in enumerate(zip(tokens, gaps)):
    if gap >= CLEAR and best[i] != token:
      raise SystemExit(f"position {i}: one pass says {best[i]}, not {token}.")
  return tokens, gaps


def rendered(tokenizer, messages) -> str:
  return tokenizer.apply_chat_template(
      messages, tokenize=False, add_generation_prompt=True
  )


@torch.no_grad()
def main(file: pathlib.Path, model, tokenizer) -> None:
  prompts = []
  for given in PROMPTS:
    row, text = {}, given
    if not isinstance(given, str):
      row["messages"] = [dict(role=r, content=c) for r, c in given]
      text = rendered(tokenizer, row["messages"])
    ids = tokenizer(text, add_special_tokens=False).input_ids
    tokens, gaps = greedy(model, ids)
    print(repr(tokenizer.decode(tokens)), f"least gap {min(gaps):.6f}")
    gaps = [round(gap, 6) for gap in gaps]
    prompts.append(row | dict(text=text, ids=ids, tokens=tokens, gaps=gaps))
  about = dict(
      file=file.name, sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
      torch=torch.__version__, transformers=transformers.__version__,
      dtype="float32",
  )
  rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in prompts)
  head = json.dumps(about)[:-1]
  OUT.write_text(f'{head}, "prompts": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
  path = pathlib.Path(sys.argv[1])
  main(path, *load(path))
