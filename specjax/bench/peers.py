"""Transformers as a peer: the same models and prompts in another process.

Apart, so that torch's threads and memory do not disturb what is measured, and
its faults end in a sentence.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from typing import Any, NoReturn

from specjax.checkpoint import published
from specjax.checkpoint.folder import Folder
from specjax.models import llama
from specjax.models.decoder import Config, Decoder
from specjax.models.families import read
from specjax.pretrained import Found

PROCESS = pathlib.Path(__file__).with_name("peer_process.py")
MODES = ("plain", "assisted", "lookup")
LONGEST = 2**22  # bytes of an answer
GRACE = 5.0  # seconds to end after its last word
ENV = dict(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"
)


class Peer:
  """Transformers on published folders, of a target and perhaps a drafter.

  A context manager. `python` is any interpreter that has torch and
  transformers; `timeout` bounds the seconds to load, and those of each text.
  Whatever goes wrong raises ValueError in one sentence and ends the process,
  which does not outlive this one either. `versions` tells what answers.
  """

  def __init__(
      self, target_folder: str | os.PathLike,
      drafter_folder: str | os.PathLike | None, dtype: str, threads: int,
      python: str = sys.executable, *, timeout: float = 600.0,
  ):
    if dtype not in ("float32", "bfloat16"):
      raise ValueError(f"dtype = {dtype}: choose float32 or bfloat16.")
    if threads < 1:
      raise ValueError(f"threads = {threads}: it must be at least 1.")
    target, drafter = (
        folder and str(pathlib.Path(folder).absolute())
        for folder in (target_folder, drafter_folder)
    )
    sizes = [Folder(f).config.get("vocab_size") for f in (target, drafter) if f]
    if len(set(sizes)) > 1:
      raise ValueError(
          f"{drafter}: its vocabulary has {sizes[1]} tokens, the target's"
          f" {sizes[0]}; transformers assists only where they are one."
      )
    self._timeout, self._drafts = timeout, drafter is not None
    self._errors = tempfile.TemporaryFile()
    try:
      self._process = subprocess.Popen(
          [python, "-P", str(PROCESS)], stdin=subprocess.PIPE,
          stdout=subprocess.PIPE, stderr=self._errors,
          env=os.environ | ENV | dict(OMP_NUM_THREADS=str(threads)),
      )
    except OSError as error:
      self._errors.close()
      raise ValueError(
          f"{python}: it cannot be run ({error.strerror}); name a Python that"
          " has torch and transformers."
      ) from None
    job = dict(target=target, drafter=drafter, dtype=dtype, threads=threads)
    self.versions: dict[str, str] = self._ask(job, versions=dict)["versions"]

  def __enter__(self) -> "Peer":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the process, which has nothing to lose."""
    self._process.kill()
    self._process.wait()
    for file in (self._process.stdin, self._process.stdout, self._errors):
      with contextlib.suppress(BrokenPipeError):  # of what was not read
        file.close()

  def generate(
      self, tokens: list[int], new_tokens: int, mode: str, temperature: float,
      k: int, seed: int,
  ) -> dict[str, Any]:
    """A text of exactly `new_tokens`, ends ignored, and its times.

    dict(tokens=[...], first=seconds to the first step's tokens, seconds and
    later=those and the tokens after it). `mode`: plain; assisted, by the
    drafter; lookup, by the text so far; both draft `k` tokens a step. Greedy at
    temperature 0, else drawn from the whole law.
    """
    if mode not in MODES:
      raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}.")
    if mode == "assisted" and not self._drafts:
      raise ValueError("mode 'assisted' needs a drafter; give its folder.")
    if not tokens or new_tokens < 1 or k < 1 and mode != "plain":
      raise ValueError(
          f"{len(tokens)} prompt tokens, new_tokens = {new_tokens}, k = {k}:"
          " each must be at least 1."
      )
    if self._process.poll() is not None:
      raise ValueError("The process of transformers has ended; begin another.")
    return self._ask(
        dict(tokens=tokens, new_tokens=new_tokens, mode=mode,
             temperature=temperature, k=k, seed=seed),
        tokens=list, first=float, seconds=float, later=int,
    )

  def _ask(self, job: dict, **fields: type) -> dict:
    """Sends a job and returns an answer that has these fields."""
    late = threading.Event()

    def stop():
      late.set()
      self._process.kill()

    clock = threading.Timer(self._timeout, stop)
    clock.start()
    raw = b""
    try:
      self._process.stdin.write(json.dumps(job).encode() + b"\n")
      self._process.stdin.flush()
      raw = self._process.stdout.readline(LONGEST)
    except BrokenPipeError:
      pass  # it ended before it read
    except BaseException:
      self.close()
      raise
    finally:
      clock.cancel()
    answer = _object(raw)
    if all(type(answer.get(f)) is kind for f, kind in fields.items()):
      return answer
    self._fail(answer, raw, late.is_set())

  def _fail(self, answer: dict, raw: bytes, late: bool) -> NoReturn:
    """Ends the process and says why, by its answer or for want of one."""
    why = "it answered with what is no answer"
    if late:
      why = f"it was not done within {self._timeout:g} s"
    elif "missing" in answer:
      why = (
          f"its Python has no {_plain(answer['missing'])}; run pip install"
          " 'specjax[bench]'"
      )
    elif "error" in answer:
      why = _plain(answer["error"])
    elif not raw:
      why = self._ended()
    self.close()
    raise ValueError(f"The peer transformers failed: {why}.")

  def _ended(self) -> str:
    try:
      code = self._process.wait(GRACE)
    except subprocess.TimeoutExpired:
      return "it stopped to listen and to answer"
    size = self._errors.seek(0, os.SEEK_END)
    self._errors.seek(max(0, size - 4096))
    said = self._errors.read().decode("utf-8", "replace").strip()
    how = f"by signal {-code}" if code < 0 else f"with status {code}"
    return f"it ended {how}" + (said and f" ({_plain(said.splitlines()[-1])})")


def _object(raw: bytes) -> dict:
  try:
    found = json.loads(raw)
  except (ValueError, RecursionError):
    return {}
  return found if isinstance(found, dict) else {}


def _plain(text: Any) -> str:
  """What the process says, as a bounded part of one printable sentence."""
  line = " ".join(str(text).split())[:200].rstrip(".")
  return "".join(c if c.isprintable() else "?" for c in line)


def export(
    model: Decoder | Found, folder: str | os.PathLike, dtype: str = "float32"
) -> None:
  """Writes a decoder, or a checkpoint that was found, as a published folder.

  That is config.json and safetensors in `dtype`; no tokenizer. Raises
  ValueError for a decoder that is not shaped like Llama or Qwen3.
  """
  if isinstance(model, Found):
    config, model = model.config, model.load(dtype)
  else:
    config = described(model.c)
  published.save(model, config, folder, dtype)


def described(c: Config) -> dict[str, Any]:
  """The config.json that reads as this shape.

  Raises ValueError when neither Llama's nor Qwen3's can.
  """
  acts = {ours: theirs for theirs, ours in llama.ACTS.items()}
  fields = dict(
      model_type="qwen3" if c.qk_norm else "llama",
      architectures=["Qwen3ForCausalLM" if c.qk_norm else "LlamaForCausalLM"],
      vocab_size=c.vocab,
      hidden_size=c.width,
      num_hidden_layers=c.layers,
      num_attention_heads=c.heads,
      num_key_value_heads=c.kv_heads,
      head_dim=c.dim,
      intermediate_size=c.mlp,
      rms_norm_eps=c.norm_eps,
      hidden_act=acts[c.act],
      rope_theta=c.rope.theta,
      max_position_embeddings=c.rope.original,
      tie_word_embeddings=c.tied,
      attention_bias=c.qkv_bias,
      mlp_bias=c.mlp_bias,
  )
  same = False
  if not (c.qk_norm and c.mlp_bias):
    theirs = read("model", fields)[1]
    same = dataclasses.replace(theirs, dtype=c.dtype) == c
  if not same:
    raise ValueError(
        "The peer transformers opens decoders of the shape of Llama or Qwen3;"
        " this one differs from both."
    )
  return fields
