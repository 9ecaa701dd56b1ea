"""The greeter of ../rust, in Python: it greets whoever calls, in words that another function gives it."""

from urllib.parse import urlsplit

from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.imports import environment, outgoing_handler
from wit_world.imports.types import (
    Fields,
    IncomingRequest,
    OutgoingBody,
    OutgoingRequest,
    OutgoingResponse,
    ResponseOutparam,
    Scheme_Http,
)


class IncomingHandler(exports.IncomingHandler):
    def handle(self, request: IncomingRequest, response_out: ResponseOutparam) -> None:
        name = (request.path_with_query() or "").strip("/") or "stranger"
        source = dict(environment.get_environment()).get("GREETING_FROM")
        status, text = 200, f"Hello, {name}!\n"
        if source:
            answered, words = fetch(source)
            if answered == 200:
                text = f"{words.strip()}, {name}!\n"
            else:
                status, text = 502, f"no greeting today: {answered}\n"
        response = OutgoingResponse(Fields())
        response.set_status_code(status)
        body = response.body()
        ResponseOutparam.set(response_out, Ok(response))
        with body.write() as stream:
            stream.blocking_write_and_flush(text.encode())
        OutgoingBody.finish(body, None)


def fetch(url: str) -> tuple[int, str]:
    parts = urlsplit(url)
    request = OutgoingRequest(Fields())
    request.set_scheme(Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query(parts.path or "/")
    waiting = outgoing_handler.handle(request, None)
    with waiting.subscribe() as ready:
        ready.block()
    answer = waiting.get()
    if answer is None or isinstance(answer, Err) or isinstance(answer.value, Err):
        return 599, str(answer)
    response = answer.value.value
    text = b""
    with response.consume() as body, body.stream() as stream:
        try:
            while True:
                text += stream.blocking_read(4096)
        except Err:
            # That it is closed, which is how streams end here.
            pass
    return response.status(), text.decode()
