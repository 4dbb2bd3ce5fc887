"""The protocol with processes of a few lines; transformers where it is.

SPECJAX_PEER names another Python that has torch and transformers.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from specjax import engine, pretrained, states
from specjax.bench import peers
from specjax.checkpoint.safetensors import named
from specjax.drafters.nothing import Nothing
from specjax.testing import pair

ASK = dict(new_tokens=2, mode="plain", temperature=0.0, k=0, seed=0)
TEXT = dict(tokens=[5, 6], seconds=0.5, first=0.25, later=1)
READY = f"""
import json, os, signal, sys, time
say = lambda x: print(json.dumps(x), flush=True)
job = json.loads(sys.stdin.readline())
say(dict(versions=dict(threads=os.environ["OMP_NUM_THREADS"], job=job)))
job = json.loads(sys.stdin.readline())
text = {TEXT!r}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("target")
  peers.export(pair.decoder(32), path)
  return path


@pytest.fixture
def peer(folder, tmp_path, monkeypatch):
  """Starts a peer whose process is `code`; ends it after the test."""
  begun = []

  def start(code, timeout=60.0, drafter=None):
    file = tmp_path / "process.py"
    file.write_text(code)
    monkeypatch.setattr(peers, "PROCESS", file)
    begun.append(peers.Peer(folder, drafter, "float32", 3, timeout=timeout))
    return begun[-1]

  yield start
  for p in begun:
    p.close()


def test_a_job_and_its_answer(peer, folder):
  with peer(READY + "say(text | dict(tokens=job['tokens']))") as p:
    assert p.versions["threads"] == "3"
    assert p.versions["job"] == dict(
        target=str(folder), drafter=None, dtype="float32", threads=3
    )
    assert p.generate([7, 8], **ASK) == TEXT | dict(tokens=[7, 8])
  with pytest.raises(ValueError, match="has ended"):
    p.generate([7, 8], **ASK)


@pytest.mark.parametrize("code, words", [
    ("print('loading', file=sys.stderr); sys.exit('no \\x1b[1m memory')",
     r"with status 1 \(no \?\[1m memory\)\."),
    ("sys.exit(3)", r"with status 3\."),
    ("os.kill(os.getpid(), signal.SIGKILL)", r"by signal 9\."),
    ("print('Downloading')", "no answer"),
    ("print('[' * 100000)", "no answer"),
    ("print(3)", "no answer"),
    ("say(dict(text, seconds='1'))", "no answer"),
    ("while True: print('x' * 10**6, end='')", "no answer"),
    ("say(dict(error='KeyError:\\n a\\n' + 'x' * 1000))", "KeyError: a x+\\.$"),
    ("say(dict(missing='torch'))", "no torch; run pip install"),
], ids=lambda x: x[:9])
def test_a_fault_ends_in_one_sentence(peer, code, words):
  p = peer(READY + code)
  with pytest.raises(ValueError, match=words) as caught:
    p.generate([1], **ASK)
  said = str(caught.value)
  assert "\n" not in said and len(said) < 300 and said.endswith(".")
  with pytest.raises(ValueError, match="has ended"):
    p.generate([1], **ASK)


def test_it_may_fail_before_it_reads(peer):
  with pytest.raises(ValueError, match=r"with status 2 \(no\)"):
    peer("import sys; print('no', file=sys.stderr); sys.exit(2)")


@pytest.mark.parametrize("end", [0, 1])
def test_it_may_close_an_end(peer, monkeypatch, end):
  monkeypatch.setattr(peers, "GRACE", 0.5)
  code = READY.replace("job = json.loads(sys.stdin.readline())\ntext", "text")
  with peer(code + f"os.close({end}); time.sleep(60)") as p:
    time.sleep(0.5)
    with pytest.raises(ValueError, match="stopped to listen"):
      p.generate([1], **ASK)


@pytest.mark.parametrize(
    "code", ["", READY + "time.sleep(60)"], ids=["load", "text"]
)
def test_a_hang_ends_at_its_time(peer, code):
  start = time.monotonic()
  with pytest.raises(ValueError, match="not done within"):
    peer(code or "import time; time.sleep(60)", 2.0).generate([1], **ASK)
  assert time.monotonic() - start < 30


@pytest.mark.parametrize("change, words", [
    (dict(mode="fast"), "mode 'fast' is none of plain, assisted, lookup"),
    (dict(mode="assisted", k=2), "needs a drafter"),
    (dict(mode="lookup"), "k = 0"),
    (dict(new_tokens=0), "new_tokens = 0"),
    (dict(tokens=[]), "0 prompt tokens"),
])
def test_what_is_asked_is_checked(peer, change, words):
  p = peer(READY + "say(text)")
  with pytest.raises(ValueError, match=words):
    p.generate(**dict(tokens=[1]) | ASK | change)
  assert p.generate([1], **ASK) == TEXT  # it was not disturbed


def test_what_it_is_made_of_is_checked(folder, tmp_path):
  with pytest.raises(ValueError, match="config.json"):
    peers.Peer(tmp_path, None, "float32", 1)
  with pytest.raises(ValueError, match="config.json"):
    peers.Peer("org/name", None, "float32", 1)  # no id of a hub
  peers.export(pair.decoder(16), tmp_path / "small")
  with pytest.raises(ValueError, match="16 tokens, the target's 32"):
    peers.Peer(folder, tmp_path / "small", "float32", 1)
  with pytest.raises(ValueError, match="dtype = int8"):
    peers.Peer(folder, None, "int8", 1)
  with pytest.raises(ValueError, match="threads = 0"):
    peers.Peer(folder, None, "float32", 0)
  with pytest.raises(ValueError, match="cannot be run.*torch"):
    peers.Peer(folder, None, "float32", 1, str(tmp_path / "python"))


def test_the_process_says_what_is_missing(folder):
  if importlib.util.find_spec("torch"):
    pytest.skip("torch is here")
  with pytest.raises(ValueError, match="has no torch; run pip install"):
    peers.Peer(folder, None, "float32", 1)


def test_the_process_ends_with_what_began_it():
  job = dict(target=None, drafter=None, dtype="float32", threads=1)
  busy = "import runpy, sys, time\nsys.modules['torch'] = None\n" + (
      f"there = runpy.run_path({str(peers.PROCESS)!r})\n"
      "there['main'].__globals__['begin'] = lambda job: time.sleep(60)\n"
      "there['main']()\n"
  )
  process = subprocess.Popen(
      [sys.executable, "-c", busy], stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
  )
  process.stdin.write(json.dumps(job).encode() + b"\n")
  process.stdin.flush()
  try:
    with pytest.raises(subprocess.TimeoutExpired):
      process.wait(1)
    process.stdin.close()
    assert process.wait(20) == 0
  finally:
    process.kill()
    process.wait()


def same(a, b):
  ours, theirs = named(a), named(b)
  assert ours.keys() == theirs.keys()
  for name, x in ours.items():
    np.testing.assert_array_equal(x, theirs[name])


@pytest.mark.parametrize("fields", [
    dict(), dict(qk_norm=True), dict(tied=True, qk_norm=True),
    dict(qkv_bias=True, out_bias=True), dict(act="gelu_tanh"),
    dict(dtype="bfloat16"),
])
def test_a_decoder_comes_back_as_it_was(tmp_path, fields):
  model = pair.decoder(32, **fields)
  peers.export(model, tmp_path, model.c.dtype)
  again = pretrained.find(str(tmp_path)).load(model.c.dtype)
  assert again.c == model.c
  same(model, again)


def test_what_was_found_is_written_again(tmp_path, folder):
  peers.export(pretrained.find(str(folder)), tmp_path / "b", "bfloat16")
  found = pretrained.find(str(tmp_path / "b"))
  assert found.dtype == "bfloat16"
  same(found.load("bfloat16"), pretrained.find(str(folder)).load("bfloat16"))


@pytest.mark.parametrize("fields", [
    dict(norm="layer"), dict(windows=(4,)), dict(logit_cap=30.0),
    dict(qkv_bias=True), dict(qk_norm=True, mlp_bias=True),
])
def test_another_shape_is_refused(tmp_path, fields):
  with pytest.raises(ValueError, match="differs from both"):
    peers.export(pair.decoder(32, **fields), tmp_path)
  assert not list(tmp_path.iterdir())


def text(model, tokens, new):
  state = states.prefill(
      model, Nothing(), [tokens], max_new_tokens=new,
      sampling=dict(temperature=0.0),
  )
  state, _ = engine.generate(model, Nothing(), state)
  return list(map(int, states.outputs_of(state)[0]))


@pytest.fixture(scope="module")
def python():
  found = os.environ.get("SPECJAX_PEER")
  if not found:
    for name in ("torch", "transformers"):
      pytest.importorskip(name)
  return found or sys.executable


HABITS = dict(eos_token_id=list(range(32)), do_sample=True, top_k=1,
              repetition_penalty=9.0, num_assistant_tokens=1)


def test_transformers_writes_the_same(python, tmp_path, folder):
  drafter = tmp_path / "drafter"
  peers.export(pair.decoder(32, boost=4.0), drafter)
  for path in (folder, drafter):  # what files say of generation is not asked
    (path / "generation_config.json").write_text(json.dumps(HABITS))
  prompt = [5, 6] * 4
  expected = text(pretrained.find(str(folder)).load("float32"), prompt, 24)
  with peers.Peer(folder, drafter, "float32", 1, python) as p:
    assert set(p.versions) == {"python", "torch", "transformers"}
    for mode in peers.MODES:
      got = p.generate(prompt, 24, mode, 0.0, 3, 0)
      assert got["tokens"] == expected
      assert got["first"] > 0 and got["seconds"] > 0
      assert got["later"] == 23 if mode == "plain" else 0 < got["later"] < 24
      once, again, other = (
          p.generate(prompt, 24, mode, 1.0, 3, seed)["tokens"]
          for seed in (0, 0, 1)
      )
      assert once == again != other
    with pytest.raises(ValueError, match="IndexError"):
      p.generate([99], 4, "plain", 0.0, 1, 0)
