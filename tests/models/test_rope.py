"""Rotary frequencies against formulas written from the papers' own words."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.rope import Rope, angles, rotate


def base(theta, dim):
  return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def test_plain_and_linear():
  np.testing.assert_allclose(Rope().frequencies(8), base(10_000, 8))
  linear = Rope(theta=500.0, scaling="linear", factor=4.0)
  np.testing.assert_allclose(
      linear.frequencies(8), np.array(base(500, 8)) / 4
  )


def test_partial_rotates_the_first_entries_only():
  rope = Rope(fraction=0.25)
  np.testing.assert_allclose(rope.frequencies(16), base(10_000, 4))
  x = np.random.default_rng(0).standard_normal((1, 3, 2, 16))
  x = jnp.asarray(x, jnp.float32)
  y = rotate(x, *angles(rope, jnp.array([[5, 6, 7]]), 16))
  np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
  assert np.all(np.any(y[..., :4] != x[..., :4], -1))


def test_llama3_by_wavelength():
  rope = Rope(theta=5e5, scaling="llama3", factor=8.0, original=8192)
  want = []
  for f in base(5e5, 64):
    length = 2 * math.pi / f
    if length < 8192 / 4.0:
      want.append(f)
    elif length > 8192 / 1.0:
      want.append(f / 8)
    else:
      smooth = (8192 / length - 1.0) / (4.0 - 1.0)
      want.append((1 - smooth) * f / 8 + smooth * f)
  np.testing.assert_allclose(rope.frequencies(64), want, rtol=1e-12)
  assert len({round(w / f, 6) for w, f in zip(want, base(5e5, 64))}) > 3


def test_yarn_by_rotations():
  theta, dim, factor, original = 1e4, 32, 4.0, 2048
  rope = Rope(theta=theta, scaling="yarn", factor=factor, original=original)
  place = lambda turns: dim / 2 * (
      math.log(original / (2 * math.pi * turns)) / math.log(theta)
  )
  low, high = math.floor(place(32)), math.ceil(place(1))
  want = []
  for i, f in enumerate(base(theta, dim)):
    ramp = min(max((i - low) / (high - low), 0), 1)
    want.append(f / factor * ramp + f * (1 - ramp))
  np.testing.assert_allclose(rope.frequencies(dim), want, rtol=1e-12)
  assert rope.amplitude() == pytest.approx(0.1 * math.log(4) + 1)
  assert Rope(scaling="yarn", factor=4.0, attention=0.7).amplitude() == 0.7
  assert Rope(scaling="yarn").amplitude() == 1.0
  assert Rope(scaling="linear", factor=4.0).amplitude() == 1.0


def test_rotation_is_that_of_complex_numbers():
  x = np.random.default_rng(0).standard_normal((1, 2, 1, 8))
  pos = np.array([[3, 1000]])
  y = rotate(jnp.asarray(x, jnp.float32), *angles(Rope(), jnp.array(pos), 8))
  turn = np.exp(1j * pos[..., None, None] * np.array(base(10_000, 8)))
  want = (x[..., :4] + 1j * x[..., 4:]) * turn
  np.testing.assert_allclose(y[..., :4], want.real, atol=1e-4)
  np.testing.assert_allclose(y[..., 4:], want.imag, atol=1e-4)


def test_yarn_scales_what_it_rotates():
  rope = Rope(scaling="yarn", factor=4.0, attention=2.0)
  x = jnp.ones((1, 1, 1, 8))
  y = rotate(x, *angles(rope, jnp.array([[9]]), 8))
  assert float(jnp.sum(y**2)) == pytest.approx(4 * 8, rel=1e-5)


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"scaling": "ntk"}, "scaling 'ntk'"),
        ({"theta": 0.0}, "theta = 0.0"),
        ({"factor": 0.0}, "factor = 0.0"),
        ({"original": 0}, "original = 0"),
    ],
)
def test_settings_without_meaning_are_refused(fields, text):
  with pytest.raises(ValueError, match=f"^Rope: {text}"):
    Rope(**fields)
