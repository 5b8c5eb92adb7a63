"""A git server for the inside of a sandbox: git's own http-backend behind basic authentication, on 127.0.0.1.

Arguments: port, user, token. Repositories lie in /srv/git. `/slow/…` waits before it answers an authenticated request,
`/echo/…` refuses it with a message that has the token in it, `/away/…` redirects to the port after its own, where
another server notes every Authorization that it is sent in /tmp/stolen.
"""

import base64
import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

PORT, USER, TOKEN = int(sys.argv[1]), sys.argv[2], sys.argv[3]
EXPECTED = "Basic " + base64.b64encode(f"{USER}:{TOKEN}".encode()).decode()


class Git(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        _, kind, rest = self.path.split("/", 2)
        if kind == "away":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{PORT + 1}/git/{rest}")
            self.end_headers()
            return
        if self.headers.get("Authorization") != EXPECTED:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        if kind == "echo":
            self.refuse()
            return
        if kind == "slow":
            time.sleep(4)
        self.backend(rest)

    def refuse(self) -> None:
        body = f"no {TOKEN} here, nor {EXPECTED}\n".encode()
        self.send_response(403)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def backend(self, rest: str) -> None:
        path, _, query = rest.partition("?")
        length = self.headers.get("Content-Length")
        body = self.chunked() if length is None and self.command == "POST" else self.rfile.read(int(length or 0))
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": "/srv/git",
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": "/" + path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": USER,
        }
        done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=env, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def chunked(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Thief(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with Path("/tmp/stolen").open("a") as file:
            file.write(f"{self.headers.get('Authorization')}\n")
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="thief"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


thief = http.server.ThreadingHTTPServer(("127.0.0.1", PORT + 1), Thief)
threading.Thread(target=thief.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Git).serve_forever()
