"""lowerhalf/rdma/kv/kv.c with real agents: what a program sees, whatever happens to its agent."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rdma_agents import Agent, Program

from manapy.rdma import client
from waiting import until

Start = Callable[..., Agent]
Run = Callable[..., Program]

NEVER = 3600  # seconds: longer than the test lasts
LONG = 120_000  # ms to wait for an event that must happen, on a very busy machine


def test_put_get_delete(agent: Start, program: Run) -> None:
    host = agent()
    a, b = program(host), program(host)
    assert b.get("qp/1") is None
    a.put("qp/1", b"\x00\xff one")
    assert b.get("qp/1") == b"\x00\xff one" and a.get("qp/1") == b"\x00\xff one"
    a.put("qp/1", b"two")
    assert b.get("qp/1") == b"two"
    assert a("del", "qp/1") == (0, "")
    assert a.get("qp/1") is None and b.get("qp/1") is None
    assert a("del", "qp/1") == (0, ""), "what isn't there is deleted already"


def test_a_key_belongs_to_who_put_it_last(agent: Start, program: Run) -> None:
    """Another process uses a queue pair's number again before the first one's deletion arrives."""
    host = agent()
    a, b = program(host), program(host)
    a.put("qp/1", b"a")
    b.put("qp/1", b"b")
    assert a("del", "qp/1") == (0, "")
    assert b.get("qp/1") == b"b"
    a.kill()
    until(lambda: len(host.status()["clients"]) == 1, "the agent's farewell to a")
    assert b.get("qp/1") == b"b"


def test_thousand_keys(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host)
    assert a("many", 1000) == (1000, "")
    assert host.status()["clients"][0]["keys"] == 1000


def test_several_keys_in_one_question(agent: Start, program: Run) -> None:
    host = agent()
    a, b = program(host), program(host)
    a.put("x", b"1")
    b.put("y", b"22")
    assert a("find", "x,none,y,x") == (0, "31 - 3232 31") and a.get("none") is None
    keys = [f"{n}/" + "k" * 250 for n in range(64)]
    for key in keys:
        a.put(key, bytes(range(30)))
    assert b("find", ",".join(keys)) == (0, " ".join([bytes(range(30)).hex()] * 64)), "as many as go into a request"
    assert b("find", ",".join([*keys, "x"]))[0] == -errno.EINVAL
    assert b("find", "x,\x7f")[0] == -errno.EINVAL and b("find", "x,y") == (0, "31 3232")


def test_noted_keys_go_together(agent: Start, program: Run) -> None:
    host = agent()
    a, b = program(host), program(host)
    assert a("note", 500)[0] in range(8, 12), "8 batches"
    assert host.status()["clients"][0]["keys"] == 333
    assert b("find", "noted/497,noted/499") == (0, f"{bytes([0xF1, 1, 0, 0]).hex()} {bytes([0xF3, 1, 0, 0]).hex()}")
    host.kill()
    assert a("note", 500)[0] == -errno.ECONNREFUSED, "they are noted nevertheless"
    host.start()
    assert a("connect") == (0, "") and host.status()["clients"][0]["keys"] == 333


def test_longest_key_and_value(agent: Start, program: Run) -> None:
    a = program(agent())
    a.put("k" * 255, bytes(range(256)))
    assert a.get("k" * 255) == bytes(range(256))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("k", bytes(257), errno.EMSGSIZE),
        ("k", bytes(40000), errno.EMSGSIZE),
        ("k" * 256, b"v", errno.EINVAL),
        ("\x7f", b"v", errno.EINVAL),
        ("k", b"", errno.EINVAL),
    ],
)
def test_what_is_no_pair_is_refused_at_once(agent: Start, program: Run, key: str, value: bytes, error: int) -> None:
    host = agent()
    a = program(host)
    assert a("put", key, value)[0] == -error
    a.put("good", b"1")
    assert host.status()["clients"][0]["keys"] == 1


def test_jobs_do_not_meet(agent: Start, program: Run) -> None:
    host = agent()
    stranger = program(host, job="another")
    result, text = stranger("get", "k")
    assert result == -errno.EACCES and "serves the job job, not another" in text


def test_wrong_secret(agent: Start, program: Run) -> None:
    host = agent()
    assert program(host).get("k") is None  # the agent has read the secret
    good = host.place.secret.read_bytes()
    host.place.secret.write_bytes(bytes(32))
    a = program(host)
    result, text = a("get", "k")
    assert result == -errno.EACCES and "secret" in text
    host.place.secret.write_bytes(good)
    assert a.get("k") is None


def test_no_agent(agent: Start, program: Run) -> None:
    host = agent()
    host.kill(signal.SIGTERM)
    a = program(host)
    a("timeout", 10 * LONG)
    for _ in range(3):
        assert a("get", "k")[0] == -errno.ECONNREFUSED and a.took < LONG, "at once: that isn't a matter of time"
    assert a("fd")[0] == -1


def test_agent_killed_and_started_again(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host)
    a.put("k1", b"1")
    a.put("k2", b"2")
    a.put("k3", b"3")
    host.kill()
    assert a("wait", LONG) == (1, "") and a("command")[0] == -errno.ECONNRESET and a("fd")[0] == -1
    assert a("get", "k1")[0] == -errno.ECONNREFUSED
    assert a("put", "k4", b"4")[0] == -errno.ECONNREFUSED
    assert a("del", "k3")[0] == -errno.ECONNREFUSED
    host.start()
    b = program(host)
    assert a("connect") == (0, "")
    assert [b.get(f"k{i}") for i in (1, 2, 4)] == [b"1", b"2", b"4"], "also what was put while there was no agent"
    assert host.status()["clients"][0]["keys"] == 3


def test_agent_killed_in_between_is_no_error_if_it_is_back(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host)
    a.put("k1", b"1")
    host.kill()
    host.start()
    assert a.get("k1") == b"1"


def test_short_disconnect_loses_nothing(agent: Start, program: Run) -> None:
    """The agent keeps a client's keys while the client is disconnected."""
    host = agent()
    a, b = program(host), program(host)
    a.put("k", b"1")
    assert a("cut") == (0, "")
    until(lambda: any(not c["connected"] for c in host.status()["clients"]), "the end of the connection")
    assert b.get("k") == b"1"
    assert a("command")[0] == -errno.ECONNRESET and a("connect") == (0, "")
    assert sorted((c["connected"], c["keys"]) for c in host.status()["clients"]) == [(True, 0), (True, 1)]
    assert b.get("k") == b"1"


def test_a_client_that_does_not_come_back_is_given_up(agent: Start, program: Run) -> None:
    """Its process lives on, e.g. because it has become another program. If it does come back later, it gets its keys
    again."""
    host = agent(settings="from manapy.rdma import agent; agent.RETURN_SECONDS = 0.5")
    a, b = program(host), program(host)
    a.put("k", b"1")
    assert b.get("k") == b"1" and a("cut") == (0, "")
    until(lambda: b.get("k") is None, "the end of its keys")
    assert a("command")[0] == -errno.ECONNRESET and a("connect") == (0, "")
    assert b.get("k") == b"1"


def test_keys_of_a_killed_program_vanish_at_once(agent: Start, program: Run) -> None:
    host = agent(settings=f"from manapy.rdma import agent; agent.RETURN_SECONDS = {NEVER}")
    a, b = program(host), program(host)
    a.put("k", b"1")
    assert b.get("k") == b"1"
    child, _ = a("linger", NEVER)
    assert child > 0
    try:
        a.kill()
        until(lambda: b.get("k") is None, "the keys' end: a child that holds the connection open doesn't count")
    finally:
        os.kill(child, signal.SIGKILL)


def test_keys_of_a_closed_handle_vanish_at_once(agent: Start, program: Run) -> None:
    host = agent(settings=f"from manapy.rdma import agent; agent.RETURN_SECONDS = {NEVER}")
    a, b = program(host), program(host)
    a.put("k", b"1")
    assert b.get("k") == b"1"
    assert a.quit() == 0
    until(lambda: b.get("k") is None, "the keys' end")


def test_forked_child_is_kept_out(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host)
    a.put("k", b"1")
    assert a("fork")[0] == -errno.ECHILD
    assert a.get("k") == b"1" and a.get("child") is None, "its close says nothing"


def test_stopped_agent_costs_one_timeout(agent: Start, program: Run) -> None:
    """Later it costs one timeout each second. When something comes from the agent, the client uses it again."""
    host = agent()
    a, late = program(host), program(host)
    a.put("k", b"1")
    host.process.send_signal(signal.SIGSTOP)
    a("timeout", 3000)
    late("timeout", 300)
    assert a("get", "k")[0] == -errno.ETIMEDOUT and a.took >= 2900
    took = []
    for _ in range(20):
        assert a("put", "new", b"2")[0] == -errno.ETIMEDOUT
        took.append(a.took)
    assert min(took) < 2900, "not each of them waits"
    assert late("get", "k")[0] == -errno.ETIMEDOUT, "also who wants to connect"
    host.process.send_signal(signal.SIGCONT)
    a("timeout", LONG)
    late("timeout", LONG)
    until(lambda: a("get", "k") == (1, b"1".hex()), "the agent's return")
    assert a.get("new") == b"2", "the put that had failed was done"
    until(lambda: late("get", "k") == (1, b"1".hex()), "the agent's return")


def test_late_answers_are_dropped(agent: Start, program: Run) -> None:
    """The answer to a request that was given up must not be taken for the answer to the next one."""
    host = agent()
    a = program(host)
    a.put("k1", b"1")
    a.put("k2", b"2")
    host.process.send_signal(signal.SIGSTOP)
    a("timeout", 100)
    assert a("get", "k1")[0] == -errno.ETIMEDOUT
    host.process.send_signal(signal.SIGCONT)
    a("timeout", LONG)
    until(lambda: a("wait", LONG) == (1, ""), "the late answer")
    assert a.get("k2") == b"2"


def test_commands_are_pushed(agent: Start, program: Run) -> None:
    host = agent()
    a, b = program(host, PMI_RANK="0"), program(host, PMI_RANK="1")
    assert a("command") == (0, "") and a("connect") == (0, "") and b("connect") == (0, "")
    with client.Connection(host.place) as connection:
        assert connection.ask("MOVE", 1, 17, "rxb1") == "1"
        assert b("wait", LONG) == (1, "")
        assert b("command") == (len("MOVE 17 rxb1"), "MOVE 17 rxb1") and b("command") == (0, "")
        assert a("command") == (0, "")
        assert connection.ask("MOVE", a.process.pid, "*", "rxb1") == "1"
        assert connection.ask("MOVE", "*", "*", "rxa0") == "2"
    assert a.get("k") is None, "commands that come before an answer"
    assert [a("command")[1] for _ in range(3)] == ["MOVE * rxb1", "MOVE * rxa0", ""]


def test_many_commands_that_nobody_takes(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host)
    assert a("connect") == (0, "")
    with client.Connection(host.place) as connection:
        for i in range(50):
            connection.ask("MOVE", "*", i, "d")
    assert a.get("k") is None
    assert [a("command")[1] for _ in range(17)] == [*(f"MOVE {i} d" for i in range(34, 50)), ""]


def test_events_and_states(agent: Start, program: Run) -> None:
    host = agent()
    a = program(host, PMI_RANK="3")
    assert a("event", '{"qp": 17, "event": "protected", "device": "rxa0"}') == (0, "")
    assert a("event", '{"qp": 17, "event": "fallback", "device": "rxa1", "ms": 2.5}') == (0, "")
    (one,) = host.status()["clients"]
    assert one["pid"] == a.process.pid and one["rank"] == 3 and one["connected"]
    (state,) = one["states"]
    assert (state["qp"], state["event"], state["device"], state["switches"], state["ms"], state["rank"]) == (
        17,
        "fallback",
        "rxa1",
        1,
        2.5,
        3,
    )
    with client.Connection(host.place) as connection:
        events = connection.watch(0)
        assert [next(events)["event"] for _ in range(2)] == ["protected", "fallback"]
        assert a("event", '[{"qp": 17, "event": "return", "device": "rxa0"}, {"qp": 18, "event": "protected"}]') == (
            0,
            "",
        )
        assert next(events) | {"time": 0} == {
            "pid": a.process.pid,
            "rank": 3,
            "qp": 17,
            "event": "return",
            "device": "rxa0",
            "seq": 3,
            "time": 0,
        }
        assert (next(events)["qp"], len(host.status()["clients"][0]["states"])) == (18, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"event": 1}',
        '{"event": "x", "qp": "y"}',
        "{" * 3000,
        '[{"event": "x"}, 1]',
        '{"event": "' + "x" * 70000 + '"}',
    ],
)
def test_bad_events(agent: Start, program: Run, text: str) -> None:
    host = agent()
    a = program(host)
    assert a("event", text)[0] in (-errno.EINVAL, -errno.EMSGSIZE)
    assert a("event", '{"event": "x"}') == (0, "")
    assert json.dumps(host.status()["clients"][0]["states"]).count("event") == 1


def test_store_that_is_gone_is_said_and_comes_back(agent: Start, program: Run, short: Path) -> None:
    (short / "there").mkdir()
    host = agent(url=f"sqlite://{short}/there/keys.db")
    a = program(host)
    a.put("k1", b"1")
    (short / "there").rename(short / "away")
    result, text = a("put", "k2", b"2")
    assert result == -errno.EHOSTUNREACH and f"{short}/there/keys.db" in text
    assert a("event", '{"event": "x"}') == (0, ""), "events need no store"
    assert host.status()["trouble"] == text
    (short / "away").rename(short / "there")
    assert a("connect") == (0, "") and a.get("k1") == b"1" and a.get("k2") == b"2"
    assert host.status()["trouble"] is None


def test_unset_environment(driver: Path) -> None:
    done = subprocess.run([str(driver)], env={}, capture_output=True, text=True, timeout=LONG / 1000)
    assert done.returncode == 1 and "No such file" in done.stderr


def test_nothing_is_known_of_a_program_that_has_left(
    agent: Start, program: Run, clients: Callable[[Agent], list[dict[str, Any]]]
) -> None:
    host = agent()
    a = program(host)
    a.put("k", b"1")
    a("event", '{"qp": 1, "event": "x"}')
    a.kill()
    until(lambda: clients(host) == [] and host.process.poll() is None, "the end of the client")


def test_a_storm_of_accidents_loses_nothing(agent: Start, program: Run) -> None:
    """Programs put and delete their own keys while connections are cut and the agent is stopped, killed and started
    again. In the end every program sees each key as the last call has set it, whether that call failed or not."""
    dice = random.Random(5)
    host = agent("host", "--ttl=2s")
    programs = [program(host) for _ in range(3)]
    wanted: list[dict[str, bytes | None]] = [{} for _ in programs]
    for one in programs:
        one("timeout", 200)
    stopped = False
    for step in range(400):
        number = dice.randrange(len(programs))
        key = f"{number}/{dice.randrange(12)}"
        match dice.randrange(40):
            case 0:
                host.kill()
                stopped = False
                if dice.random() < 0.5:
                    programs[0]("get", "x")
                host.start()
            case 1 if not stopped:
                host.process.send_signal(signal.SIGSTOP)
                stopped = True
            case 2 | 3 if stopped:
                host.process.send_signal(signal.SIGCONT)
                stopped = False
            case 4 | 5:
                programs[number]("cut")
            case choice if choice < 15:
                wanted[number][key] = None
                programs[number]("del", key)
            case _:
                wanted[number][key] = value = b"%d" % step
                programs[number]("put", key, value)
    if stopped:
        host.process.send_signal(signal.SIGCONT)
    for one in programs:
        one("timeout", LONG)
        until(lambda: one("connect") == (0, ""), "the agent")  # noqa: B023
    for reader in programs:
        for keys in wanted:
            for key, value in keys.items():
                if value is None:  # deleted: at once, or with the lease of an agent that has died
                    until(lambda: reader.get(key) is None, f"the end of {key}")  # noqa: B023
                else:
                    assert reader.get(key) == value or reader.get(key) == value, (
                        f"{key}, asked again (invariant 4 of agent.py)"
                    )
