"""
The peer of our HTTP side: Flask on waitress, sending the bytes it is given.

It reads the request's body and asks for no key, parses nothing, logs nothing: what
ofa takes beyond this is ofa's own time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from .lines import given, serve


def main() -> None:
    """Serve every recorded answer at a path of its own, named as its file."""
    from flask import Flask, Response, request
    from waitress.server import create_server

    values = given()
    answers = json.loads(Path(values["answers"]).read_text())
    app = Flask("bare")

    def stream(name: str) -> Response:
        request.get_data()
        frames = (frame.encode() for frame in answers[name])
        return Response(frames, mimetype="text/event-stream")

    def whole(name: str) -> Response:
        request.get_data()
        return Response(answers[name][0].encode(), mimetype="application/json")

    app.add_url_rule("/stream/<name>", view_func=stream, methods=["POST"])
    app.add_url_rule("/whole/<name>", view_func=whole, methods=["POST"])
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = create_server(app, sockets=[sock], threads=values["threads"])
    threading.Thread(target=server.run, daemon=True).start()
    serve({"port": sock.getsockname()[1]}, {})
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
