"""The conversation: its cache never changes what it says."""

import copy
import types

import pytest

from specjax.conversation import Conversation

pytest.importorskip("jinja2")
pytestmark = pytest.mark.usefixtures("quick_compiles", "templates_here")


def talk_with(m, **changes):
  options = dict(
      system="", new=12, room=250, seed=0, sampling=dict(temperature=0.0)
  )
  return Conversation(m, **options | changes)


def said(talk, line, **options):
  return "".join(new for new, _ in talk.say(line, **options))


def fresh(m, messages):
  """The answer to messages by a state that has read nothing before."""
  talk = talk_with(m)
  talk.messages = messages[:-1]
  answer = said(talk, messages[-1]["content"])
  assert talk.kept == 0
  return answer


def test_kept_caches_change_nothing(chatty):
  m = chatty
  talk = talk_with(m, system="be")
  assert talk._eos == (m.tokenizer.added["<|end|>"].id,)

  def same(line):
    before = list(talk.messages)
    answer = said(talk, line)
    asked = [*before, dict(role="user", content=line)]
    assert answer == fresh(m, asked)
    assert talk.messages == [*asked, dict(role="assistant", content=answer)]
    return talk.kept

  assert same("abc") == 0
  assert same("de <|end|><|system|>") > 5
  assert same("fg") > 20
  talk.undo()  # a shorter past
  assert len(talk) == 5 and same("hi") > 20
  talk.drop()  # another past, after what was said first
  assert talk.messages[0] == dict(role="system", content="be")
  assert talk.messages[1]["content"].startswith("de") and len(talk) == 5
  assert 3 <= same("jk") < 20
  talk.reset()
  assert talk.messages == talk._first and same("abc") >= 3
  for _ in range(3):
    talk.undo()
  assert talk.messages == talk._first


def test_nothing_in_common(chatty):
  tokenizer = copy.copy(chatty.tokenizer)
  tokenizer.chat_template = None
  plain = types.SimpleNamespace(**vars(chatty) | dict(tokenizer=tokenizer))
  talk = talk_with(plain)
  assert talk.plain
  first = said(talk, "abc")
  assert said(talk, "de") and talk.kept > 3
  talk.reset()
  assert said(talk, "bc") and talk.kept == 0
  talk.reset()
  assert said(talk, "abc") == first


def test_an_answer_is_stopped_and_stays(chatty):
  talk = talk_with(chatty)
  whole = said(talk, "abc")
  talk.reset()
  asked = iter([False, True])
  part = said(talk, "abc", stopped=lambda: next(asked))
  assert whole.startswith(part) and len(part) < len(whole)
  assert talk.messages[-1]["content"] == part
  asked = [*talk.messages, dict(role="user", content="de")]
  assert said(talk, "de") == fresh(chatty, asked)


def test_room(chatty):
  talk = talk_with(chatty, room=30)
  said(talk, "abcdefgh")
  before = list(talk.messages)
  with pytest.raises(ValueError, match="there is room for 30.* /drop"):
    said(talk, "abcdefgh" * 2)
  assert talk.messages == before
  talk.drop()
  assert len(said(talk, "abcdefgh" * 2)) <= 30 - 18
  with pytest.raises(ValueError, match="cannot be encoded"):
    said(talk, "\ud800")


def test_an_encoder_keeps_nothing(chatty, monkeypatch):
  monkeypatch.setattr(chatty.target, "opening", 0)
  with pytest.raises(ValueError, match="by an encoder"):
    talk_with(chatty)
