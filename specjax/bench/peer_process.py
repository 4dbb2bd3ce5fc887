"""The other process of `peers`: JSON lines in, transformers' text out.

Run as a file by any Python that has torch and transformers; imports nothing
of specjax, so that neither JAX nor its threads come along.
"""

import json
import os
import queue
import sys
import threading
import time


class Marks:
  """A streamer: when each step's tokens came, and how many they were."""

  def __init__(self):
    self.times, self.counts, self._prompt = [], [], True

  def put(self, tokens):
    if not self._prompt:  # which is handed over first
      self.times.append(time.perf_counter())
      self.counts.append(tokens.numel())
    self._prompt = False

  def end(self):
    pass


def load(folder, dtype):
  """A model of a published folder, without its habits of generation."""
  import torch
  import transformers

  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=getattr(torch, dtype), local_files_only=True,
      trust_remote_code=False, use_safetensors=True,
  )
  model.generation_config = transformers.GenerationConfig()
  return model.eval()


def begin(job):
  """(target, drafter or None, versions) of the first line."""
  import torch
  import transformers

  torch.set_num_threads(job["threads"])
  target, drafter = (
      job[name] and load(job[name], job["dtype"])
      for name in ("target", "drafter")
  )
  versions = dict(
      python=sys.version.split()[0], torch=torch.__version__,
      transformers=transformers.__version__,
  )
  return target, drafter, versions


def generate(target, drafter, job):
  """Text after `tokens`, and the seconds to and after its first step."""
  import torch
  import transformers

  law, more = {}, {}
  if job["temperature"]:
    law = dict(temperature=job["temperature"], top_k=0, top_p=1.0)
  if job["mode"] == "lookup":
    law["prompt_lookup_num_tokens"] = job["k"]
  if job["mode"] == "assisted":
    more["assistant_model"] = drafter
    drafter.generation_config.update(
        num_assistant_tokens=job["k"], num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,  # always k of them, as ours
    )
  config = transformers.GenerationConfig(
      max_new_tokens=job["new_tokens"], do_sample=bool(job["temperature"]),
      **law,
  )
  torch.manual_seed(job["seed"])
  prompt, marks = torch.tensor([job["tokens"]]), Marks()
  start = time.perf_counter()
  text = target.generate(
      prompt, attention_mask=torch.ones_like(prompt), generation_config=config,
      streamer=marks, **more,
  )
  tokens = text[0, prompt.shape[1] :].tolist()
  if not len(tokens) == sum(marks.counts) == job["new_tokens"]:
    raise RuntimeError(f"{len(tokens)} tokens for {job['new_tokens']}")
  return dict(
      tokens=tokens, first=marks.times[0] - start,
      seconds=marks.times[-1] - marks.times[0], later=sum(marks.counts[1:]),
  )


def listen(jobs):
  """Hands lines over; without a parent nobody waits for what is running."""
  for line in sys.stdin.buffer:
    jobs.put(json.loads(line))
  os._exit(0)


def main():
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # what libraries print is no answer
  jobs = queue.Queue()
  threading.Thread(target=listen, args=(jobs,), daemon=True).start()
  say = lambda answer: print(json.dumps(answer), file=answers, flush=True)
  try:
    target, drafter, versions = begin(jobs.get())
    say(dict(versions=versions))
    while True:
      say(generate(target, drafter, jobs.get()))
  except ImportError as error:
    say(dict(missing=error.name or str(error)))
  except Exception as error:  # whatever the libraries raise
    say(dict(error=f"{type(error).__name__}: {error}"[:2000]))


if __name__ == "__main__":
  main()
