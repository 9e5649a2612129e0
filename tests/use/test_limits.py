"""What clients do to a server: too much, too slowly, too often, or going away. Over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_errors import data_error
from fastapi import HTTPException
from matrix_part import of_ten_seconds
from served import StandIn, running, stand_in_service

from fairseq_syntax.use.serving import server
from fairseq_syntax.use.serving.app import create_app
from fairseq_syntax.use.serving.guard import allowed_hosts, in_time
from fairseq_syntax.use.serving.messages import TranslateRequest, validated
from fairseq_syntax.use.serving.server import prepared
from fairseq_syntax.use.serving.service import Service

TEXT = {"text": "one two"}


def until(condition, seconds: float = 60.0) -> bool:
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.01)
    return bool(condition())


def begins_with(connection: socket.socket, expected: bytes) -> bool:
    """Whether an answer begins with these bytes, which may come in pieces."""
    answer = b""
    while len(answer) < len(expected) and (part := connection.recv(65536)):
        answer += part
    return answer.startswith(expected)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection without an answer; with data that it has not read, it is a reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def raw(port: int, head: str = "", length: int | str = 0) -> socket.socket:
    """A connection that has sent the beginning of a request."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    lines = ["POST /translate HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {length}"]
    connection.sendall((head or "\r\n".join([*lines, "", ""])).encode())
    return connection


def test_clients_may_knock_before_it_runs():
    """Its address is printed first: who connects at once is not refused."""
    _, service = stand_in_service()
    server, listening = prepared(create_app(service), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    try:
        with raw(listening.getsockname()[1], "GET /health HTTP/1.1\r\nhost: x\r\n\r\n") as connection:
            thread.start()
            assert begins_with(connection, b"HTTP/1.1 200 ")
    finally:
        server.should_exit = True
        thread.join(30)


def test_pages_from_elsewhere_cannot_ask_under_their_own_name():
    """DNS rebinding: a page's name is made to point here, so that the browser takes the server for the page's own."""
    _, service = stand_in_service()
    with running(service, hosts=allowed_hosts("127.0.0.1", ["translate.example", "*.here.example"])) as server:
        for path in ("/", "/models", "/translate", "/metrics"):
            assert server.ask("GET", path, headers={"host": f"evil.example:{server.port}"})[0] == 400
        for host in ("localhost", "LocalHost:80", "127.0.0.1:1", "[::1]:80", "Translate.example:443", "a.here.example"):
            assert server.ask("GET", "/health", headers={"host": host})[0] == 200, host
        for host in (
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xlocalhost",
            "evil.example:localhost",
            "[evil.example]",
        ):
            status, answer = server.ask("GET", "/health", headers={"host": host})
            assert status == 400 and "--allowed-host" in answer["error"], host
        assert 'status="400"' in server.ask("GET", "/metrics")[1]


def test_what_is_no_http_is_answered_as_every_refusal_is():
    _, service = stand_in_service()
    with running(service) as server, raw(server.port, "nonsense\r\n\r\n") as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400 and list(json.loads(answer.read())) == ["detail", "error"]
        assert is_closed(connection)


def test_a_monitor_may_ask_for_the_head_of_an_answer():
    _, service = stand_in_service()
    with running(service) as it, contextlib.closing(http.client.HTTPConnection("127.0.0.1", it.port)) as connection:
        for path, status in (("/health", 200), ("/", 200), ("/nothing", 404), ("/translate", 405)):
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, b"")


def test_which_servers_mind_their_names():
    for loopback in ("127.0.0.1", "127.0.0.9", "::1", "localhost", "LOCALHOST"):
        assert {"localhost", "127.0.0.1", "[::1]"} <= set(allowed_hosts(loopback))
        assert allowed_hosts(loopback, ["*"]) is None
    for open_to_others in ("0.0.0.0", "::", "192.168.1.2", "myhost"):
        assert allowed_hosts(open_to_others) is None
    assert {"translate.example", "10.0.0.1", "[::2]"} < set(
        allowed_hosts("127.0.0.9", ["Translate.Example.", "10.0.0.1", "[::2]"])
    )


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed():
    """Content-Length with Transfer-Encoding (RFC 9112, 6.1): what one reader takes for the next request another does
    not."""
    model, service = stand_in_service()
    body = json.dumps(TEXT).encode()
    head = "POST /translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    both = f"content-length: {len(body)}\r\ntransfer-encoding: chunked\r\n\r\n"
    with running(service) as server, raw(server.port, head + both) as connection:
        connection.sendall(b"%x\r\n%s\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n" % (len(body), body))
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # closed before all that was sent was read
            while part := connection.recv(65536):
                answer += part
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1 and not model.batches


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "body",
    [
        {"text": [[]] * 340_000},
        {"text": "a", **{f"k{i}": 0 for i in range(90_000)}},
        {"tokens": [["a"] * 100_000]},
        {"tokens": [[]] * 300_000},
        {"text": "a", "model": [[]] * 300_000},
    ],
    ids=["lists", "keys", "tokens", "empty tokens", "models"],
)
def test_few_errors_of_a_body_are_looked_for(body):
    with data_error() as caught:
        validated(TranslateRequest, json.dumps(body).encode())
    assert caught.value.message.count(":") == 1


def test_a_full_queue_is_said_and_passes():
    model, service = stand_in_service(wait=True, capacity=3)
    with running(service) as server:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(server.translate(**TEXT))) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert until(lambda: service.accepted == 3)
        assert server.ask("GET", "/health")[1] == {"status": "ok", "waiting": 3}
        status, answer = server.translate(**TEXT)
        assert status == 503 and "3 translations are waiting" in answer["detail"]
        status, answer = server.translate(text=["a", "b", "c", "d"])
        assert status == 422 and "more than the 3 that may wait" in answer["detail"]
        assert "fairseq_syntax_waiting 3.0" in server.ask("GET", "/metrics")[1]
        model.go.set()
        for thread in threads:
            thread.join(20)
        assert [status for status, _ in answers] == [200] * 3
        assert server.translate(**TEXT)[0] == 200 and service.accepted == 0
        assert 'requests_total{path="/translate",status="503"} 1.0' in server.ask("GET", "/metrics")[1]


def wait_behind_the_first(model: StandIn, service: Service, threads: list[threading.Thread]) -> None:
    """Let the first request occupy the model until all others wait, then let the model go on and answer all."""
    threads[0].start()
    assert model.began.wait(60)
    for thread in threads[1:]:
        thread.start()
    assert until(lambda: len(service._translating[model.name]._waiting) == len(threads) - 1)
    model.go.set()
    for thread in threads:
        thread.join(20)


def test_requests_that_come_while_a_batch_is_worked_on_go_together():
    model, service = stand_in_service(wait=True)
    with running(service) as server:
        answers = {}

        def ask(text):
            answers[text] = server.translate(text=text)

        threads = [threading.Thread(target=ask, args=(f"sentence {i}",)) for i in range(12)]
        wait_behind_the_first(model, service, threads)
    assert len(model.batches) == 2 and len(model.batches[1]) == 11
    assert all(a["translations"][0]["text"] == text[::-1] for text, (_, a) in answers.items()), "each gets its own"


@pytest.mark.parametrize("text", ["ab " * 40, "狗在睡觉" * 20], ids=["spaces", "none"])
def test_words_of_a_batch_are_bounded_whether_or_not_spaces_are_between_them(text, monkeypatch):
    monkeypatch.setattr("fairseq_syntax.use.serving.service.SEARCH_WORDS", 4 * 60)  # four hypotheses
    model, service = stand_in_service(wait=True)
    with running(service) as server:
        threads = [threading.Thread(target=server.translate, kwargs={"text": text}) for _ in range(3)]
        wait_behind_the_first(model, service, threads)
    assert list(map(len, model.batches)) == [1, 1, 1]


def test_an_answer_that_takes_too_long():
    model, service = stand_in_service(wait=True)
    with running(service, timeout=0.2) as server:
        assert server.translate(**TEXT) == (
            504,
            dict.fromkeys(("detail", "error"), "no translation within 0.2 seconds"),
        )
        assert until(lambda: service.accepted == 0)
        steps = model.steps
        time.sleep(0.2)
        assert model.steps <= steps + 1, "after its deadline a search is over within one step"
        model.go.set()
        assert until(lambda: server.translate(**TEXT)[0] == 200), "a busy machine may take longer than that once"


HANGS = """
import sys, threading, time
from served import StandIn
from fairseq_syntax.use.serving.app import create_app
from fairseq_syntax.use.serving.served_models import Source
from fairseq_syntax.use.serving.server import serve
from fairseq_syntax.use.serving.service import Service

class Hanging(StandIn):
    def translations(self, sentences, *_, **__):
        print("began", flush=True)
        if "hang" in sentences[0]:
            time.sleep(300)
        time.sleep(0.5)
        return super().translations(sentences, 4)

serve(create_app(Service([Hanging()], Source(None))), "127.0.0.1", 0, grace=float(sys.argv[1]))
"""


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("text, status", [("hang on", b"503"), ("one two", b"200")])
def test_sigterm_ends_it_within_the_grace_period_whatever_runs(text, status):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HANGS, "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    port = int(process.stdout.readline().rstrip("/\n").rsplit(":", 1)[1])
    body = json.dumps({"text": text}).encode()
    with raw(port, length=len(body)) as connection:
        connection.sendall(body)
        while "began" not in (line := process.stdout.readline()):
            assert line
        process.terminate()
        assert begins_with(connection, b"HTTP/1.1 " + status)
        # It ends by the signal; or by itself, where at the end of the period something is still running.
        assert process.wait(60) == (1 if "hang" in text else -signal.SIGTERM), "long before what hangs is over"


def test_the_work_of_a_client_that_hangs_up_is_dropped():
    model, service = stand_in_service(wait=True)
    with running(service) as server:
        first = threading.Thread(target=server.translate, kwargs=TEXT)
        first.start()
        assert model.began.wait(60)
        body = json.dumps({"text": "never mind"}).encode()
        with raw(server.port, length=len(body)) as connection:
            connection.sendall(body)
            assert until(lambda: service.accepted == 2)
        assert until(lambda: service.accepted == 1), "as soon as the client is gone"
        model.go.set()
        first.join(20)
        assert server.translate(text="next")[0] == 200
    assert model.batches == [["one two"], ["next"]]


def test_it_stops_after_answering_what_it_accepted():
    model, service = stand_in_service(wait=True)
    answers = []
    with running(service) as server:
        threads = [threading.Thread(target=lambda: answers.append(server.translate(**TEXT))) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert until(lambda: service.accepted == 3)
        server.server.should_exit = True
        assert until(lambda: refuses(server.port)) and not answers
        model.go.set()
        for thread in threads:
            thread.join(20)
    assert [status for status, _ in answers] == [200] * 3


def refuses(port: int) -> bool:
    """Whether nobody listens any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    except OSError:
        return True
    return False


def memory() -> float:
    """MB that this process, which holds the server too, has ever had (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_a_large_body_is_refused_and_not_kept():
    _, service = stand_in_service()
    with running(service, max_bytes=100_000) as server:
        server.translate(**TEXT)
        before = memory()
        chunk, chunks = b"x" * 65536, 800  # 50 MB
        with raw(server.port, length=len(chunk) * chunks) as connection:
            for _ in range(chunks):
                connection.sendall(chunk)
            assert begins_with(connection, b"HTTP/1.1 413 ")
        # without saying before how large it is
        head = "POST /translate HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        with raw(server.port, head) as connection:
            for _ in range(chunks):
                connection.sendall(b"10000\r\n" + chunk + b"\r\n")
            assert begins_with(connection, b"HTTP/1.1 413 ")
        assert memory() - before < 20
        assert server.translate(**TEXT)[0] == 200
        status, answer = server.ask("POST", "/translate", b"[" * 90_000)
        assert status in (400, 422) and answer["detail"]


def test_clients_who_send_nothing_keep_nobody_out(monkeypatch):
    """The one that has waited longest makes room; who is being answered is answered, also if that is all of them."""
    monkeypatch.setattr(server, "most_connections", lambda: 8)
    model, service = stand_in_service(wait=True)
    body = json.dumps(TEXT).encode()
    with running(service) as it, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(raw(it.port, "POST /translate HTTP/1.1\r\nhost:")) for _ in range(12)]
        asked = [stack.enter_context(raw(it.port, length=len(body))) for _ in range(7)]
        for connection in asked:
            connection.sendall(body)
        assert until(lambda: service.accepted == 7)
        assert it.ask("GET", "/health")[0] == 200, "in the place of a silent one"
        assert is_closed(silent[0]) and len(it.server.server_state.connections) <= 8
        asked.append(stack.enter_context(raw(it.port, length=len(body))))
        asked[-1].sendall(body)
        assert until(lambda: service.accepted == 8)
        with raw(it.port, "GET /health HTTP/1.1\r\n") as another, contextlib.suppress(ConnectionResetError):
            assert begins_with(another, b"HTTP/1.1 503 ")
        model.go.set()
        assert all(begins_with(connection, b"HTTP/1.1 200 ") for connection in asked)


def test_a_request_has_a_time_to_arrive(monkeypatch):
    """Its header and its body, also after another request on the same connection; an answer may take longer."""
    monkeypatch.setattr(server, "ARRIVAL", 0.4)
    model, service = stand_in_service(wait=True)
    body = json.dumps(TEXT).encode()
    with (
        running(service) as it,
        raw(it.port, "POST /translate HTTP/1.1\r\nhost:") as head,
        raw(it.port, length=9) as half,
        raw(it.port, length=len(body)) as whole,
    ):
        whole.sendall(body)
        assert is_closed(head) and is_closed(half) and service.accepted == 1
        model.go.set()
        assert begins_with(whole, b"HTTP/1.1 200 ")
        whole.sendall(b"GET /health HTTP/1.1\r\nho")
        while whole.recv(65536):
            pass  # until it is closed


def test_slow_senders_hold_up_nobody_else():
    _, service = stand_in_service()
    with running(service) as server:
        silent = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        header = raw(server.port, "POST /translate HTTP/1.1\r\nhost:")
        body = raw(server.port, length=1000)
        for connection in (silent, header, body):
            assert server.translate(**TEXT)[0] == 200
            connection.close()


def test_a_defect_of_a_model_is_one_requests_error_and_shows_no_traceback():
    _, service = stand_in_service()
    with running(service) as server:
        status, answer = server.translate(text="bad")
        assert status == 500 and list(answer) == ["detail", "error"] and "Traceback" not in answer["detail"]
        assert server.translate(**TEXT)[0] == 200
        # as every other answer: it is counted, and has the headers
        counted = server.ask("GET", "/metrics")[1]
        assert 'requests_total{path="/translate",status="500"} 1.0' in counted
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", "/translate", json.dumps({"text": "bad"}), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 500 and answer.getheader("x-content-type-options") == "nosniff" and answer.read()
        connection.close()


def test_garbage_is_not_looked_for_among_what_is_loaded(monkeypatch):
    """A body of 340,000 empty lists made everybody wait for half a second: Python looked through the models."""
    left_out = []
    monkeypatch.setattr(server.Server, "run", lambda self, sockets: left_out.append(gc.get_freeze_count()))
    _, service = stand_in_service()
    server.serve(create_app(service), "127.0.0.1", 0)
    assert left_out[0] > 10_000 and gc.get_freeze_count() == 0
    service.close()


def test_work_that_is_dropped_at_its_deadline_is_late_too():
    """A model's thread looks at the clock itself, maybe just before the answer's time is over."""
    _, service = stand_in_service()

    async def status() -> int:
        request = SimpleNamespace(receive=asyncio.Event().wait)
        work = service.translate(TranslateRequest(**TEXT), deadline=time.monotonic() - 1)
        with pytest.raises(HTTPException) as caught:
            await in_time(work, request, 30)
        return caught.value.status_code

    assert asyncio.run(status()) == 504
    service.close()
