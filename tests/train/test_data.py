import numpy as np
import pytest

from specjax.train import data


def test_a_batch_depends_on_seed_and_step_alone():
  array = np.arange(1000, dtype=np.uint16)
  get = lambda step, seed: data.batch(array, step, seed, 4, 16)
  first = [get(s, 0) for s in range(40)]
  again = [get(s, 0) for s in reversed(range(40))][::-1]
  np.testing.assert_array_equal(first, again)
  assert first[0].shape == (4, 17) and first[0].dtype == np.int32
  assert (get(0, 1) != first[0]).any()


def test_a_pass_shows_every_window_once():
  array = np.arange(16 * 41, dtype=np.uint16)  # 40 windows and room to shift
  for epoch in range(3):
    rows = np.concatenate(
        [data.batch(array, 10 * epoch + s, 0, 4, 16) for s in range(10)]
    )
    assert (np.diff(rows, axis=1) == 1).all()
    begin = np.sort(rows[:, 0])
    np.testing.assert_array_equal(np.diff(begin), 16)


def test_windows_already_cut_are_taken_whole():
  windows = np.arange(8 * 17, dtype=np.uint16).reshape(8, 17)
  for epoch in range(2):
    rows = np.concatenate(
        [data.batch(windows, 2 * epoch + s, 0, 4, 16) for s in range(2)]
    )
    np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], windows)
  with pytest.raises(ValueError, match="hold 17 tokens, not length [+] 1 = 33"):
    data.batch(windows, 0, 0, 4, 32)


def test_fixed_batches_spread_over_the_array():
  rows = data.fixed(np.arange(1000), 3, 4, 16)
  assert len(rows) == 3 and rows[0].shape == (4, 17)
  assert rows[0].min() == 0 and rows[-1].max() > 880
  assert len(data.fixed(np.arange(1000), 99, 4, 16)) == 15  # all there are


def test_too_few_tokens_are_named():
  with pytest.raises(ValueError, match="20 tokens are too few .* of 16"):
    data.batch(np.arange(20), 0, 0, 1, 16)
  with pytest.raises(ValueError, match="do not fill one batch of 4 x 16"):
    data.fixed(np.arange(20), 1, 4, 16)
