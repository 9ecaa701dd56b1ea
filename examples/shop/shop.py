import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen


class Shop(BaseHTTPRequestHandler):
    def do_GET(self):
        stock = urlopen("http://stock" + self.path).read()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"in stock: " + stock + b"\n")


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Shop).serve_forever()
