"""Operations and bytes of programs that can be counted by hand."""

import jax
import jax.numpy as jnp
import pytest

from specjax.plan import counts
from specjax.plan.counts import Cost, Transfer

F = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)


def cost(function, *shapes, **options):
  program = jax.jit(function, **options).lower(*shapes).compile()
  return counts.cost(program.as_text()), program


def test_a_product():
  found, program = cost(lambda x, y: x @ y, F(64, 256), F(256, 512))
  assert found.flops == 2 * 64 * 256 * 512
  assert found.bytes == 4 * (64 * 256 + 256 * 512 + 64 * 512)
  assert found.flops == program.cost_analysis()["flops"]


def test_a_loop_counts_as_often_as_it_runs():
  """XLA's own analysis counts its body once."""
  body = lambda i, x: jnp.sin(x @ x)
  loop = lambda x: jax.lax.fori_loop(0, 7, body, x)
  found, program = cost(loop, F(64, 64))
  assert found.flops == 7 * 2 * 64**3
  assert program.cost_analysis()["flops"] < 0.5 * found.flops


def test_adding_reads_and_writes():
  found, _ = cost(lambda x: x + 1, F(512, 512))
  assert found == Cost(0, 2 * 4 * 512 * 512)


def test_an_update_in_place_moves_what_is_new():
  put = lambda x, y, i: jax.lax.dynamic_update_slice(x, y, (i, 0))
  found, _ = cost(
      put, F(4096, 64), F(4, 64), jax.ShapeDtypeStruct((), jnp.int32),
      donate_argnums=0,
  )
  assert found.bytes <= 4 * 4 * 64 * 4 + 64
  copied, _ = cost(
      put, F(4096, 64), F(4, 64), jax.ShapeDtypeStruct((), jnp.int32)
  )
  assert copied.bytes >= 2 * 4 * 4096 * 64


def test_a_slice_reads_its_part():
  found, _ = cost(lambda x: jnp.sum(x[:16] ** 2), F(4096, 64))
  assert 4 * 16 * 64 <= found.bytes < 4 * 4 * 16 * 64


def test_the_dearest_branch_counts():
  both = [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x]
  choose = lambda i, x: jax.lax.switch(i, both, x)
  found, _ = cost(choose, jax.ShapeDtypeStruct((), jnp.int32), F(64, 64))
  assert found.flops == 2 * 2 * 64**3


# As a TPU's text has them: products as convolutions, memory on the chip.
TPU = """HloModule m, num_partitions=4

%fused (a: bf16[2,4,1,256], b: bf16[512,256]) -> f32[5,512] {
  %a = bf16[5,256]{1,0} parameter(0)
  %b = bf16[512,256]{1,0} parameter(1)
  %n = bf16[1,5,256]{2,1,0} fusion(%a), kind=kLoop, calls=%turned
  %m = bf16[5,256]{1,0} bitcast(%n)
  ROOT %c = f32[5,512]{1,0} convolution(%m, %b), dim_labels=bf_oi->bf
}

%turned (x: bf16[5,256]) -> bf16[1,5,256] {
  %x = bf16[5,256]{1,0} parameter(0)
  ROOT %y = bf16[1,5,256]{2,1,0} bitcast(%x)
}

ENTRY %main (p: bf16[5,256], q: bf16[512,256]) -> f32[5,512] {
  %p = bf16[5,256]{1,0} parameter(0)
  %q = bf16[512,256]{1,0} parameter(1)
  %s = (bf16[512,256]{1,0:S(1)}, bf16[512,256]{1,0}, u32[]) copy-start(%q)
  %d = bf16[512,256]{1,0:S(1)} copy-done(%s)
  %f = f32[5,512]{1,0:S(1)} fusion(%p, %d), kind=kOutput, calls=%fused
  %r = f32[5,512]{1,0:S(1)} all-reduce(%f), replica_groups=[2,2]<=[4]
  %v = f32[4,5,128]{2,1,0:S(1)} bitcast(%r)
  %w = bf16[4,128,256]{2,1,0:S(1)} bitcast(%d)
  %k = f32[4,5,128]{2,1,0:S(1)} convolution(%v, %w), dim_labels=0bf_0oi->0bf, \
window={size=4 stride=3 pad=0_0 lhs_dilate=4}
  ROOT %o = f32[5,512]{1,0} copy(%r)
}
"""


def test_a_tpus_text():
  found = counts.cost(TPU)
  once, batched = 2 * 5 * 512 * 256, 2 * (4 * 5 * 128) * 256
  assert found.flops == once + batched
  # The weight to the chip, the rows read, the result written.
  assert found.bytes == 2 * 512 * 256 + 2 * 5 * 256 + 4 * 5 * 512
  assert found.transfers == {Transfer("all-reduce", 4 * 5 * 512, 2): 1}


def test_costs_add_up():
  one = Cost(1.0, 2.0, counts.Counter({Transfer("all-reduce", 8, 4): 2}))
  three = one.plus(one, 2)
  assert three == Cost(3.0, 6.0, {Transfer("all-reduce", 8, 4): 6})
  assert three.plus(three, -1) == Cost()


@pytest.mark.parametrize("times", [0, 3])
def test_a_loop_that_never_runs_costs_nothing(times):
  body = lambda x, _: (x @ x, None)
  scan = lambda x: jax.lax.scan(body, x, None, length=times)[0]
  found, _ = cost(scan, F(32, 32))
  assert found.flops == times * 2 * 32**3
