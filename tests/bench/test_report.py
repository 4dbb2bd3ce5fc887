"""Numbers from a few lines counted by hand; pages from many made up."""

import html.parser
import json

import pytest

from specjax.bench import report

RUN = dict(drafter="ngram", k=2, temperature=1.0, batch=1)
ABOUT = dict(kind="about", command="a && b", date="2026-11-30", rule="token")
MS = dict(propose=4.0, verify=30.0, one=20.0, both=36.0, rounds=40.0,
          streamed=39.0)
FEW = dict(ks=(1, "auto"), temperatures=(1.0,), batches=(1,), a_category=1)


def counts(rounds=10, emitted=15, reached=(10, 4), passed=(4, 1),
           overlap=(4.5, 1.0)):
  return dict(
      rounds=rounds, drafted=20, accepted=5, emitted=emitted, bonus=1,
      dropped=0, reached=[*reached], passed=[*passed], overlap=[*overlap],
  )


def turn(group, seconds, n=0, categories=("qa",), distinct=0.9, later=10,
         run=RUN, **drafts):
  """`seconds` of both sides, with drafts and without."""
  side = lambda x, rows: dict(
      seconds=x, first=x / 10, later=later, rows=rows,
      distinct=[distinct] * len(rows),
  )
  return dict(
      kind="turn", run=run, group=group, turn=n,
      prompts=[f"{group}.{i}" for i in range(len(categories))],
      categories=[*categories],
      drafts=side(seconds[0], [counts(**drafts)] * len(categories)),
      plain=side(seconds[1], [counts(10, 10, (), (), ())] * len(categories)),
  )


def only(*lines):
  (run,) = report.numbers([ABOUT, *lines])["runs"]
  return run


def test_speedups_are_ratios_of_sums_and_medians_of_medians():
  run = only(turn(0, (1, 2)), turn(0, (1, 4), 1), turn(1, (10, 10)),
             turn(2, (2, 1), distinct=0.4), turn(3, (5, 5), later=0))
  x = run["total"]
  assert x["speedup"] == pytest.approx(17 / 14)
  assert (x["median"], x["quartiles"]) == (1.0, [0.75, 2.0])
  assert x["interval"] is None  # of three groups
  assert (x["looping"], x["texts"]) == (1, 5)
  assert x["speedup_others"] == pytest.approx(16 / 12)
  assert x["seconds"] == pytest.approx([0.35, 0.425])
  assert x["first"] == pytest.approx([0.2, 0.4])
  assert x["prompts"] == 4


def test_intervals_are_over_groups_whose_turns_stay_together():
  slow, fast = (2, 2), (1, 3)
  even = only(*(turn(g, (fast, slow)[n], n) for g in range(6) for n in (0, 1)))
  assert even["total"]["interval"] == pytest.approx([5 / 3, 5 / 3])
  mixed = only(*(turn(g, (fast, slow)[g % 2]) for g in range(6)))
  low, high = mixed["total"]["interval"]
  assert 1 <= low < 5 / 3 < high <= 3


def test_acceptance_is_pooled_and_its_check_can_fail():
  x = only(turn(0, (1, 2)), turn(1, (1, 2)))["total"]
  assert x["acceptance_length"] == 1.5
  assert x["conditional"] == [0.4, 0.25]
  assert x["gap"] == pytest.approx((5 - 5.5) / 14) and x["holds"]
  wrong = dict(reached=(1000, 400), passed=(400, 100), overlap=(900, 300))
  assert not only(turn(0, (1, 2), **wrong))["total"]["holds"]
  never = only(turn(0, (1, 2), reached=(3, 0), passed=(0, 0)))["total"]
  assert never["conditional"] == [0.0, None]


def test_a_mixed_batch_counts_for_its_categories_and_times_for_none():
  wide = RUN | dict(batch=2)
  run = only(turn(0, (1, 2), categories=("qa", "rag"), run=wide),
             turn(1, (1, 3), categories=("qa", "qa"), run=wide))
  qa, rag = run["categories"]["qa"], run["categories"]["rag"]
  assert (qa["prompts"], rag["prompts"]) == (3, 1)
  assert qa["counts"]["rounds"] == 30 and rag["counts"]["rounds"] == 10
  assert qa["speedup"] == pytest.approx(3) and rag["speedup"] is None
  assert run["total"]["speedup"] == pytest.approx(2.5)


def test_costs_are_split_and_foresee():
  run = only(dict(kind="cost", run=RUN, law="T 1", milliseconds=MS),
             turn(0, (1, 2)))
  assert run["split"] == dict(draft=4, verify=32, rule=4, host=0)
  t = run["theory"]
  assert (t["c"], t["verify"]) == (0.1, 1.8)  # (40 - 4) / 20
  assert t["tokens"] == pytest.approx(1.5)  # 1 + 4/10 + 1/10
  assert t["speedup"] == pytest.approx(1.5 / 2.0)
  other = only(dict(kind="cost", run=RUN | dict(k=3), milliseconds=MS),
               turn(0, (1, 2)))
  assert other["split"] is other["theory"] is None


def test_drafts_that_were_not_made_are_misses_to_theory():
  cost = dict(kind="cost", run=RUN, milliseconds=MS, narrow=True)
  run = only(cost, turn(0, (1, 2), reached=(4, 2), passed=(4, 1)))
  assert run["total"]["conditional"] == [1.0, 0.5]
  assert run["theory"]["tokens"] == pytest.approx(1.5)
  assert run["theory"]["verify"] == pytest.approx(0.4 * 1.8 + 0.6)


def test_compile_times_add_up_and_of_equal_turns_the_last_counts():
  compiling = dict(kind="compile", run=RUN, seconds=2.0)
  run = only(compiling, turn(0, (9, 9)), compiling, turn(0, (1, 2)))
  assert run["compile"] == 4.0 and run["total"]["speedup"] == 2.0


def peer(prompt, **fields):
  return dict(kind="peer", peer="p", mode="plain", temperature=0.0,
              prompt=prompt, category="", turn=0, seconds=4.0, first=1.0,
              emitted=5) | fields


def test_peers_have_their_pace_and_how_far_they_agree():
  lines = [peer(0, agrees=5, of=5), peer(2, emitted=1, seconds=0.0),
           peer(1, agrees=2, of=5, seconds=6.0, later=2)]
  (x,) = report.numbers([ABOUT, *lines])["peers"]
  assert (x["seconds"], x["first"], x["prompts"]) == (2.0, 1.0, 3)
  assert (x["texts"], x["same"], x["tokens"], x["same_tokens"]) == (2, 1, 10, 7)


def broken(where, value):
  line = json.loads(json.dumps(turn(0, (1, 2))))
  *path, last = where
  inner = line
  for name in path:
    inner = inner[name]
  inner[last] = value
  return line


@pytest.mark.parametrize("where, value, says", [
    (["kind"], "other", "kind is 'other'; give one of about"),
    (["kind"], [], "kind is a list"),
    (["run"], None, "run is None; give an object"),
    (["run", "k"], 10**9, "run.k is 1000000000; give a whole number up to"),
    (["run", "k"], "all", "run.k is 'all'"),
    (["group"], [1], "group is a list"),
    (["drafts", "seconds"], float("nan"), "drafts.seconds is nan; give a num"),
    (["plain", "later"], -1, "plain.later is -1"),
    (["plain", "later"], True, "plain.later is True"),
    (["drafts", "rows"], {}, "rows is an object; give a list"),
    (["drafts", "rows", 0, "passed", 1], "x", r"rows\[0\].passed\[1\] is 'x'"),
    (["drafts", "rows", 0, "passed"], [1], "must be of one length"),
    (["categories"], [], "must be equally long"),
])
def test_a_bad_line_is_named(where, value, says):
  with pytest.raises(ValueError, match=f"^line 2: .*{says}"):
    report.numbers([ABOUT, broken(where, value)])


def test_files_cut_broken_or_without_a_beginning(tmp_path):
  path = tmp_path / "results.jsonl"
  good = [json.dumps(x) for x in (ABOUT, turn(0, (1, 2)))]
  path.write_text("\n".join(good) + "\n" + good[1][:50])
  assert report.write(tmp_path) == report.numbers(map(json.loads, good))
  for text, says in (
      ("\n".join([good[0], good[1][:50], good[1]]), "line 2: it is no JSON"),
      (good[0] + "\n[1]\n", "line 2: give a JSON object"),
      (good[0] + "\n" + "[" * 100000 + "\n", "line 2: it is no JSON"),
      ("\xff\n", "line 1: it is no JSON"),
      (good[1] + "\n", "no line is of kind 'about'"),
      ("", "no line is of kind 'about'"),
  ):
    path.write_text(text, "latin-1")
    with pytest.raises(ValueError, match=says):
      report.write(tmp_path)


class Tags(html.parser.HTMLParser):
  """Checks that tags close in order, and keeps what could reach outside."""

  def __init__(self, text):
    super().__init__()
    self.open, self.seen, self.sources, self.text = [], set(), [], []
    self.feed(text)
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.seen.add(tag)
    self.sources += [v for k, v in attrs if k in ("src", "href")]
    assert not any(k.startswith("on") for k, _ in attrs)
    if tag not in ("meta", "img"):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.text.append(data)


HOSTILE = "<script>alert(1)</script> | `x` \n# y"


def test_a_page_is_whole_and_escapes_what_it_is_told(fake):
  lines = [*fake(**FEW, drafters=(HOSTILE,), categories=(HOSTILE, "b" * 300),
                 command=HOSTILE, cpu="</title>", notes={"a": [1, [2]]})]
  text = report.page(report.numbers(lines))
  tags = Tags(text)
  assert not {"script", "iframe", "link", "object"} & tags.seen
  assert all(x.startswith("data:image/png") for x in tags.sources)
  assert "default-src 'none'" in text
  words = " ".join(tags.text)
  for told in (*report.DEFINITIONS, *report.DEFINITIONS.values(),
               "<script>alert(1)</script> | `x` # y", "</title>"):
    assert told in words
  quoted = report.markdown(report.numbers(lines))
  assert "\\<script\\>alert(1)\\</script\\> \\| \\`x\\` # y" in quoted
  assert "\n# y" not in quoted


def test_a_page_without_matplotlib_says_so(fake, monkeypatch):
  monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
  text = report.page(report.numbers(fake(**FEW)))
  assert "matplotlib was not installed" in text and "<img" not in text
  Tags(text)


@pytest.mark.parametrize("case", [
    {}, dict(costs=False), dict(peers=False), dict(synthetic_acceptance=0.8),
    dict(rule="block"), dict(drafters=()), dict(drafters=(), peers=False),
])
def test_every_case_has_its_page(fake, monkeypatch, case):
  monkeypatch.setattr(report, "pictures", lambda numbers: {})
  found = report.numbers(fake(**FEW | dict(drafters=("ngram",)) | case))
  text, quoted = report.page(found), report.markdown(found)
  Tags(text)
  marked = "Synthetic acceptance 0.8: not real output" in text
  assert marked == ("synthetic_acceptance" in case)
  assert ("not real output" in quoted) == marked
  assert ("Nothing has been measured" in text) == ("drafters" in case)
  assert ("Other software" in quoted) == case.get("peers", True)
  assert ("Only the token rule promises" in text) == ("rule" in case)


def test_tables_quote_the_numbers():
  found = report.numbers([
      ABOUT, *(turn(g, (1, 2)) for g in range(5)),
      dict(kind="cost", run=RUN, milliseconds=MS), peer(0, agrees=2, of=5),
  ])
  rows = report.markdown(found).splitlines()
  assert (
      "| ngram | 2 | 1 | 1 | 5 | 1.50 | 2.00x (2.00 to 2.00)"
      " | 2.00x (2.00 to 2.00) | 0 of 5 | 2.00x | 0.75x |" in rows
  )
  assert (
      "| ngram | 2 | 1 | 1 | 100.0 / 200.0 | 100.0 / 200.0 | 10.0 / 5.0 | - | -"
      " |" in rows
  )
  assert (
      "| p | plain | 0 | 1 | 1000.0 | 1000.0 | 1.0 | - | 0 of 1 | 40.0% |  |"
      in rows
  )
  assert "faster with their whole interval: 1; slower: 0" in rows[6]
