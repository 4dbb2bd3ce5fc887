"""The conversation: its cache never changes what it says; keys and commands."""

import importlib
import io
import json
import os
import pathlib
import signal
import types

import pytest
import tokenizers
from ml_collections import ConfigDict
from tokenizers import decoders, models, pre_tokenizers

from specjax import chat, rules, text
from specjax.drafters.autoregressive import Autoregressive
from specjax.testing import pair

pytest.importorskip("jinja2")
ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
SPECIALS = ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>"]


@pytest.fixture(autouse=True)
def beside(monkeypatch):
  """Scripts find each other in their own folder; templates render here."""
  monkeypatch.syspath_prepend(str(ROOT / "launch"))
  monkeypatch.setattr(
      chat, "_elsewhere", lambda job: chat._answer(json.loads(job))
  )


def script():
  return importlib.import_module("chat")


def words(template):
  """Letters, and the special tokens of the template: 32 tokens."""
  letters = "abcdefghijklmnopqrstu<|>/\u0120\u010a\u00e9"
  inner = tokenizers.Tokenizer(
      models.BPE({c: i for i, c in enumerate(letters)}, [])
  )
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
  )
  inner.decoder = decoders.ByteLevel()
  inner.add_special_tokens(SPECIALS)
  return text.Tokenizer.from_json(
      inner.to_str(), "test", eos=["<|end|>"], chat_template=template
  )


@pytest.fixture(scope="module")
def models_of():
  return types.SimpleNamespace(
      target=pair.decoder(32), tokenizer=words(TEMPLATE), rule=rules.token,
      drafter=Autoregressive(pair.decoder(32, boost=4.0), 3),
  )


def talk_with(m, **changes):
  options = dict(
      system="", new=12, room=250, seed=0, sampling=dict(temperature=0.0)
  )
  return script().Conversation(m, **options | changes)


def said(talk, line, **options):
  return "".join(new for new, _ in talk.say(line, **options))


def fresh(m, messages):
  """The answer to messages by a state that has read nothing before."""
  talk = talk_with(m)
  talk.messages = messages[:-1]
  answer = said(talk, messages[-1]["content"])
  assert talk.kept == 0
  return answer


def test_kept_caches_change_nothing(models_of, quick_compiles):
  m = models_of
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


def test_nothing_in_common(models_of, quick_compiles):
  plain = types.SimpleNamespace(
      **vars(models_of) | dict(tokenizer=words(None))
  )
  talk = talk_with(plain)
  assert talk.plain
  first = said(talk, "abc")
  assert said(talk, "de") and talk.kept > 3
  talk.reset()
  assert said(talk, "bc") and talk.kept == 0
  talk.reset()
  assert said(talk, "abc") == first


def test_an_answer_is_stopped_and_stays(models_of, quick_compiles):
  talk = talk_with(models_of)
  whole = said(talk, "abc")
  talk.reset()
  asked = iter([False, True])
  part = said(talk, "abc", stopped=lambda: next(asked))
  assert whole.startswith(part) and len(part) < len(whole)
  assert talk.messages[-1]["content"] == part
  asked = [*talk.messages, dict(role="user", content="de")]
  assert said(talk, "de") == fresh(models_of, asked)


def test_room(models_of, quick_compiles):
  talk = talk_with(models_of, room=30)
  said(talk, "abcdefgh")
  before = list(talk.messages)
  with pytest.raises(ValueError, match="there is room for 30.* /drop"):
    said(talk, "abcdefgh" * 2)
  assert talk.messages == before
  talk.drop()
  assert len(said(talk, "abcdefgh" * 2)) <= 30 - 18
  with pytest.raises(ValueError, match="cannot be encoded"):
    said(talk, "\ud800")


def test_ctrl_c_twice():
  with script().stoppable() as stopped:
    assert not stopped()
    os.kill(os.getpid(), signal.SIGINT)
    assert stopped()
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
      signal.sigtimedwait([], 5)
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_script(models_of, monkeypatch, capsys, quick_compiles):
  shell, launch = importlib.import_module("shell"), script()
  monkeypatch.setattr(launch.words, "models", lambda c: models_of)
  lines = "/help\nabc\n\n/undo\n/who\n" + "a" * 60 + "\nde\n/quit\nnever\n"
  monkeypatch.setattr(launch.sys, "stdin", io.StringIO(lines))
  c = shell.settings(launch.FLAGS, ConfigDict(), dict(
      temperature=0.0, max_new_tokens=6, max_tokens=40, stats=True,
  ))
  launch.main(c)
  out, err = capsys.readouterr()
  first, second = out.splitlines()
  assert (first, second) == tuple(
      said(talk_with(models_of, new=6), line) for line in ("abc", "de")
  )
  for part in ("/drop ", "has 0 messages", "/who is no command", "room for 40",
               "tokens a target pass", "max_new_tokens", "0 not read again"):
    assert part in err
  c.max_tokens = 0
  with pytest.raises(ValueError, match="--max_tokens=0"):
    launch.main(c)
  models_of.target.opening = 0
  try:
    with pytest.raises(ValueError, match="by an encoder"):
      talk_with(models_of)
  finally:
    del models_of.target.opening
