"""Every kind of file by tiny ones of its form; wrong ones by sentence."""

import json
import os
import time

import pytest

from specjax.bench import prompts

TURNS = dict(question_id=81, category="writing", turns=["One.", "Two."])
CODE = dict(task_id="HumanEval/0", prompt="def f():", entry_point="f")
KNOWN = {
    "spec_bench": (TURNS, ("81", "writing", "One.")),
    "humaneval": (CODE, ("HumanEval/0", "HumanEval", "def f():")),
    "mbpp": (
        dict(task_id=11, text="Write f.", code="pass", test_list=["assert f"]),
        ("11", "MBPP", "Write f."),
    ),
    "mbpp_sanitized": (
        dict(task_id=11, prompt="Write f.", test_list=["assert f"]),
        ("11", "MBPP", "Write f."),
    ),
    "livecodebench": (
        dict(question_title="A", question_content="Sum it.", question_id="1_A",
             platform="x", starter_code=""),
        ("1_A", "LiveCodeBench", "Sum it."),
    ),
    "gsm8k": (dict(question="How many?", answer="4"), ("1", "GSM8K",
                                                       "How many?")),
    "math": (
        dict(problem="1 + 1", solution="2", subject="Algebra",
             unique_id="test/1.json", level=1),
        ("test/1.json", "Algebra", "1 + 1"),
    ),
    "aime": (dict(id=60, problem="Find n.", answer="2"), ("60", "AIME",
                                                          "Find n.")),
    "aime_2024": (
        dict(ID="2024-I-1", Problem="Find n.", Answer=2),
        ("2024-I-1", "AIME", "Find n."),
    ),
    "xsum": (
        dict(document="Rain.", summary="x", id="7"),
        ("7", "XSum", "Summarize: Rain."),
    ),
    "cnn_dm": (
        dict(article="Rain.", highlights="x", id="7"),
        ("7", "CNN/DM", "Summarize: Rain."),
    ),
    "wmt": (
        dict(translation=dict(de="Regen.", en="Rain.")),
        ("1", "WMT", "Translate English to German: Rain."),
    ),
    "wmt_pairs": (
        dict(source="Rain.", target="Regen.", lp="en-de_DE"),
        ("1", "WMT", "Translate English to German: Rain."),
    ),
    "wmt_src": (
        dict(src="Rain.", ref="Regen."),
        ("1", "WMT", "Translate English to German: Rain."),
    ),
    "plain": (dict(prompt="Hello", source="web"), ("1", "plain", "Hello")),
    "grouped": (dict(prompt="Hello", category="a"), ("1", "a", "Hello")),
}


@pytest.fixture
def written(tmp_path):
  def write(*entries, name="x.jsonl"):
    lines = (e if isinstance(e, bytes) else json.dumps(e).encode()
             for e in entries)
    (tmp_path / name).write_bytes(b"\n".join(lines))
    return tmp_path / name

  return write


@pytest.mark.parametrize("name", KNOWN)
def test_a_benchmark_is_told_by_its_fields(written, name):
  entry, expected = KNOWN[name]
  path = written(entry, name=f"{name}.jsonl")
  assert prompts.read(path) == [prompts.Prompt(*expected)]
  path.write_text("\ufeff" + json.dumps([entry], indent=1), "utf-8")
  assert prompts.read(path) == [prompts.Prompt(*expected)]


def many():
  sorts = ["qa", "rag", "qa", "qa", "rag", "math"]
  return [TURNS | dict(question_id=i, category=c) for i, c in enumerate(sorts)]


@pytest.mark.parametrize("asked, ids", [
    (dict(), "012345"),
    (dict(each=2), "01245"),
    (dict(each=1, categories=["rag", "math"]), "15"),
    (dict(limit=2), "01"),
    (dict(limit=2, categories=["rag", "math"]), "14"),
    (dict(each=1, limit=2), "01"),
])
def test_the_first_of_each_category(written, asked, ids):
  found = prompts.read(written(*many()), **asked)
  assert "".join(p.id for p in found) == ids


def test_lines_are_counted_with_the_blank_ones(written):
  path = written(b"\xef\xbb\xbf" + json.dumps(dict(question="a")).encode(),
                 b" ", dict(question="b"), b"")
  assert [p.id for p in prompts.read(path)] == ["1", "3"]


def test_a_field_by_name_goes_before_what_is_known(written):
  path = written(CODE | dict(hint="say it", category="h"))
  assert prompts.read(path, field="hint") == [("HumanEval/0", "h", "say it")]
  assert prompts.read(written(TURNS), field="turns")[0].text == "One."


def test_a_limit_reads_no_further(written):
  path = written(CODE, b"{")
  assert len(prompts.read(path, limit=1)) == 1
  with pytest.raises(ValueError, match="line 2"):
    prompts.read(path, limit=1, categories=["HumanEval", "other"])


@pytest.mark.parametrize("entries, asked, words", [
    ([CODE, dict(a=1, b=2)], {}, "x.jsonl: line 2: .*a, b.* no known.*--field"),
    ([CODE | dict(question="?")], {}, "fit HumanEval and GSM8K.*--field"),
    ([dict(source="web", problem="1 + 1")], {}, "source, problem.*--field"),
    ([{}], {}, r"\(none\)"),
    ([CODE], dict(field="hint"), "no field 'hint'.*task_id, prompt"),
    ([CODE | dict(prompt=3)], {}, "'prompt' holds no text"),
    ([CODE | dict(prompt=" ")], {}, "'prompt' holds no text"),
    ([TURNS | dict(turns=[])], {}, "'turns' holds no text"),
    ([dict(translation=dict(en="a", fr="b"))], {}, "'translation' holds no"),
    ([dict(source="a", target="b", lp="en-zh")], {}, "en-zh.*en-de"),
    ([TURNS | dict(category=None)], {}, "category is no string"),
    ([CODE | dict(task_id=["a"])], {}, "id is no string"),
    ([CODE, TURNS, CODE], {}, "line 3: .*'HumanEval/0' is that of line 1"),
    ([b"3"], {}, "line 1: it is no object"),
    ([b"[3]"], {}, "entry 1: it is no object"),
    ([b'{"a":', b"1}"], {}, "line 1: not JSON"),
    ([b"[" * 50000], {}, "not JSON"),
    ([b'{"a":' * 50000], {}, "line 1: not JSON"),
    ([b'{"a":' + b"9" * 5000 + b"}"], {}, "line 1: not JSON"),
    ([CODE, b'{"a":"\xff"}'], {}, "line 2: byte 7 is not UTF-8"),
    ([b" "], {}, "x.jsonl: it is empty"),
    ([b"[]"], {}, "x.jsonl: it is empty"),
    ([CODE, TURNS], dict(categories=["qa", "writing"]),
     "category qa; it has HumanEval, writing"),
    ([CODE], dict(each=-1), "each = -1"),
    ([CODE], dict(limit=-1), "limit = -1"),
])
def test_what_is_wrong_is_said_in_one_sentence(written, entries, asked, words):
  with pytest.raises(ValueError, match=words) as caught:
    prompts.read(written(*entries), **asked)
  said = str(caught.value)
  assert said.endswith(".") and "\n" not in said and len(said) < 500


def test_what_is_no_plain_file(tmp_path):
  with pytest.raises(ValueError, match="none.jsonl: cannot be read"):
    prompts.read(tmp_path / "none.jsonl")
  with pytest.raises(ValueError, match="no plain file"):
    prompts.read(tmp_path)
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(ValueError, match="no plain file"):
    prompts.read(tmp_path / "pipe")


def test_memory_is_bounded(written, monkeypatch):
  monkeypatch.setattr(prompts, "FILE_LIMIT", 1000)
  long = dict(prompt="a" * 300)
  with pytest.raises(ValueError, match="line 4: .*1000 characters"):
    prompts.read(written(*[long] * 5))
  assert len(prompts.read(written(*[long] * 5), limit=3)) == 3
  monkeypatch.setattr(prompts, "SORTS", 2)
  with pytest.raises(ValueError, match="line 3: .*2 categories"):
    prompts.read(written(*(dict(prompt="a", category=c) for c in "abc")))
  with pytest.raises(ValueError, match="line 1: its category"):
    prompts.read(written(dict(prompt="a", category="c" * 101)))


def test_a_line_without_end(tmp_path):
  path = tmp_path / "long.jsonl"
  path.write_bytes(b" " * (3 * 2**22))
  start = time.monotonic()
  with pytest.raises(ValueError, match="line 1 is longer than"):
    prompts.read(path)
  assert time.monotonic() - start < 20
