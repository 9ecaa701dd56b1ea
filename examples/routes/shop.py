"""Answers with its name and the path. `/stock/ID` asks the function `stock`, for the same group."""

import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        text = f"{os.environ['NAME']}: {self.path}\n"
        if os.environ["NAME"] == "shop" and self.path.startswith("/stock/"):
            call = urllib.request.Request("http://stock" + self.path)
            if group := self.headers.get("x-group"):
                call.add_header("x-group", group)
            with urllib.request.urlopen(call) as response:
                text += response.read().decode()
        body = text.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
