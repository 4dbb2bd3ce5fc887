"""Meshes of fake devices write the same texts; layouts and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import engine, sharding, testing
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Config, Decoder
from specjax.models.narrow import Narrow
from specjax.states import fork, outputs_of, prefill, refill
from specjax.train import losses

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


def texts(data, model, prompts=PROMPTS, narrow=None, **changes):
  """Outputs of a prefill and of a refill on a mesh of this shape."""
  config = dataclasses.replace(CONFIG, **changes)
  B = len(prompts)
  with jax.set_mesh(sharding.mesh(data, model, narrow=narrow)):
    target = Decoder(config, rngs=nnx.Rngs(0))
    with sharding.narrowed():
      small = Decoder(config, rngs=nnx.Rngs(0))
    drafter = Autoregressive(small if narrow is None else Narrow(small), 3)
    state = prefill(
        target, drafter, prompts, max_new_tokens=10,
        sampling={k: x[:B] for k, x in SAMPLING.items()},
        seed=3, eos=[0], logprobs=2, capacity=32, chunks=(4,),
    )
    caches = state.cache[0].k, state.draft[0].k
    part = [x.addressable_shards[0].data.shape[:2] for x in caches]
    state, _ = engine.generate(target, drafter, state)
    first = outputs_of(state)
    new = [[5, 6]] + [None] * (B - 1)
    state = refill(
        target, drafter, state, new, max_new_tokens=5, chunks=(4,), eos=[0]
    )
    state = fork(state, list(range(B)), 3)
    state, tally = engine.generate(target, drafter, state)
    assert (np.asarray(tally.info.accepted) > 0).any()
    return first + outputs_of(state), part


@pytest.fixture(scope="module")
def alone():
  return texts(1, 1)[0]


@pytest.mark.parametrize("shape, part", [((2, 4), (4, 1)), ((8, 1), (1, 4))])
def test_the_mesh_shape_changes_no_text(alone, shape, part):
  found, parts = texts(*shape)
  assert found == alone
  assert parts == [part, part]


def test_fewer_kv_heads_than_parts_are_repeated_one_a_part(alone):
  found, parts = texts(1, 8)
  assert found == alone
  assert parts == [(8, 1)] * 2


@pytest.mark.parametrize("narrow, part", [(1, (8, 4)), (2, (8, 2))])
def test_a_drafter_is_cut_over_fewer_parts_than_the_target(
    alone, narrow, part
):
  found, parts = texts(1, 8, narrow=narrow)
  assert found == alone
  assert parts == [(8, 1), part]


@pytest.mark.parametrize("many", [1, 3, 7])
def test_rows_that_do_not_spread_get_unused_ones_beside_them(alone, many):
  found, _ = texts(4, 2, prompts=PROMPTS[:many])
  # A refill of row 0, and what the others wrote before, as on one device.
  assert found[:many] == alone[:many]
  assert found[many:] == alone[8 : 8 + many]


@pytest.mark.parametrize(
    "changes", [dict(heads=6, kv_heads=6), dict(heads=6, kv_heads=3),
                dict(mlp=66), dict(vocab=65)],
)
def test_what_does_not_divide_is_whole_on_each_part_and_said(caplog, changes):
  sharding._tell.cache_clear()
  there, _ = texts(1, 1, **changes)
  assert not caplog.messages
  found, _ = texts(2, 4, **changes)
  assert found == there
  name, n = list(changes.items())[-1]
  said = [m for m in caplog.messages if f"{name} = {n} " in m]
  assert len(said) == 1 and " 4 parts" in said[0]


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
  with pytest.raises(ValueError, match="devices, of 8; choose"):
    sharding.mesh(*shape)


@pytest.mark.parametrize("narrow", [3, 0, 16])
def test_parts_of_a_drafter_must_divide_the_target_s(narrow):
  with pytest.raises(ValueError, match=f"{narrow} parts .* the 4 model"):
    sharding.mesh(2, 4, narrow=narrow)


def test_weights_are_kept_in_parts_over_fsdp_and_used_whole():
  tokens = np.arange(8 * 9).reshape(8, 9) % 64
  run = lambda model, tokens: jax.value_and_grad(losses.next_token)(
      model, tokens
  )
  want = run(Decoder(CONFIG, rngs=nnx.Rngs(0)), jnp.asarray(tokens))
  with jax.set_mesh(sharding.mesh(2, 2, fsdp=2)):
    model = Decoder(CONFIG, rngs=nnx.Rngs(0))
    got = jax.jit(run)(model, sharding.put(tokens, "batch", None))
    weight = model.blocks[0].mlp.up[...]
    grad = got[1].blocks[0].mlp.up[...]
    for x in (weight, grad):
      assert x.sharding.spec == jax.P("model", "fsdp")
      assert x.addressable_shards[0].data.shape == (32, 16)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4), (8, 1)])
def test_the_law_holds_on_a_mesh(shape):
  with jax.set_mesh(sharding.mesh(*shape)):
    target = testing.decoder(heads=4, kv_heads=2)
    drafter = Autoregressive(testing.decoder(seed=1, heads=4, kv_heads=2), 2)
    testing.check_law(target, drafter, [[0, 1, 2, 3, 4, 0]], rows=16_384)
