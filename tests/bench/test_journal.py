"""A journal is resumed, never mixed, and loses nothing but a cut line."""

import json

import pytest

from specjax.bench.journal import open_journal

ABOUT = dict(kind="about", command="a", date="2026-01-01", cpu="x", k=[2])
TURN = dict(kind="turn", run=dict(k=2, drafter="d"), group=0, turn=1)


@pytest.mark.parametrize("torn", [
    '{"kind": "turn", "ru', json.dumps(TURN | dict(turn=2, seconds=9.0)),
])
def test_lines_are_there_after_a_kill(tmp_path, torn):
  path = tmp_path / "new" / "r.jsonl"
  with open_journal(path, ABOUT) as j:
    assert not j.has(**TURN)
    j.add(**TURN, seconds=1.0)
    assert j.has(**TURN) and not j.has(**TURN | dict(turn=2))
  with open(path, "a") as file:
    file.write(torn)  # by a kill
  with open_journal(path, ABOUT | dict(date="2026-01-02", command="b")) as j:
    assert j.has(**TURN)
    assert not j.has(**TURN | dict(turn=2))
    assert j.first(**TURN)["seconds"] == 1.0
    j.add(**TURN | dict(turn=2))
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  assert [x["kind"] for x in lines] == ["about", "turn", "turn"]
  assert lines[0] == ABOUT


def test_a_file_with_other_settings_is_left_alone(tmp_path):
  path = tmp_path / "r.jsonl"
  with open_journal(path, ABOUT):
    pass
  before = path.read_bytes()
  for change in (dict(k=[3]), dict(cpu="y"), dict(more=1)):
    with pytest.raises(ValueError, match="was measured with"):
      with open_journal(path, ABOUT | change):
        pass
  assert path.read_bytes() == before


def test_two_runs_do_not_write_one_file(tmp_path):
  with open_journal(tmp_path / "r.jsonl", ABOUT):
    with pytest.raises(ValueError, match="another run is writing"):
      with open_journal(tmp_path / "r.jsonl", ABOUT):
        pass


def test_a_broken_line_is_named(tmp_path):
  path = tmp_path / "r.jsonl"
  path.write_text(json.dumps(ABOUT) + "\nrubbish\n" + json.dumps(TURN) + "\n")
  with pytest.raises(ValueError, match="line 2"):
    with open_journal(path, ABOUT):
      pass


def test_a_file_of_something_else_is_left_alone(tmp_path):
  path = tmp_path / "results.jsonl"
  path.write_bytes(b"precious notes")
  with pytest.raises(ValueError, match="no run's results"):
    with open_journal(path, ABOUT):
      pass
  assert path.read_bytes() == b"precious notes"
