"""The chat script: its commands, what it shows, and ctrl-C."""

import importlib
import io
import os
import signal

import pytest
from ml_collections import ConfigDict

pytest.importorskip("jinja2")


def script():
  return importlib.import_module("chat")


def typed(monkeypatch, launch, data):
  stdin = io.TextIOWrapper(io.BytesIO(data), "utf-8")
  monkeypatch.setattr(launch.sys, "stdin", stdin)


def test_a_bad_byte_costs_no_turn_and_no_stdin_none(monkeypatch):
  launch = script()
  typed(monkeypatch, launch, b"ab\r\n\xff\ncd")
  assert list(launch.lines()) == ["ab", "\ufffd", "cd"]
  monkeypatch.setattr(launch.sys, "stdin", None)
  assert list(launch.lines()) == []


def test_ctrl_c_twice():
  # A test run in the background is begun with the signal ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  with script().stoppable() as stopped:
    assert not stopped()
    os.kill(os.getpid(), signal.SIGINT)
    assert stopped()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
      signal.sigtimedwait([], 5)
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  signal.signal(signal.SIGINT, before)


def test_the_script(
    chatty, templates_here, monkeypatch, capsys, quick_compiles
):
  shell, launch = importlib.import_module("shell"), script()
  monkeypatch.setattr(launch.words, "models", lambda c: chatty)
  lines = "/help\nabc\n\n/undo\n/who\n" + "a" * 60 + "\nde\n/quit\nnever\n"
  typed(monkeypatch, launch, lines.encode())
  c = shell.settings(launch.FLAGS, ConfigDict(), dict(
      temperature=0.0, max_new_tokens=6, max_tokens=40, stats=True,
  ))
  launch.main(c)
  out, err = capsys.readouterr()
  first, second = out.splitlines()
  for answer, line in ((first, "abc"), (second, "de")):
    fresh = launch.Conversation(
        chatty, system="", new=6, room=40, seed=0,
        sampling=dict(temperature=0.0),
    )
    assert answer == "".join(new for new, _ in fresh.say(line))
  for part in ("/drop ", "has 0 messages", "/who is no command", "room for 40",
               "tokens a target pass", "max_new_tokens", "0 not read again"):
    assert part in err
  c.max_tokens = 0
  with pytest.raises(ValueError, match="--max_tokens=0"):
    launch.main(c)
