"""The verbs from the command line: what is chosen, what is told, and the exit codes."""

from __future__ import annotations

import getpass
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from outbox_core.models import Message, Operation, Parked, Pending
from outbox_core.operations.inspect import standing
from outbox_core.operations.verbs import act
from outbox_core.states import VERBS, State
from tests.integration.situations import ANA, dead, dispatched, own, pending, retrying

pytestmark = pytest.mark.django_db(transaction=True)


def run(command: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    out = StringIO()
    try:
        call_command(f"outbox_{command}", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        return error.returncode, out.getvalue() + str(error)
    return 0, out.getvalue()


def report(command: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out = run(command, *arguments, "--json")
    return code, json.loads(out.splitlines()[0])


@pytest.mark.parametrize(
    ("verb", "make", "state"),
    [("retry", dead, "pending"), ("redispatch", dispatched, "pending"), ("mark", retrying, "marked"),
     ("discard", pending, "discarded")],
)  # fmt: skip
def test_each_verb_has_one_effect_and_one_audit_row(verb: str, make: Any, state: str) -> None:
    message = make()
    code, out = run(verb, "--id", str(message.message_id), "--reason", "queue bound")
    assert (code, standing(message).state) == (0, state)
    row = Operation.objects.get()
    assert (row.verb, row.actor, row.origin, row.reason) == (verb, getpass.getuser(), "cli", "queue bound")
    assert row.message_id == str(message.message_id) and row.selection == {"ids": [str(message.message_id)]}
    assert "1 message" in out


def test_a_refused_one_is_told_and_the_exit_code_is_4() -> None:
    message, good = pending(), dead()
    own("dispatcher-b", in_flight=[message])
    code, out = run("discard", "--id", str(message.message_id), "--id", str(good.message_id), "--reason", "r")
    assert (
        code == 4 and "is being sent by dispatcher-b since" in out and "1 message discarded, 1 refused" in out
    )
    assert Parked.objects.get().pk == good.pk and Operation.objects.count() == 1


def test_nothing_matched_is_3_and_nothing_is_written() -> None:
    pending()
    assert run("retry", "--state", "dead", "--reason", "r")[0] == 3
    code, out = run("retry", "--id", "00000000-0000-0000-0000-000000000000", "--reason", "r")
    assert code == 3 and "No message matches" in out
    assert not Operation.objects.exists()


def test_one_missing_id_among_others_is_told() -> None:
    missing = "00000000-0000-0000-0000-000000000000"
    code, out = run("retry", "--id", str(dead().message_id), "--id", missing, "--reason", "r", "--json")
    items = json.loads(out.splitlines()[0])["items"]
    assert code == 4 and [i["outcome"] for i in items] == ["done", "missing"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--all"], "--reason is missing"), (["--all", "--reason", "  "], "--reason"),
        (["--all", "--reason", "x" * 501], "500 characters"), (["--reason", "r"], "which messages?"),
        (["--reason", "r", "--id", "7"], "not a message id"), (["--reason", "r", "--all", "--type", "t"], "--all"),
        (["--reason", "r", "--older-than", "10"], "not a time like"),
        (["--reason", "r", "--all", "--limit", "0"], "--limit"),
        (["--reason", "r", "--all", "--database", "elsewhere"], "elsewhere"),
    ],
)  # fmt: skip
def test_bad_usage_is_2_in_one_clear_line(arguments: list[str], words: str) -> None:
    dead()
    code, out = run("retry", *arguments)
    assert code == 2 and words in out and "\n" not in out.strip()
    assert Parked.objects.count() == 1 and not Operation.objects.exists()


def test_filters_choose() -> None:
    one, two, three = dead(type="order.paid"), dead(type="invoice.sent"), dead(key="k")
    assert run("retry", "--type", "invoice.*", "--reason", "r")[0] == 0
    assert list(Pending.objects.values_list("pk", flat=True)) == [two.pk]
    assert run("discard", "--key", "k", "--reason", "r")[0] == 0
    assert standing(three).state == "discarded" and standing(one).state == "dead"
    assert (
        run("mark", "--state", "dead", "--error", "Unroutable", "--older-than", "0s", "--reason", "r")[0] == 0
    )
    assert standing(one).state == "marked"
    assert Operation.objects.get(verb="mark").selection == {
        "state": "dead",
        "error": "Unroutable",
        "older_than": 0,
    }


def test_older_than_leaves_the_young_alone() -> None:
    dead()
    assert run("retry", "--older-than", "10m", "--reason", "r")[0] == 3


@pytest.mark.parametrize("verb", VERBS)
def test_all_takes_what_the_verb_is_for(verb: str) -> None:
    made = {State.DEAD: dead(), State.RETRYING: retrying(), State.DISPATCHED: dispatched()}
    code, found = report(verb, "--all", "--reason", "r")
    expected = {str(m.message_id) for state, m in made.items() if state in VERBS[verb]}
    assert code == 0 and {i["message_id"] for i in found["items"]} == expected
    assert Operation.objects.count() == found["done"] == len(expected)


def test_what_is_due_already_is_unchanged_and_no_failure() -> None:
    message = pending()
    code, out = run("retry", "--id", str(message.message_id), "--reason", "r")
    assert code == 0 and "0 messages retried, 1 unchanged" in out and not Operation.objects.exists()


def test_dry_run_tells_and_changes_nothing() -> None:
    for _ in range(25):
        dead()
    code, out = run("retry", "--all", "--dry-run")
    assert code == 0 and "25 messages would be retried. Nothing was changed." in out and "and 5 more" in out
    code, found = report("retry", "--all", "--dry-run", "--limit", "3")
    assert (found["matched"], found["dry_run"], len(found["items"])) == (3, True, 3)
    assert Parked.objects.count() == 25 and not Operation.objects.exists()


def test_redispatch_keeps_the_order_of_a_key() -> None:
    messages = [dispatched(key="k") for _ in range(4)]
    assert run("redispatch", "--key", "k", "--reason", "r")[0] == 0
    order = list(Pending.objects.order_by("position").values_list("pk", flat=True))
    assert order == [m.pk for m in messages]


def test_what_changed_after_it_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = dead(), dead()
    from outbox_core.management import verb_command

    def meddle(verb: str, pk: int, **arguments: Any) -> Any:
        """A colleague retries the second one while the first is being discarded."""
        if pk == first.pk:
            act("retry", second.message_id, actor=ANA, reason="mine")
        return act(verb, pk, **arguments)

    monkeypatch.setattr(verb_command, "act", meddle)
    code, out = run("discard", "--state", "dead", "--reason", "r")
    assert code == 4 and "changed by ana" in out
    assert standing(first).state == "discarded" and standing(second).state == "pending"


def test_the_process_itself_exits_with_the_codes(spawn: Any) -> None:
    message: Message = dead()
    for arguments, code in (
        (["--id", str(message.message_id), "--reason", "r"], 0),
        (["--id", str(message.message_id), "--reason", "r"], 0),
        (["--all"], 2), (["--state", "dispatched", "--reason", "r"], 2), (["--type", "none", "--reason", "r"], 3),
    ):  # fmt: skip
        process = spawn("outbox_retry", *arguments)
        assert process.wait(60) == code, process.output
        assert "Traceback" not in process.output
