"""`make web`: serves a page that trains classifiers of handwritten digits in the browser.

Run it from the root of the repository: `python -m scripts.web`. The page runs training steps in onnxruntime-web, which
does not have the domain `aclnn` and runs the function bodies. The page requests files of this server only.
"""

import argparse
import errno
import json
import sys
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from models.perceptron import perceptron_step
from scripts.web import tasks

FOLDER = Path(__file__).parent
PAGE = FOLDER / "page"
EXAMPLE = FOLDER / "example"
TRAINER = FOLDER / "training"
NODE_MODULES = FOLDER / "node_modules"

PACKAGES = {
    "ort": ("onnxruntime-web", ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]),
    "uplot": ("uplot", ["uPlot.esm.js", "uPlot.min.css"]),
}
"""npm packages and their files, by prefix of the path; of onnxruntime-web the build with the CPU provider only."""

MEDIA_TYPES = {
    ".bin": "application/octet-stream",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".onnx": "application/octet-stream",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}

HEADERS = {
    # Cross-origin isolation (the first three), which threads of WebAssembly require.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

SPIRALS = (2, 32, 32, 1)
"""Numbers of features of the perceptron in the example: coordinates, two hidden layers, one logit."""

Content = bytes | Path


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until interrupted; returns the exit status."""
    options = parse(arguments)
    missing = missing_packages()
    if missing:
        return fail(f"{' and '.join(missing)} not installed; run `make web`, which installs and serves the page")
    try:
        server = Server((options.host, options.port), contents())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return fail(f"port {options.port} is in use; `make web PORT=8001` takes another one")
        return fail(f"cannot serve at {options.host}, port {options.port}: {error.strerror}")
    with server:
        print(f"The page is at {server.url} (Ctrl-C ends this)", flush=True)
        if options.open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.web",
        description="Serve a page that trains classifiers of handwritten digits in the browser.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port (default: %(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 2**16:
        parser.error(f"argument --port: {options.port} is not a port (0 to 65535)")
    return options


def fail(message: str) -> int:
    """Print an error message; returns the exit status."""
    print(f"scripts.web: {message}", file=sys.stderr)
    return 1


# Contents


def contents() -> dict[str, Content]:
    """Everything that is served, by path: files, which are read at each request, and the bytes of tasks."""
    result: dict[str, Content] = {f"/{path.name}": path for path in PAGE.iterdir()}
    result |= {f"/example/{path.name}": path for path in EXAMPLE.iterdir()}
    result["/example/step.onnx"] = perceptron_step(SPIRALS).SerializeToString()
    result |= {f"/training/{path.name}": path for path in TRAINER.glob("*.js")}
    result |= {
        f"/{prefix}/{name}": NODE_MODULES / package / "dist" / name
        for prefix, (package, names) in PACKAGES.items()
        for name in names
    }
    for name, task in tasks.all_tasks().items():
        result[f"/{name}/step.onnx"] = task.step.SerializeToString()
        result[f"/{name}/setup.json"] = json.dumps(task.setup).encode()
        result[f"/{name}/arrays.bin"] = task.data
    return result


def missing_packages() -> list[str]:
    """The npm packages that are not installed."""
    return [package for package, _ in PACKAGES.values() if not (NODE_MODULES / package / "dist").is_dir()]


# The server


class Server(ThreadingHTTPServer):
    """Serves a fixed set of contents."""

    def __init__(self, address: tuple[str, int], contents: dict[str, Content]) -> None:
        self.contents = contents
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Print the error, except when the browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Looks up paths in the server's contents; paths of requests are never used as file names."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = f"{path}index.html" if path.endswith("/") else path
        content = self.server.contents.get(name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = content.read_bytes() if isinstance(content, Path) else content
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", MEDIA_TYPES[Path(name).suffix])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log: the page shows errors."""


if __name__ == "__main__":
    sys.exit(main())
