"""Nothing lost, nothing twice, order kept: jobs, requests, serving."""

import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from specjax import jobs, requests, serve, stream
from specjax.drafters.ngram import NGram
from specjax.stops import cut_at_stop
from specjax.testing import pair

TOKENS = pair.Bytes()
OPTIONS = requests.Options(
    max_new_tokens=12, num_speculative_tokens=2, stop=("a", "zz"), seed=3
)


def parsed(raw, line=2, options=OPTIONS):
  raw = raw if isinstance(raw, bytes) else raw.encode()
  return requests.parse(raw, line, options, TOKENS)


@pytest.mark.parametrize(
    "raw, says",
    [
        ("nonsense", "not JSON"),
        ("", "blank"),
        ("\r\n", "blank"),
        ("[1]", "a list"),
        ("3", "a number"),
        ("null", "null"),
        ("{}", "'prompt' is missing"),
        ('{"prompt": 3}', "a number"),
        ('{"prompt": ["x"]}', "a list"),
        ('{"prompt": "x", "promt": 1}', "'promt' is unknown"),
        ('{"prompt": "x", "temperature": NaN}', "NaN is no number"),
        ('{"prompt": "x", "temperature": 1e999}', "1e999 is no number"),
        ('{"prompt": "x", "temperature": -1}', "temperature = -1;"),
        ('{"prompt": "x", "temperature": true}', "a truth value"),
        ('{"prompt": "x", "temperature": "hot"}', "a string"),
        ('{"prompt": "x", "top_p": 0}', "top_p"),
        ('{"prompt": "x", "top_k": 1.5}', "top_k"),
        ('{"prompt": "x", "max_new_tokens": 0}', "max_new_tokens = 0"),
        ('{"prompt": "x", "max_new_tokens": 1e3}', "whole number"),
        ('{"prompt": "x", "max_new_tokens": 99999999}', "it must lie in"),
        ('{"prompt": "x", "seed": -1}', "seed = -1"),
        ('{"prompt": "x", "num_speculative_tokens": 3}', "in 0..2"),
        ('{"prompt": "x", "stop": ["q"]}', "the job's stop strings"),
        ('{"prompt": "x", "stop": "a"}', "no list"),
        (b'{"prompt": "\xff"}', "byte 13 is not UTF-8"),
        ('{"prompt": "x"}'.encode("utf-16"), "not UTF-8"),
        ("[" * 100_000, "nested too deep"),
        ('{"prompt": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"prompt": "' + "x" * 3000 + '"}', "3001 tokens"),
    ],
    ids=range(29),  # some are long
)
def test_a_bad_line_is_told_in_one_sentence(raw, says):
  error = parsed(raw).error
  assert error.startswith("line 2: ") and error.endswith(".")
  assert says in error and "\n" not in error


def test_a_good_line_overrides_the_job():
  r = parsed(
      '{"id": [1], "prompt": "h\\u00e9", "temperature": 0, "top_k": 5, "seed":'
      ' 9, "stop": ["zz"], "num_speculative_tokens": 0, "max_new_tokens": 4}'
  )
  assert r.error is None and r.echo == {"id": [1]}
  assert r.tokens == [256, *"hé".encode()]
  assert (r.new, r.width, r.seed, r.stop) == (4, 0, 9, ("zz",))
  assert (r.sampling["temperature"], r.sampling["top_k"]) == (0, 5)
  plain = parsed('\ufeff{"prompt": "x"}\r\n', line=1)
  assert plain.error is None and plain.echo == {"prompt": "x"}
  assert (plain.new, plain.width, plain.seed) == (12, 2, 4)
  assert parsed('\ufeff{"prompt": "x"}').error  # only a file begins so


def test_an_empty_prompt_is_the_beginning_of_a_text():
  assert parsed('{"prompt": ""}').tokens == [256]


def test_a_long_prompt_is_refused_or_cut_when_asked():
  strict = requests.Options(max_prompt_tokens=4)
  error = parsed('{"prompt": "abcd"}', 1, strict).error
  assert "5 tokens, max_prompt_tokens = 4" in error
  cut = requests.Options(max_prompt_tokens=4, truncate=True)
  r = parsed('{"prompt": "abcdef"}', 1, cut)
  assert (r.tokens, r.truncated) == ([256, *b"def"], 3)
  tiny = requests.Options(max_prompt_tokens=1, truncate=True)
  assert parsed('{"prompt": "abc"}', 1, tiny).tokens == [*b"c"]
  assert serve.answer(r, [*b"x"], 3, TOKENS)["truncated"] == 3


@pytest.mark.parametrize(
    "field", [dict(max_new_tokens=0), dict(seed=-1), dict(seed=1.5),
              dict(sampling=dict(top_p=2)), dict(max_prompt_tokens=0)],
)
def test_options_are_checked(field):
  with pytest.raises(ValueError, match=r"\.$"):
    requests.Options(**field)


def test_lines_are_bounded(tmp_path, monkeypatch):
  monkeypatch.setattr(requests, "LINE_LIMIT", 8)
  path = tmp_path / "in"
  path.write_bytes(b"1234567\n12345678\n" + b"x" * 50 + b"\n\nend")
  assert list(requests.lines(path)) == [
      (1, b"1234567\n"), (2, None), (3, None), (4, b"\n"), (5, b"end")
  ]
  path.write_bytes(b"")
  assert list(requests.lines(path)) == []


# The file side, with answers that need no model.


def shout(found, longest):
  """Answers in an order of its own, several at a time, refusals too."""
  some, generator = [], random.Random(0)
  for r in found:
    record = {"line": r.line, **r.echo}
    record |= {"error": r.error} if r.error else {"text": r.echo["prompt"] * 2}
    some.append((r.line, record))
    if generator.random() < 0.4:
      generator.shuffle(some)
      yield [some.pop() for _ in range(generator.randint(0, len(some)))]
  yield some


def go(folder, settings=None, answers=shout, **options):
  return jobs.run(
      folder / "in.jsonl", folder / "out.jsonl", settings or {"T": 1.0},
      answers, options=OPTIONS, tokenizer=TOKENS, **options,
  )


@pytest.fixture
def folder(tmp_path):
  good = [json.dumps({"prompt": f"é{i}" * (i % 5)}) for i in range(12)]
  good[4] = "no json"
  (tmp_path / "in.jsonl").write_text("\n".join(good))
  return tmp_path


def test_every_line_is_answered_once_and_in_order(folder):
  ticks = []
  assert go(folder, tick=lambda *x: ticks.append(x)) == (12, 1, 12)
  out = (folder / "out.jsonl").read_text().splitlines()
  records = [json.loads(x) for x in out]
  assert [r["line"] for r in records] == [*range(1, 13)]
  assert "line 5: it is not JSON" in records[4]["error"]
  assert records[3]["text"] == "é3" * 6
  assert ticks[0] == (0, 12) and ticks[-1] == (12, 12)
  assert go(folder) == (0, 1, 12)


def test_any_torn_output_is_completed_to_the_same_bytes(folder):
  go(folder)
  out = folder / "out.jsonl"
  whole = out.read_bytes()
  edges = [i + j for i, b in enumerate(whole) if b == 10 for j in (0, 1)]
  for end in sorted({*range(0, len(whole), 23), *edges[:-1]}):
    out.write_bytes(whole[:end])
    assert go(folder) == (12 - whole[:end].count(b"\n"), 1, 12)
    assert out.read_bytes() == whole


def test_a_crash_amid_answers_loses_nothing(folder, tmp_path):
  go(folder)
  whole = (folder / "out.jsonl").read_bytes()
  for after in range(5):
    (folder / "out.jsonl").unlink()

    def crash(found, longest, after=after):
      for i, some in enumerate(shout(found, longest)):
        if i == after:
          raise MemoryError
        yield some

    with pytest.raises(MemoryError):
      go(folder, answers=crash)
    go(folder)
    assert (folder / "out.jsonl").read_bytes() == whole


def test_a_stop_leaves_what_is_finished(folder):
  with pytest.raises(jobs.Stopped, match="of 12 lines written"):
    go(folder, stopped=lambda: True)
  done = (folder / "out.jsonl").read_bytes().count(b"\n")
  assert go(folder).new == 12 - done


def refused(says, folder, *rest, **options):
  with pytest.raises(ValueError, match=says) as caught:
    go(folder, *rest, **options)
  assert "\n" not in str(caught.value)


def test_another_job_is_refused(folder):
  with pytest.raises(jobs.Stopped):
    go(folder, stopped=lambda: True)
  (folder / "out.jsonl").write_bytes(b'{"line": 1, "text": "x"}\n')
  refused("T = 1.0 and not 0.5", folder, {"T": 0.5})
  refused("rule = None and not 'block'", folder, {"T": 1.0, "rule": "block"})
  with open(folder / "in.jsonl", "a") as file:
    file.write("\n{}")
  refused("input of other content", folder)


def test_foreign_and_odd_outputs_are_refused(folder):
  out = folder / "out.jsonl"
  out.write_text("my thesis\n")
  refused("no job's output", folder)
  assert out.read_text() == "my thesis\n"
  out.unlink()
  go(folder)
  lines = out.read_bytes().splitlines(True)
  out.write_bytes(lines[0] + lines[2])
  refused("its line 2 was not written", folder)
  out.write_bytes(b"".join(lines) + b'{"line": 13, "text": ""}\n')
  refused("13 lines for 12", folder)
  out.unlink()
  out.mkdir()
  refused("not a regular file", folder)
  out.rmdir()
  out.symlink_to(folder / "in.jsonl")
  refused("the output is the input", folder)
  (folder / "in.jsonl").unlink()
  refused("no such input", folder)


def test_settings_may_change_before_anything_is_written(folder):
  with pytest.raises(MemoryError):
    go(folder, answers=lambda *_: (_ for _ in ()).throw(MemoryError))
  assert go(folder, {"T": 0.5}).new == 12


def test_a_second_process_is_refused(folder):
  with open(folder / "out.jsonl", "ab") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    refused("another process", folder)
  assert go(folder).new == 12


def test_half_a_surrogate_pair_can_be_answered(folder):
  (folder / "in.jsonl").write_text('{"id": "\\ud800", "prompt": "x"}')
  echo = lambda found, _: iter([[(r.line, {"line": r.line, **r.echo})
                                 for r in found]])
  assert go(folder, answers=echo) == (1, 0, 1)
  assert json.loads((folder / "out.jsonl").read_bytes())["id"] == "\ud800"


def test_signals_become_a_question():
  # A shell's background job ignores ctrl-C from the start.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    _asked_twice()
  finally:
    signal.signal(signal.SIGINT, before)


def _asked_twice():
  with jobs.interruptible() as stopped:
    assert not stopped()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped()
    with pytest.raises(KeyboardInterrupt):  # the second one ends at once
      os.kill(os.getpid(), signal.SIGINT)


def test_refusals_are_told_from_texts_about_errors(tmp_path):
  told = '"error": "line 1: ", "error": "line 2: x"'
  rows = [{"id": {"a": 1, "error": told}, "prompt": told}, {}, {"prompt": told}]
  (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
  shouted = lambda found, longest: shout(
      (r._replace(echo={**r.echo, "prompt": told}) for r in found), longest
  )
  assert go(tmp_path, answers=shouted) == (3, 1, 3)
  assert go(tmp_path) == (0, 1, 3)


def test_signals_are_heard_amid_a_long_call(monkeypatch):
  monkeypatch.setattr(os, "_exit", lambda code: told.append((code, busy)))
  told, busy = [], True
  with jobs.interruptible(lambda: told.append(("heard", busy))) as stopped:
    for delay in (0.1, 0.2):
      kill = (os.getpid(), signal.SIGTERM)
      threading.Timer(delay, os.kill, kill).start()
    # Like compiling: one call, in which Python's own handlers do not run.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 5_000_000)
    busy = False
    assert stopped()
  assert told == [("heard", True), (130, True)]


def test_only_text_that_no_stop_can_claim_is_shown():
  generator = random.Random(1)
  for _ in range(2000):
    letters = lambda n: "".join(generator.choices("ab", k=n))
    stops = [letters(generator.randint(1, 4)) for _ in range(2)]
    text = letters(generator.randint(0, 12))
    wanted = cut_at_stop(text, stops)
    visible, shown, at = stream.Visible(stops), "", 0
    while at < len(text):
      step = generator.randint(1, 3)
      shown += visible.push(text[at : at + step])
      at += step
      assert wanted.startswith(shown)
    assert shown + visible.close(wanted != text) == wanted
  plain = stream.Visible(())
  assert plain.push("abc") == "abc" and plain.close(False) == ""


# Serving, with a model.


def served(found, batch, options=OPTIONS, meter=None):
  target = pair.decoder(TOKENS.size, boost=1.0)
  out = serve.serve(
      target, NGram(2), TOKENS, found, options=options, batch=batch,
      longest=40, meter=meter,
  )
  return dict(sum(out, []))


def test_a_text_depends_on_its_line_alone(quick_compiles):
  raw = [
      '{"prompt": "hello"}', '{"prompt": "hello"}', '{"prompt": ""}', "bad",
      '{"prompt": "abcabcabc", "temperature": 0, "max_new_tokens": 20}',
      '{"prompt": "x", "num_speculative_tokens": 0, "top_k": 3}',
      '{"prompt": "y", "seed": 4, "stop": []}',
      '{"prompt": "hello", "seed": 4}',
  ]
  found = [parsed(x, i + 1) for i, x in enumerate(raw)]
  meter = serve.Meter()
  full = served(found, 3, meter=meter)
  assert sorted(full) == [*range(1, 9)] and "error" in full.pop(4)
  assert full[1]["text"] == full[8]["text"] != full[2]["text"]
  assert full[5]["tokens"] <= 20
  emitted = sum(r["tokens"] for r in full.values())
  rounds = sum(r["rounds"] for r in full.values())
  assert int(meter.tally.info.emitted.sum()) == emitted
  assert int(meter.tally.info.rounds.sum()) == rounds
  for r in full.values():
    assert r["finish"] in ("budget", "end", "stop")
    if r["finish"] == "stop":
      assert "a" not in r["text"] and "zz" not in r["text"]
  rest = served(found[4:], 3)  # as after a restart
  assert rest == {n: r for n, r in full.items() if n > 4}
  assert served(found[5:6], 1)[6] == full[6]


def test_log_probs_belong_to_their_tokens(quick_compiles):
  options = requests.Options(max_new_tokens=5, logprobs=2, seed=3)
  found = [parsed('{"prompt": "q", "temperature": 0}', 1, options)]
  record = served(found, 1, options)[1]
  assert len(record["logprobs"]) == record["tokens"] == 5
  for entry in record["logprobs"]:
    assert entry["logprob"] == 0  # greedy: all mass on one token
    assert entry["top"][0] == [entry["token"], entry["raw"]]
    assert entry["raw"] >= entry["top"][1][1]


def test_no_model_is_needed_when_every_line_is_wrong():
  found = [parsed("bad", 1), parsed("", 2)]
  out = serve.serve(None, None, TOKENS, found, options=OPTIONS, batch=2,
                    longest=0)
  assert [n for n, _ in sum(out, [])] == [1, 2]


# The real thing, killed.

WORKER = """
    import sys
    from specjax import jobs, requests, serve
    from specjax.drafters.ngram import NGram
    from specjax.testing import pair

    tokenizer, options = pair.Bytes(), requests.Options(
        max_new_tokens=40, num_speculative_tokens=2
    )
    target = pair.decoder(tokenizer.size, boost=1.0)
    answers = lambda found, longest: serve.serve(
        target, NGram(2), tokenizer, found, options=options, batch=3,
        longest=longest,
    )
    with jobs.interruptible() as stopped:
      jobs.run(
          sys.argv[1], sys.argv[2], {}, answers, options=options,
          tokenizer=tokenizer, stopped=stopped,
      )
"""


def start(folder, name):
  cheap = dict(
      JAX_PLATFORMS="cpu",
      JAX_COMPILATION_CACHE_DIR=str(folder / "cache"),
      JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
      XLA_FLAGS="--xla_backend_optimization_level=0",
  )
  code = textwrap.dedent(WORKER)
  return subprocess.Popen(
      [sys.executable, "-c", code, folder / "in.jsonl", folder / name],
      env=os.environ | cheap, stderr=subprocess.PIPE, text=True,
  )


def test_a_killed_job_ends_as_an_unbroken_one(tmp_path):
  generator = random.Random(time.time_ns())
  rows = [{"prompt": "ab" * (i % 7), "max_new_tokens": 5 + 9 * i % 36}
          for i in range(150)]
  text = "\n".join(map(json.dumps, rows))
  (tmp_path / "in.jsonl").write_text(text)
  whole = start(tmp_path, "whole")
  said = whole.communicate()[1]
  assert whole.returncode == 0, said
  kills, out = 0, tmp_path / "out"
  for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, None):
    before = out.read_bytes().count(b"\n") if out.exists() else 0
    goal = before + generator.randint(1, 30)
    process = start(tmp_path, "out")
    while number is not None and process.poll() is None:
      if out.exists() and out.read_bytes().count(b"\n") >= goal:
        time.sleep(generator.random() * 0.02)
        process.send_signal(number)
        kills += 1
        break
      time.sleep(0.01)
    said = process.communicate()[1]
    assert (process.returncode == 0) == (number is None), said
    assert "Stopped" in said if number == signal.SIGTERM else True
  assert kills == 3
  assert out.read_bytes() == (tmp_path / "whole").read_bytes()
  assert np.all([json.loads(x)["tokens"] for x in out.read_text().splitlines()])
