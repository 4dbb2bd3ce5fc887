"""Meshes of fake devices write the same texts; layouts and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import engine, sharding
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Config, Decoder
from specjax.states import fork, outputs_of, prefill, refill

pytestmark = pytest.mark.usefixtures("quick_compiles")
CONFIG = Config(
    vocab=64, width=32, layers=2, heads=8, kv_heads=4, dim=8, mlp=64,
    qk_norm=True,
)
PROMPTS = [[1], [2, 3], [4] * 5, [6], [7, 8], [9] * 3, [10], list(range(12))]
SAMPLING = dict(
    temperature=[0.0, 1.0, 0.7, 1.0] * 2,
    top_p=[1.0, 0.9, 1.0, 1.0] * 2,
    top_k=[0, 0, 5, 0] * 2,
    repetition=[1.0, 1.2, 1.0, 1.0] * 2,
)


def texts(data, model):
  """Outputs of a prefill and of a refill on a mesh of this shape."""
  with jax.set_mesh(sharding.mesh(data, model)):
    target = Decoder(CONFIG, rngs=nnx.Rngs(0))
    drafter = Autoregressive(Decoder(CONFIG, rngs=nnx.Rngs(0)), 3)
    state = prefill(
        target, drafter, PROMPTS, max_new_tokens=10, sampling=SAMPLING,
        seed=3, eos=[0], logprobs=2, capacity=32, chunks=(4,),
    )
    assert jax.typeof(state.cache[0].k).sharding.spec[:2] == (
        "data", "model",
    )
    state, _ = engine.generate(target, drafter, state)
    first = outputs_of(state)
    new = [[5, 6]] + [None] * 7
    state = refill(
        target, drafter, state, new, max_new_tokens=5, chunks=(4,), eos=[0]
    )
    state = fork(state, list(range(8)), 3)
    state, tally = engine.generate(target, drafter, state)
    assert (np.asarray(tally.info.accepted) > 0).any()
    return first + outputs_of(state)


@pytest.fixture(scope="module")
def alone():
  return texts(1, 1)


@pytest.mark.parametrize("shape", [(2, 4), (8, 1)])
def test_the_mesh_shape_changes_no_text(alone, shape):
  assert texts(*shape) == alone


def test_no_mesh_needs_no_layout():
  assert sharding.spec("batch", "vocab") is None
  assert sharding.size("vocab") == 1


def test_names_become_axes_once():
  with jax.set_mesh(sharding.mesh(2, 4)):
    assert sharding.spec("batch", None, "vocab") == jax.P("data", None, "model")
    assert (sharding.size("batch"), sharding.size("heads")) == (2, 4)
    assert sharding.spec("unknown") == jax.P(None)


def test_put_copies_and_lays_out():
  x = jnp.arange(8)
  assert sharding.put(x, "batch").unsafe_buffer_pointer() != (
      x.unsafe_buffer_pointer()
  )
  with jax.set_mesh(sharding.mesh(4, 2)):
    y = sharding.put(np.arange(8), "batch")
    assert y.sharding.spec == jax.P("data")
    assert len(y.addressable_shards) == 8


@pytest.mark.parametrize("shape", [(0, 1), (9, 1), (3, 3), (1, -1)])
def test_a_mesh_that_the_devices_cannot_fill_is_refused(shape):
  with pytest.raises(ValueError, match="there are 8"):
    sharding.mesh(*shape)


@pytest.mark.parametrize(
    "field, value", [("heads", 6), ("kv_heads", 2), ("mlp", 66), ("vocab", 6)]
)
def test_what_does_not_divide_is_refused_with_both_numbers(field, value):
  changes = {"heads": dict(heads=6, kv_heads=6)}.get(field, {field: value})
  config = Config(**vars(CONFIG) | changes)
  with jax.set_mesh(sharding.mesh(2, 4)):
    with pytest.raises(ValueError, match=f"{field} = {value} .* 4 parts"):
      jax.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def test_rows_that_do_not_spread_over_the_mesh_are_refused(tiny):
  with jax.set_mesh(sharding.mesh(8, 1)):
    with pytest.raises(ValueError, match="3 prompts .* 8 data shards"):
      prefill(tiny.target, tiny.drafter, [[1]] * 3, max_new_tokens=1)
