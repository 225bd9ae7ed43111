"""A fake GitHub on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.contract.fake_github import FakeGitHub

SLOW_S = 1.0
"""How long a slow answer is waited for before the connection ends; the clients of these tests wait less."""


@contextmanager
def serve(fake: FakeGitHub) -> Iterator[str]:
    """The address of a fake on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body leave in one packet

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = fake.handle(self.command, self.path, body)
            if answer.slow:
                time.sleep(SLOW_S)
            if answer.slow or answer.drop:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in (*answer.headers, ("Content-Type", "application/json")):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.data)))
            self.end_headers()
            self.wfile.write(answer.data)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
