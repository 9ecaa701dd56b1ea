import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Stock(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"7")


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Stock).serve_forever()
