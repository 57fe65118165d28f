"""The program `onnx-ops`, also run as `python -m onnx_ops`. The command line itself is in `cli.app`."""

import importlib.util
import sys

REQUIRED = ("rich", "typer")
"""The packages of the extra `cli`. The library does without them."""


def main() -> None:
    """Run the command line, or name the packages that it needs and that are not installed; ends the process."""
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"onnx-ops: the command line needs packages that are not installed: {', '.join(missing)}. "
            "Install them with: pip install 'onnx-ops[cli]'"
        )
    from onnx_ops.cli import app

    app.main()


if __name__ == "__main__":
    main()
