"""Drives a gateway with grpcio: `client.py ADDRESS`. Prints a line for each case that passed."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

LIMIT = 60  # A case that takes longer hangs.
PAUSE = 0.002  # Between the calls during a change, so that clients do not take the processors from what changes.
NAME = "grpcio"
OPTIONS = [("grpc.max_metadata_size", 1 << 16), ("grpc.absolute_max_metadata_size", 1 << 16), ("grpc.max_receive_message_length", 16 << 20)]


class Client:
    """Calls of methods whose messages are bytes."""

    def __init__(self, channel: grpc.Channel):
        self.unary = lambda method, *rest, **more: channel.unary_unary(f"/test.Calls/{method}").with_call(*rest, timeout=LIMIT, **more)
        self.down = lambda method, message, within=LIMIT: channel.unary_stream(f"/test.Calls/{method}")(message, timeout=within)
        self.up = lambda method, messages: channel.stream_unary(f"/test.Calls/{method}")(messages, timeout=LIMIT)
        self.both = lambda method, messages: channel.stream_stream(f"/test.Calls/{method}")(messages, timeout=LIMIT)
        self.channel = channel

    def version(self) -> str:
        _, call = self.unary("Unary", b"hello")
        return dict(call.initial_metadata())["x-version"]


def unary(it: Client) -> None:
    for _ in range(100):
        assert it.unary("Unary", b"hello")[0] == b"hello"


def large(it: Client) -> None:
    message = b"0123456789abcdef" * (1 << 18)
    assert it.unary("Unary", message)[0] == message


def metadata(it: Client) -> None:
    sent = [("x-echo", "second"), ("x-echo", "v" * 9000), ("x-echo-bin", b"\x00\xff" * 4500)]
    _, call = it.unary("Unary", b"", metadata=sent)
    for fields in (call.initial_metadata(), call.trailing_metadata()):
        assert sorted((name, value) for name, value in fields if name.startswith("x-echo")) == sent


def server_streaming(it: Client) -> None:
    assert [len(message) for message in it.down("Down", b"1000 1000")] == [1000] * 1000


def client_streaming(it: Client) -> None:
    assert it.up("Up", (b"u" * 1000 for _ in range(1000))) == b"1000 1000000"


def bidirectional(it: Client) -> None:
    turn = threading.Semaphore(1)

    def messages():
        for number in range(50):
            assert turn.acquire(timeout=LIMIT)
            yield b"message %d" % number

    count = 0
    for message in it.both("Both", messages()):
        assert message == b"message %d" % count, message
        count += 1
        turn.release()
    assert count == 50, count


def fails(method: str):
    def case(it: Client) -> None:
        error = expect(grpc.StatusCode.FAILED_PRECONDITION, lambda: it.unary(method, b""))
        assert error.details() == "not now, café", error.details()
        assert len(dict(error.trailing_metadata())["grpc-status-details-bin"]) > 9000
    return case


def deadline(method: str):
    def case(it: Client) -> None:
        expect(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: list(it.down(method, b"deadline " + NAME.encode(), 0.3)))
    return case


def cancel(it: Client) -> None:
    name = b"cancel " + NAME.encode()
    call = it.down("Quiet", name)
    assert next(call) == b"a message"
    call.cancel()
    expect(grpc.StatusCode.CANCELLED, lambda: next(call))
    end = time.monotonic() + LIMIT
    while it.unary("Ended", name)[0] != b"yes":
        assert time.monotonic() < end, "the function does not learn of it"
        time.sleep(0.005)


def unknown_method(it: Client) -> None:
    for path in ("/test.Calls/Unknown", "/test.Unknown/Unary"):
        expect(grpc.StatusCode.UNIMPLEMENTED, lambda path=path: it.channel.unary_unary(path)(b"", timeout=LIMIT))


def a_hundred_at_once(it: Client) -> None:
    with ThreadPoolExecutor(20) as threads:
        for done in [threads.submit(server_streaming if number % 10 == 0 else unary_once, it) for number in range(100)]:
            done.result()


def unary_once(it: Client) -> None:
    assert it.unary("Unary", b"hello")[0] == b"hello"


def expect(code: grpc.StatusCode, call) -> grpc.RpcError:
    try:
        got = call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error
    raise AssertionError(f"ended without an error: {got}")


def change(it: Client) -> None:
    """Calls again and again while the function's instances are replaced, until a line of input comes."""
    stop, versions = threading.Event(), {it.version()}
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    print("steady", flush=True)
    while not stop.wait(PAUSE):
        versions.add(it.version())
    assert len(versions) == 2, versions


CASES = {
    "unary": unary, "large": large, "metadata": metadata, "server streaming": server_streaming, "client streaming": client_streaming,
    "bidirectional": bidirectional, "refused with details": fails("Refuse"), "failed late with details": fails("Late"),
    "deadline before the head": deadline("Silent"), "deadline after the head": deadline("Quiet"), "cancel": cancel,
    "unknown method": unknown_method, "a hundred at once": a_hundred_at_once, "change": change,
}

with grpc.insecure_channel(sys.argv[1], OPTIONS) as connection:
    client = Client(connection)
    for name, run in CASES.items():
        try:
            run(client)
        except (AssertionError, grpc.RpcError) as reason:
            sys.exit(f"{name}: {reason!r}")
        print("passed", name, flush=True)
