"""`make web`: serves a page on which networks learn to read digits inside the browser.

Run it from the repository's root: `python -m scripts.web`. The page runs the files of training steps in
onnxruntime-web, which does not know the domain `aclnn` and so takes the function bodies. All that the page asks for
comes from here.
"""

import argparse
import errno
import json
import sys
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.web import tasks

FOLDER = Path(__file__).parent
PAGE = FOLDER / "page"
TRAINER = FOLDER / "training"
NODE_MODULES = FOLDER / "node_modules"

# What the page takes from npm's packages: the build of onnxruntime-web that has the CPU's execution provider only.
PACKAGES = {
    "ort": ("onnxruntime-web", ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]),
    "uplot": ("uplot", ["uPlot.esm.js", "uPlot.min.css"]),
}

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
    # The first three isolate the page from other origins, without which browsers give WebAssembly no threads.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

Content = bytes | Path


def main(arguments: list[str] | None = None) -> int:
    """Serves the page until it is interrupted; returns the exit status."""
    options = parse(arguments)
    missing = missing_packages()
    if missing:
        return fail(f"{' and '.join(missing)} not installed; `make web` installs what the page needs and serves it")
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
        description="Serves a page on which networks learn to read handwritten digits inside the browser.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one (default: %(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 2**16:
        parser.error(f"argument --port: {options.port} is not a port (0 to 65535)")
    return options


def fail(message: str) -> int:
    """Prints why the page cannot be served; returns the exit status."""
    print(f"scripts.web: {message}", file=sys.stderr)
    return 1


# What is served


def contents() -> dict[str, Content]:
    """All that there is to ask for, by path: files, read whenever they are asked for, and what is made here."""
    result: dict[str, Content] = {f"/{path.name}": path for path in PAGE.iterdir()}
    result |= {f"/training/{path.name}": path for path in TRAINER.iterdir()}
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
    return [package for package, _ in PACKAGES.values() if not (NODE_MODULES / package / "dist").is_dir()]


# The server


class Server(ThreadingHTTPServer):
    """Serves the contents given, and nothing else."""

    def __init__(self, address: tuple[str, int], contents: dict[str, Content]) -> None:
        self.contents = contents
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints the error, unless it is that the browser has gone elsewhere."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Looks a path up in the server's contents. It never makes a file's name of it, so it cannot lead out of them."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        name = "/index.html" if path == "/" else path
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
        """Nothing: what goes wrong is said on the page."""


if __name__ == "__main__":
    sys.exit(main())
