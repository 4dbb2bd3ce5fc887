"""Shapes that are compiled for are those that the engine makes."""

import dataclasses

import jax
import pytest

from specjax import sharding
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Config
from specjax.plan import programs
from specjax.plan.chips import CHIPS, slice_of
from specjax.plan.programs import Shape
from specjax.states import prefill
from specjax.testing.pair import decoder

C = Config(
    vocab=64, width=32, layers=8, heads=8, kv_heads=4, dim=8, mlp=64,
    dtype="bfloat16",
)
HYBRID = dataclasses.replace(C, layers=12, windows=(16, 16, 0) * 4)


def test_two_depths_that_hold_whole_periods():
  assert programs.depths(C) == (2, 6)
  assert programs.depths(dataclasses.replace(C, layers=6)) == (6,)
  assert programs.depths(HYBRID) == (3, 6)
  mixed = dict(experts=4, chosen=2, expert_mlp=16)
  first = dataclasses.replace(C, dense=(0,), **mixed)
  assert programs.depths(first) == (8,)  # no period: it is whole


def test_a_cut_keeps_the_kinds_of_its_layers():
  found = programs.cut(HYBRID, 3)
  assert (found.layers, found.windows) == (3, (16, 16, 0))
  assert programs.cut(found, 3) == found


def leaves(state):
  return [
      (jax.tree_util.keystr(path), x.shape, x.dtype, jax.typeof(x).sharding)
      for path, x in jax.tree.leaves_with_path(state)
  ]


@pytest.mark.usefixtures("quick_compiles")
@pytest.mark.parametrize("narrow", [0, 1])
def test_a_state_is_that_of_prefill(narrow):
  with jax.set_mesh(sharding.mesh(2, 4, narrow=narrow or None)):
    shape = dict(layers=2, heads=8, kv_heads=4)
    target = decoder(64, **shape)
    if narrow:
      with sharding.narrowed():
        model = programs.Narrow(decoder(64, seed=1, **shape))
    else:
      model = decoder(64, seed=1, **shape)
    drafter = Autoregressive(model, 3)
    real = prefill(
        target, drafter, [[1]] * 2, max_new_tokens=1, capacity=384, eos=[0]
    )
    ours = programs.state(target, drafter, Shape(2, 384))
    assert leaves(ours) == leaves(real)


def test_what_a_chip_holds():
  with jax.set_mesh(sharding.mesh(1, 8)):
    small = dataclasses.replace(C, layers=1, kv_heads=8)
    model = programs.model(small)
    block, tables = 4 * 32 * 64 + 3 * 32 * 64, 2 * 64 * 32
    assert programs.held(model) == 2 * ((block + tables) // 8 + 3 * 32)
  assert programs.parameters(small) == block + tables + 3 * 32


def test_a_page_about_memory_is_one_clause():
  said = programs.exhausted(
      "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM,"
      " the total memory required for temporaries (33.05G) exceeds available"
      " HBM (30.75G). HLO module: jit_step.\nSee https://example.com"
  )
  assert "needs 33.05 GiB, 2.30 GiB more than the 30.75 GiB" in said
  assert "no room" in programs.exhausted("RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    "word", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"]
)
def test_a_chip_gives_what_the_table_says(libtpu, word):
  """By the compiler's own message about a program that needs more."""
  place = slice_of(word)
  with jax.set_mesh(programs.mesh(place)):
    size = int(CHIPS[place.chip.name].memory * 2**30 / 4)
    huge = jax.ShapeDtypeStruct((2 * size,), "float32")
    with pytest.raises(programs.Exhausted) as error:
      programs.compiled(jax.jit(lambda x: x + 1).lower(huge))
  assert f"than the {place.chip.usable:g} GiB" in str(error.value)


def test_a_slice_that_does_not_exist_is_refused(libtpu):
  with pytest.raises(ValueError, match="libtpu cannot compile for it"):
    programs.mesh(slice_of("v4:3x5x7"))


def test_without_a_compiler_one_sentence(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"pip install '\.\[plan\]'"):
    programs.mesh(slice_of("v4:2x2x1"))
