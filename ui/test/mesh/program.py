"""Answers each request. `/call/HOST` asks another host first, and `/call/HOST/HOST` lets it ask a third one.

Its output is hostile.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        print(f"<script>globalThis.struck=1</script> \u202e {self.path}", flush=True)
        body = b"7"
        if self.path.startswith("/call/"):
            host, _, rest = self.path.removeprefix("/call/").partition("/")
            path = f"/call/{rest}" if rest else "/items/7"
            try:
                body = urlopen(f"http://{host}{path}", timeout=5).read()
            except OSError as error:
                body = str(error).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
