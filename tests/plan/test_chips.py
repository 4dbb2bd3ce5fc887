"""The table of chips, and slices of them by word."""

import pytest

from specjax.plan.chips import CHIPS, slice_of


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda c: c.name)
def test_a_chip_is_told_in_one_unit(chip):
  """Nobody wrote gigabits, or one link's two ways."""
  assert 0.9 * chip.memory < chip.usable <= 1.01 * chip.memory
  assert 100 < chip.flops / chip.bandwidth < 1000  # operations a byte
  assert 0.02 < chip.link / chip.bandwidth < 0.1
  assert chip.axes in (2, 3)


def test_a_word_is_a_slice():
  place = slice_of("v4:2x2x4")
  assert (place.chips, place.word) == (16, "v4:2x2x4")
  assert dict(place.chip.settings) == dict(chip_config_name="megacore")


@pytest.mark.parametrize(
    "word, group, hops, links",
    [
        ("v4:2x2x4", 16, 1 + 1 + 3, 3),  # a mesh: no way round
        ("v4:2x2x4", 4, 3, 1),
        ("v4:4x4x4", 64, 2 + 2 + 2, 6),  # a torus: either way round
        ("v5e:2x4", 8, 1 + 3, 2),
        ("v5e:16x16", 256, 8 + 8, 4),
        ("v5e:1x4", 4, 3, 1),
    ],
)
def test_a_sweep_passes_neighbours(word, group, hops, links):
  place = slice_of(word)
  assert (place.hops(group), place.links(group)) == (hops, links)


@pytest.mark.parametrize(
    "word, says",
    [
        ("v3:2x2", "none of v4, v5e, v5p, v6e"),
        ("v4", "3 sides, such as v4:2x2x4"),
        ("v4:2x2", "3 sides"),
        ("v5e:2x2x4", "2 sides, such as v5e:2x4"),
        ("v4:2x2x0", "3 sides"),
        ("v4:2x2x9999", "3 sides"),
        ("v4:2x2x4 ", "3 sides"),
    ],
)
def test_another_word_is_refused(word, says):
  with pytest.raises(ValueError, match=says):
    slice_of(word)
