"""Runs of a micro model, broken in every way; also a script, to be killed."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from specjax.models.decoder import Config, Decoder
from specjax.sharding import mesh
from specjax.train import data, loop, losses
from specjax.train.recipe import Recipe, optimiser

STEPS, SAVE, BREAK = 10, 3, 7
MICRO = dict(vocab=32, width=16, layers=1, heads=2, kv_heads=2, dim=8, mlp=32)


def _run(folder, *, fill=None, **changes):
  recipe = dict(
      steps=STEPS,
      batch=4,
      length=8,
      matrix_rate=0.02,
      other_rate=0.01,
      warmup=2,
      decay=4,
      save_every=SAVE,
      eval_every=5,
      eval_batches=2,
  )
  r = Recipe(**recipe | changes)
  tokens = np.random.default_rng(0).integers(0, 32, 2000) // 2 * 2
  model = Decoder(Config(**MICRO), rngs=nnx.Rngs(0))
  if fill is not None:
    model = jax.tree.map(lambda x: jax.numpy.full_like(x, fill), model)
  return loop.run(model, losses.next_token, r, tokens, tokens[:500], folder)


def _log(folder):
  lines = (pathlib.Path(folder) / "log.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def _timeless(lines):
  return [{k: v for k, v in x.items() if k != "seconds"} for x in lines]


def _at_step(monkeypatch, action):
  """Runs `action` when the batch after step BREAK is asked for."""
  real = data.batch

  def batch(array, step, *rest):
    if step == BREAK:
      action()
    return real(array, step, *rest)

  monkeypatch.setattr(data, "batch", batch)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """(arrays, log, folder) of a whole run; the others take its program."""
  jax.clear_caches()  # of what `quick_compiles` rounds otherwise than a child
  cache = str(tmp_path_factory.mktemp("programs"))
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAX_COMPILATION_CACHE_DIR", cache)  # for children
    patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    folder = tmp_path_factory.mktemp("unbroken")
    yield loop.named(_run(folder)), _log(folder), folder
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1)


def _assert_same(model, folder, unbroken):
  arrays, lines, _ = unbroken
  assert _timeless(_log(folder)) == _timeless(lines)
  for name, x in loop.named(model).items():
    np.testing.assert_array_equal(x, arrays[name], err_msg=name)


def _child(folder, how, **env):
  return subprocess.run(
      [sys.executable, __file__, str(folder), how],
      env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | env,
      stderr=subprocess.PIPE,
      text=True,
  )


def test_the_log_tells_the_run(unbroken):
  lines = unbroken[1]
  assert [x["step"] for x in lines] == list(range(1, STEPS + 1))
  assert [x["tokens"] for x in lines][-1] == STEPS * 4 * 8
  assert [x["step"] for x in lines if "heldout" in x] == [5, 10]
  assert lines[-1]["heldout"] < lines[0]["loss"]
  np.testing.assert_allclose(
      [x["lr"] for x in lines],
      0.02 * np.array([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
      rtol=1e-6,
  )
  assert all(a["seconds"] <= b["seconds"] for a, b in zip(lines, lines[1:]))


def test_killed_run_goes_on_as_if_unbroken(tmp_path, unbroken):
  assert _child(tmp_path, "kill").returncode == -signal.SIGKILL
  assert len(_log(tmp_path)) == BREAK  # one past the checkpoint of step 6
  with (tmp_path / "log.jsonl").open("a") as log:
    log.write('{"step": 8, "lo')  # a line cut by the kill
  _assert_same(_run(tmp_path), tmp_path, unbroken)
  kept = {p.name for p in (tmp_path / "checkpoints").iterdir()}
  assert kept == {"9", "10"}


def test_sigterm_saves_and_says_so(tmp_path, unbroken, monkeypatch):
  with monkeypatch.context() as patch:
    _at_step(patch, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(loop.Stopped, match="after step 8 of 10"):
      _run(tmp_path)
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  assert (tmp_path / "checkpoints" / "8").is_dir()
  _assert_same(_run(tmp_path), tmp_path, unbroken)


def test_a_finished_run_is_not_run_again(tmp_path, unbroken, monkeypatch):
  shutil.copytree(unbroken[2], tmp_path, dirs_exist_ok=True)
  monkeypatch.setattr(data, "batch", None)
  _assert_same(_run(tmp_path, fill=0), tmp_path, unbroken)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, unbroken):
  with pytest.raises(FloatingPointError, match="loss of step 1 is nan"):
    _run(tmp_path, fill=np.nan)
  assert _log(tmp_path) == []
  assert not list((tmp_path / "checkpoints").iterdir())


def test_a_checkpoint_of_another_model_is_named(unbroken, monkeypatch):
  monkeypatch.setitem(MICRO, "layers", 2)
  with pytest.raises(ValueError, match=r"blocks\.1.* no array there"):
    _run(unbroken[2])


@pytest.mark.slow
def test_a_mesh_changes_nothing(tmp_path, unbroken):
  flag = (
      "--xla_force_host_platform_device_count=4"
      " --xla_backend_optimization_level=0"  # compiles sooner
  )
  child = _child(tmp_path, "mesh", XLA_FLAGS=flag)
  assert child.returncode == 0, child.stderr
  pick = lambda lines: [x["loss"] for x in lines]
  np.testing.assert_allclose(
      pick(_log(tmp_path)), pick(unbroken[1]), rtol=1e-3
  )


def test_names_survive_sorting():
  build = lambda: Decoder(Config(**MICRO | {"layers": 11}), rngs=nnx.Rngs(0))
  model = jax.eval_shape(build)
  names = loop.named(model)
  assert list(names) != sorted(names)  # blocks.10 comes before blocks.2
  again = loop.named(loop.like(model, dict(sorted(names.items()))))
  assert list(again) == list(names)
  assert all(again[n] is names[n] for n in names)


def test_muon_has_the_blocks_matrices_and_adam_the_rest():
  build = lambda: Decoder(
      Config(**MICRO | {"layers": 2, "qk_norm": True}), rngs=nnx.Rngs(0)
  )
  params = loop.named(jax.eval_shape(build))
  r = Recipe(9, 1, 1, matrix_rate=0.1, other_rate=0.1, warmup=0, decay=0)
  state = loop.named(jax.eval_shape(optimiser(r, params).init, params))
  of = lambda kind: {
      name
      for name in params
      if any(f".{kind}." in s and s.endswith(f".mu.{name}") for s in state)
  }
  assert len(of("muon")) == 2 * 7  # q, k, v, o, gate, up, down
  assert not any("norm" in name for name in of("muon"))
  assert {"embedding", "free_head", "final_norm.weight"} <= of("adam")
  assert not of("muon") & of("adam")
  assert of("muon") | of("adam") == params.keys()


@pytest.mark.parametrize("bad", [{"warmup": 7}, {"steps": 0}, {"decay": -1}])
def test_a_recipe_that_cannot_be_followed_is_refused(tmp_path, bad):
  with pytest.raises(ValueError, match="^recipe: "):
    _run(tmp_path, **bad)


if __name__ == "__main__":
  if sys.argv[2] == "mesh":
    with jax.set_mesh(mesh(2, 2)):
      _run(sys.argv[1])
  else:
    with pytest.MonkeyPatch.context() as patch:
      _at_step(patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
      _run(sys.argv[1])
