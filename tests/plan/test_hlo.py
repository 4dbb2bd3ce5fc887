"""Copies, collectives, aliases, loops of programs whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sharding
from specjax.plan import counts, hlo

F = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
BYTES = 1024 * 256 * 4


def text(function, *shapes, **options):
  return jax.jit(function, **options).lower(*shapes).compile().as_text()


def over_eight(body, out):
  """The text of a program whose `body` runs on each of 8 devices."""
  with jax.set_mesh(sharding.mesh(1, 8)):
    run = jax.shard_map(
        body, in_specs=jax.P("model"), out_specs=out, check_vma=False
    )
    cut = jax.NamedSharding(jax.sharding.get_mesh(), jax.P("model"))
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=cut)
    return text(run, x)


ONE = [
    ("all-reduce", lambda x: jax.lax.psum(x, "model"), jax.P(), 8 * 128 * 4),
    ("all-gather", lambda x: jax.lax.all_gather(x, "model", tiled=True),
     jax.P(), 64 * 128 * 4),
    ("reduce-scatter", lambda x: jax.lax.psum_scatter(x, "model", tiled=True),
     jax.P("model"), 8 * 128 * 4),
    ("all-to-all", lambda x: jax.lax.all_to_all(
        x, "model", 1, 0, tiled=True
    ), jax.P("model"), 8 * 128 * 4),
]


@pytest.mark.parametrize("kind, body, out, size", ONE, ids=lambda x: str(x)[:9])
def test_a_collective_is_found_with_its_bytes_and_chips(kind, body, out, size):
  (found,) = hlo.collectives(over_eight(body, out))
  assert (found.kind, found.bytes, found.group) == (kind, size, 8)


def test_a_permutation_joins_two():
  ring = [(i, (i + 1) % 8) for i in range(8)]
  body = lambda x: jax.lax.ppermute(x, "model", ring)
  (found,) = hlo.collectives(over_eight(body, jax.P("model")))
  assert (found.kind, found.group) == ("collective-permute", 2)


def test_a_collective_in_a_loop_stands_once_and_counts_as_it_runs():
  def body(x):
    again = lambda i, x: jax.lax.psum(x, "model") / (2.0 + i)
    return jax.lax.fori_loop(0, 5, again, x)

  found = over_eight(body, jax.P())
  (one,) = hlo.collectives(found)
  assert one.computation != hlo.parse(found).entry
  run = counts.cost(found).transfers
  assert run == {counts.Transfer("all-reduce", 8 * 128 * 4, 8): 5}


def test_no_collective_where_nothing_is_shared():
  assert hlo.collectives(over_eight(lambda x: x + 1, jax.P("model"))) == []


def test_what_is_donated_is_aliased_and_not_copied():
  set_one = lambda x: x.at[3].set(1.0)
  kept = text(set_one, F, donate_argnums=0)
  assert list(hlo.aliases(kept).values()) == [0]
  assert hlo.copies(kept, BYTES) == []


def test_what_is_not_donated_is_copied():
  """Or the empty list above would mean nothing."""
  found = text(lambda x: x.at[3].set(1.0), F)
  assert hlo.aliases(found) == {}
  (copy,) = hlo.copies(found, BYTES)
  assert copy.array.dims == (1024, 256) and copy.array.bytes == BYTES
  assert hlo.copies(found, BYTES + 1) == []


def test_an_alias_of_one_of_several():
  found = text(
      lambda x, y: (y.sum(), x * 2, y + 1), F,
      jax.ShapeDtypeStruct((7,), jnp.int32), donate_argnums=0,
  )
  assert hlo.aliases(found) == {"1": 0}


def test_a_shape_is_read_with_its_memory():
  bf16, flags, scalar = hlo.arrays(
      "(bf16[2,8]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[16]{0}, f32[])"
  )
  assert (bf16.bytes, bf16.space, bf16.dims) == (32, 1, (2, 8))
  assert (flags.bytes, flags.space) == (16, 0)
  assert (scalar.bytes, scalar.elements) == (4, 1)


# A TPU's compiler does not say how often; the condition and the start do.
COUNTED = """HloModule m
%body (b: (f32[8], s32[])) -> (f32[8], s32[]) {
  ROOT %b = (f32[8]{0}, s32[]) parameter(0)
}
%condition (c: (f32[8], s32[])) -> pred[] {
  %c = (f32[8]{0}, s32[]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=1
  %end = s32[]{:T(128)} constant(11)
  ROOT %less = pred[]{:T(512)} compare(%i, %end), direction=LT
}
ENTRY %main (x: f32[8]) -> (f32[8], s32[]) {
  %x = f32[8]{0} parameter(0)
  %two = s32[]{:T(128)} constant(2)
  %t = (f32[8]{0}, s32[]) tuple(%x, %two)
  ROOT %w = (f32[8]{0}, s32[]) while(%t), condition=%condition, body=%body
}
"""


def loops(found):
  program = hlo.parse(found)
  return [
      hlo.trips(program, name, op) for name, op in hlo.ops(found)
      if op.code == "while"
  ]


def test_loops_tell_their_trips():
  square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
  again = lambda x: jax.lax.fori_loop(2, 11, lambda i, x: x @ x + i, x)
  found = text(again, square)
  assert loops(found) == [9]
  assert loops(COUNTED) == [9]
  unknown = lambda x: jax.lax.while_loop(
      lambda x: x.sum() < 9, lambda x: x + 1, x
  )
  assert loops(text(unknown, F)) == [None]


def test_every_op_is_read():
  """As many as the text has lines that define one."""
  found = over_eight(lambda x: jnp.sort(jax.lax.psum(x, "model")), jax.P())
  lines = [x for x in found.splitlines() if x.startswith("  ") and " = " in x]
  assert len(list(hlo.ops(found))) == len(lines) > 5


def test_a_text_without_an_entry_is_refused():
  with pytest.raises(ValueError, match="no ENTRY"):
    hlo.parse("HloModule empty\n")


def test_copies_to_the_chip_are_no_copies():
  moved = """HloModule m
ENTRY %main (p: f32[64]) -> f32[64] {
  %p = f32[64]{0} parameter(0)
  %s = (f32[64]{0:S(1)}, f32[64]{0}, u32[]) copy-start(%p)
  %d = f32[64]{0:S(1)} copy-done(%s)
  %t = (f32[64]{0}, f32[64]{0}, u32[]) copy-start(%p)
  ROOT %e = f32[64]{0} copy-done(%t)
}
"""
  (only,) = hlo.copies(moved)
  assert np.prod(only.array.dims) == 64 and only.array.space == 0
