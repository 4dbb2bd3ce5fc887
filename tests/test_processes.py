"""Two real processes of four fake devices each run one program."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from specjax import processes

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAW = """
import jax, sys
sys.path[:0] = [sys.argv[1]]
jax.distributed.initialize(
    coordinator_address=sys.argv[2], num_processes=2,
    process_id=int(sys.argv[3]),
)
from specjax import sharding, testing
from specjax.drafters.autoregressive import Autoregressive
shape = [int(n) for n in sys.argv[4].split("x")]
with jax.set_mesh(sharding.mesh(*shape)):
  fields = dict(heads=4, kv_heads=2)
  target = testing.decoder(**fields)
  drafter = Autoregressive(testing.decoder(seed=1, **fields), 2)
  rows = 16_384
  if len(sys.argv) > 5:  # a planted bug: what one process alone would do
    testing.law.fetch = lambda tree: jax.tree.map(
        lambda x: __import__("numpy").asarray(x.addressable_shards[0].data)
        if isinstance(x, jax.Array) else x, tree
    )
  print(testing.check_law(target, drafter, [[0, 1, 2, 3, 4, 0]], rows=rows))
"""


def environment():
  own = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4",
         "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  return os.environ | own


def address():
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{s.getsockname()[1]}"


def met(where):
  """Waits until the leading process listens, and the other has had time."""
  host, port = where.split(":")
  for _ in range(600):
    with contextlib.suppress(OSError), socket.create_connection((host, port)):
      return time.sleep(4)
    time.sleep(0.1)
  raise TimeoutError(where)


def start(*command):
  return subprocess.Popen(
      [sys.executable, *map(str, command)], env=environment(),
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )


def ended(both, seconds=300):
  """(code, stdout, stderr) of each; none is left behind."""
  try:
    return [(x.wait(seconds), *x.communicate()) for x in both]
  finally:
    for x in both:
      x.kill()


def law(shape, *more):
  where = address()
  return ended([
      start("-c", LAW, ROOT, where, i, shape, *more) for i in range(2)
  ])


@pytest.mark.parametrize("shape", ["2x4", "8x1"])
def test_the_law_holds_across_two_processes(shape):
  (a, said, why), (b, also, _) = law(shape)
  assert (a, b) == (0, 0), why
  values = [x.splitlines()[-1] for x in (said, also)]  # behind gloo's words
  assert "plain" in values[0] and values[0] == values[1]


def test_a_part_of_the_rows_taken_for_all_is_found_out():
  (code, _, said), _ = law("8x1", "bug")
  assert code and ("Error" in said)


def job(folder, where=None, process=0, mesh="2x4", *more):
  apart = () if where is None else (
      "--multihost", f"--coordinator={where}", "--processes=2",
      f"--process={process}",
  )
  return start(
      ROOT / "launch/generate.py", f"--input={folder / 'in.jsonl'}",
      f"--output={folder / 'out.jsonl'}", f"--mesh={mesh}", "--batch=4",
      "--max_new_tokens=24", "--nostats", *apart, *more,
  )


def ask(folder, lines):
  (folder / "in.jsonl").write_text("".join(
      json.dumps({"prompt": f"def f{i}(x):", "temperature": i % 2}) + "\n"
      for i in range(lines)
  ))


def answers(folder):
  lines = (folder / "out.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def texts(folder):
  return [line["text"] for line in answers(folder)]


def test_a_job_of_two_processes_writes_what_one_writes(tmp_path):
  found = []
  for name in ("one", "two"):
    folder = tmp_path / name
    folder.mkdir()
    ask(folder, 6)
    where = address() if name == "two" else None
    both = [job(folder, where, i) for i in range(2 if where else 1)] if (
        where
    ) else [job(folder, mesh="1x1")]
    results = ended(both)
    assert [r[0] for r in results] == [0] * len(both), results
    found.append(texts(folder))
  assert found[0] == found[1]
  assert len(found[0]) == 6


def test_processes_with_other_inputs_are_refused(tmp_path):
  folders = [tmp_path / "a", tmp_path / "b"]
  for i, folder in enumerate(folders):
    folder.mkdir()
    ask(folder, 2 + i)
  where = address()
  results = ended([job(f, where, i) for i, f in enumerate(folders)])
  assert [r[0] for r in results] == [1, 1]
  assert "other content" in results[0][2]


def test_an_output_that_is_refused_ends_both(tmp_path):
  ask(tmp_path, 2)
  (tmp_path / "out.jsonl").write_text("something else\n")
  where = address()
  results = ended([job(tmp_path, where, i) for i in range(2)])
  assert [r[0] for r in results] == [1, 1]
  assert "no job's output" in results[0][2]
  assert "leading process says why" in results[1][2]


@pytest.mark.long  # eleven starts of two processes, most of them killed
def test_a_job_killed_ten_times_holds_each_input_once(tmp_path):
  ask(tmp_path, 120)
  rng, ends = random.Random(0), []
  meshes = ["2x4", "8x1", "4x2"]
  for n in range(10):
    where = address()
    both = [job(tmp_path, where, i, meshes[n % 3]) for i in range(2)]
    have = lambda: (tmp_path / "out.jsonl").exists() and len(
        (tmp_path / "out.jsonl").read_bytes().splitlines()
    )
    met(where)  # one that never met another waits five minutes for it
    before, limit = have() or 0, time.monotonic() + 120
    # At first whenever it is; then after lines of its own, so that it ends.
    wait = rng.uniform(0, 25) if n % 2 else None
    began = time.monotonic()
    while time.monotonic() < limit and both[0].poll() is None:
      if wait is not None and time.monotonic() - began > wait:
        break
      if wait is None and (have() or 0) > before + rng.randint(1, 8):
        break
      time.sleep(0.05)
    if n % 3:
      both[rng.randint(0, 1)].send_signal(signal.SIGKILL)
    else:
      for x in both:
        x.send_signal(signal.SIGTERM)
    ends.append([r[0] for r in ended(both)])
  where = address()
  last = ended([job(tmp_path, where, i) for i in range(2)], 600)
  assert [r[0] for r in last] == [0, 0], last
  lines = answers(tmp_path)
  assert [x["line"] for x in lines] == list(range(1, 121)), ends
  assert any(0 not in e for e in ends), ends  # some were cut short


TRAIN = """
import jax, sys
sys.path[:0] = [sys.argv[1]]
if sys.argv[2] != "alone":
  jax.distributed.initialize(
      coordinator_address=sys.argv[2], num_processes=2,
      process_id=int(sys.argv[3]),
  )
import numpy as np
from flax import nnx
from specjax import sharding
from specjax.models.decoder import Config, Decoder
from specjax.train import data, loop, losses
from specjax.train.recipe import Recipe
c = Config(vocab=32, width=16, layers=1, heads=2, kv_heads=2, dim=8, mlp=32)
r = Recipe(
    steps=12, batch=8, length=8, matrix_rate=0.02, other_rate=0.01, warmup=2,
    decay=4, save_every=3, eval_every=6, eval_batches=2,
)
tokens = np.random.default_rng(0).integers(0, 32, 2000) // 2 * 2
a, b, f = (int(n) for n in sys.argv[5].split("x"))
real = data.batch
def batch(array, step, *rest):
  if step == int(sys.argv[6]) and sys.argv[3] == "1":  # of one process only
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
  return real(array, step, *rest)
data.batch = batch
with jax.set_mesh(sharding.mesh(a, b, fsdp=f)):
  model = Decoder(c, rngs=nnx.Rngs(0))
  try:
    loop.run(model, losses.next_token, r, tokens, tokens[:500], sys.argv[4])
  except loop.Stopped as ended:
    sys.exit(str(ended))
"""


def test_training_stops_together_and_goes_on_on_another_mesh(tmp_path):
  one, two = tmp_path / "one", tmp_path / "two"
  (code, _, why), = ended([start(
      "-c", TRAIN, ROOT, "alone", 0, one, "1x1x1", -1
  )])
  assert code == 0, why
  run = lambda mesh, at: (lambda where: ended([
      start("-c", TRAIN, ROOT, where, i, two, mesh, at) for i in range(2)
  ]))(address())
  for code, _, said in run("2x1x4", 5):
    assert code == 1 and "stopped by SIGTERM after step 6" in said, said
  assert [r[0] for r in run("4x2x1", -1)] == [0, 0]
  losses = [
      [json.loads(x)["loss"] for x in (f / "log.jsonl").read_text().split("\n")
       if x]
      for f in (one, two)
  ]
  assert len(losses[1]) == 12
  np.testing.assert_allclose(*losses, rtol=1e-4)


def test_one_process_alone_needs_no_agreement():
  assert processes.leads()
  assert processes.agreed({"a": 1}) == {"a": 1}
  assert processes.told(b"x") == b"x"
  assert not processes.anywhere(False)
  tree = processes.fetch({"x": np.arange(3), "n": 2})
  assert tree["n"] == 2
