"""A web server with the faults that servers have: webserver.py FOLDER prints its port, and serves until its input ends.

/FAULT/NAME is the file NAME with that fault, /plain/NAME without one, /bucket/KEY one of a bucket, for whose requests a signature
with the secret "key" is asked. /.seen gives what was asked for since the last look,
as JSON; /.etag/TAG changes the tag of all files.
"""
from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import re
import sys
import threading
import time
import urllib.parse
from pathlib import Path

FOLDER = Path(sys.argv[1])
lock = threading.Lock()
seen: list[dict] = []
asked: dict[str, int] = {}
etag = "one"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        global etag
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path == "/.seen":
            with lock:
                body = json.dumps(seen).encode()
                seen.clear()
            return self.send(200, body)
        if path.startswith("/.etag/"):
            etag = path.removeprefix("/.etag/")
            return self.send(200, b"")
        fault, name = path.strip("/").split("/", 1)
        body = (FOLDER / name).read_bytes()
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = int(span[1]), min(int(span[2]), len(body) - 1)
        with lock:
            asked[path] = asked.get(path, 0) + 1
            turn = asked[path]
            seen.append({"path": self.path, "first": first, "length": last - first + 1, "headers": dict(self.headers)})
        getattr(self, fault)(body, first, last, turn, name)

    def send(self, status: int, body: bytes, headers: dict | None = None, cut: int | None = None):
        self.send_response(status)
        for k, v in ({"Content-Length": len(body)} | (headers or {})).items():
            self.send_header(k, str(v))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def plain(self, body, first, last, turn, name, cut=None):
        if self.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
            return self.send(412, b"")
        self.send(206, body[first:last + 1], {
            "Content-Range": f"bytes {first}-{last}/{len(body)}", "ETag": f'"{etag}"',
            "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"}, cut)

    def failing(self, *a):
        """Two of three answers are errors, of all kinds."""
        if a[3] % 3:
            return self.send([500, 503, 429, 502][a[3] % 4], b"not now", {"Retry-After": 0})
        self.plain(*a)

    def breaking(self, *a):
        """Every second answer ends in its middle."""
        self.plain(*a, cut=(a[2] - a[1]) // 2 if a[3] % 2 else None)

    def resetting(self, *a):
        """Every second connection ends without an answer."""
        if a[3] % 2:
            self.close_connection = True
            return
        self.plain(*a)

    def slow(self, *a):
        """Answers come late, and in pieces."""
        time.sleep(0.01)
        self.plain(*a)

    def moved(self, body, first, last, turn, name):
        self.send(302 if turn % 2 else 307, b"", {"Location": f"/plain/{name}?signature=s3cr3t"})

    def round(self, body, first, last, turn, name):
        self.send(302, b"", {"Location": f"/round/{name}?signature=s3cr3t"})

    def whole(self, body, *a):
        self.send(200, body, {"ETag": f'"{etag}"'})

    def packed(self, body, first, last, *a):
        self.send(206, body[first:last + 1], {"Content-Range": f"bytes {first}-{last}/{len(body)}", "Content-Encoding": "gzip"})

    def shifted(self, body, first, last, *a):
        self.send(206, body[first:last + 1], {"Content-Range": f"bytes {first + 1}-{last + 1}/{len(body)}"})

    def broken(self, *a):
        """From the fifth answer on nothing but errors."""
        self.send(500, b"") if a[3] > 4 else self.plain(*a)

    def closed(self, *a):
        self.send(403, b"<Error><Code>AccessDenied</Code></Error>")

    def login(self, *a):
        if self.headers.get("Authorization") != "Basic dXNlcjpzM2NyM3Q=" or "token=s3cr3t" not in self.path:
            return self.send(401, b"")
        self.plain(*a)

    def bucket(self, *a):
        """Signature version 4, as Amazon's documentation has it."""
        where, signed, given = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=id/(\S+), SignedHeaders=(\S+), Signature=(\S+)",
                                            self.headers.get("Authorization", "")).groups()
        day, region, service, last = where.split("/")
        lines = [self.command, self.path, "", *(f"{h}:{self.headers[h].strip()}" for h in signed.split(";")), "", signed,
                 self.headers["x-amz-content-sha256"]]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        key = b"AWS4key"
        for part in (day, region, service, last, f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{where}\n{digest}"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        if key.hex() != given or {"host", "range", "x-amz-date", "x-amz-content-sha256"} - set(signed.split(";")):
            return self.send(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        self.plain(*a)

    def log_message(self, *a):
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
