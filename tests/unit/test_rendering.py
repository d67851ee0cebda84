"""Payloads, durations, charts, filters, timelines: what pages are made of, without a database."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.http import QueryDict
from django.utils.html import strip_tags
from hypothesis import given
from hypothesis import strategies as st

from dashboard import filters, payload, series, story, wording
from outbox_core import jsontext
from outbox_core.operations import words
from outbox_core.operations.masking import mask as masked
from outbox_core.operations.masking import plain
from outbox_core.operations.timeline import Entry

TRACE = "Traceback (most recent call last):\n  x\nKeyError: 1"
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

numbers = st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
def test_what_is_rendered_reads_back_as_what_it_was(value):
    markup = str(payload.render(value).html)
    assert jsontext.load(html.unescape(strip_tags_of_ours(markup))) == jsontext.load(jsontext.dump(value))


def strip_tags_of_ours(markup: str) -> str:
    """Without the spans that the renderer writes; anything else that looks like a tag would stay."""
    return re.sub(r'<span class="\w*">|</span>', "", markup)


@given(texts)
def test_no_text_of_a_payload_becomes_markup(text):
    markup = strip_tags_of_ours(str(payload.render({text: text}).html))
    assert "<" not in markup


def test_digits_are_kept():
    value = jsontext.load('{"a":9007199254740993,"b":12.50,"c":' + "9" * 400 + "}")
    text = strip_tags(str(payload.render(value).html))
    assert "9007199254740993" in text
    assert "12.50" in text
    assert "9" * 400 in text


def test_a_long_payload_is_cut_near_its_budget():
    rendered = payload.render(["x" * 100] * 5000, budget=10_000)
    assert rendered.cut
    assert len(html.unescape(strip_tags(str(rendered.html)))) < 10_200
    assert "more characters" in str(payload.render("x" * 5000).html)


def test_masking_follows_the_rules(settings):
    settings.OUTBOX = {**settings.OUTBOX, "MASK": ["email", "**.password", "lines.card", "*.pin"]}
    value = {
        "email": "a",
        "deep": {"email": "kept", "password": {"any": 1}},
        "lines": [{"card": 1, "sku": 2}],
        "x": {"pin": 3},
        "password": "top",
    }
    assert plain(masked(value)) == {
        "email": "masked",
        "deep": {"email": "kept", "password": "masked"},
        "lines": [{"card": "masked", "sku": 2}],
        "x": {"pin": "masked"},
        "password": "masked",
    }
    assert payload.render(masked(value)).masked == 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.34, "340 ms"),
        (4.21, "4.2 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (252, "4 min 12 s"),
        (3600, "1 h"),
        (93_780, "1 d 2 h"),
        (-5, "-5.0 s"),
    ],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert wording.duration(seconds) == text
    assert wording.duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1204, "1,204"), (18_400, "18.4k"), (250_000, "250k"), (3_100_000, "3.1M"), (None, "-")],
)
def test_counts_are_short(count, text):
    assert wording.compact(count) == text


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (180, 200), (501, 1000)]
)
def test_a_chart_ends_at_a_round_value(value, top):
    assert series.round_up(value) == top


def test_a_chart_says_in_words_what_it_draws():
    chart = series.Chart([series.Line("dispatched", "dispatched", [1, 4, 2])], NOW - timedelta(hours=1), NOW)
    markup = str(series.chart(chart))
    assert 'aria-label="dispatched: now 2/s, at most 4/s"' in markup
    assert "<style" not in markup
    assert series.spark([0, 0, 0]) == ""
    assert series.Chart([series.Line("a", "a", [0, 0])], NOW, NOW).empty


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("15m", NOW - timedelta(minutes=15)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=UTC)),
        ("2026-01-30T10:00", datetime(2026, 1, 30, 10, tzinfo=UTC)),
        ("2026-01-30T10:00:00+02:00", datetime(2026, 1, 30, 8, tzinfo=UTC)),
        ("2026-01-30T10:00:00 02:00", datetime(2026, 1, 30, 8, tzinfo=UTC)),
        ("soon", None),
        ("99999-01-01", None),
        ("", None),
        ("9999999999d", None),
    ],
)
def test_a_moment_is_a_time_a_day_or_so_long_ago(text, at):
    assert filters.moment(text, NOW) == at


def test_filters_that_are_bad_are_named_and_do_not_filter():
    read = filters.read(QueryDict("state=lost&since=soon&key= a &type="), NOW)
    assert read.selection.state == ""
    assert read.selection.key == "a"
    assert read.selection.since is None
    assert len(read.problems) == 2


def entry(n: int, text: str, kind: str = "failed") -> Entry:
    return Entry(NOW - timedelta(minutes=n), kind, text, attempt=10 - n)


def test_equal_errors_are_folded_and_gaps_are_shown():
    entries = [entry(n, f"Attempt {10 - n} failed: no exchange") for n in range(6)] + [
        entry(9, "Committed", "committed")
    ]
    lines = story.tell(entries)
    assert [line.folded for line in lines] == [0, 4, 0, 0]
    assert (lines[1].first, lines[1].last) == (6, 9)
    assert lines[0].gap == timedelta(minutes=1)
    assert lines[2].gap == timedelta(minutes=4)
    assert lines[3].gap is None


@pytest.mark.parametrize(
    ("error", "line", "whole"),
    [
        ("no stock", "no stock", ""),
        ("  no stock \n", "no stock", ""),
        ("no stock\n  stock.py:7 in take", "no stock", "no stock\n  stock.py:7 in take"),
        (TRACE, "KeyError: 1", TRACE),
        ("x" * 241, "x" * 239 + "…", "x" * 241),
        ("", "", ""),
    ],
)
def test_the_line_that_says_what_an_error_is(error, line, whole):
    assert words.gist(error) == (line, whole)


def test_different_errors_are_not_folded():
    entries = [entry(n, f"Attempt {10 - n} failed: error {n}") for n in range(6)]
    assert [line.folded for line in story.tell(entries)] == [0] * 6


def test_numbers_of_a_decimal_keep_their_form():
    assert strip_tags(str(payload.render(Decimal("1.10")).html)) == "1.10"
