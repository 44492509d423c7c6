"""`omg view`: a page in the browser that shows runs, curves, episodes and partners, live."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from pathlib import Path

from omg.commands.common import folder_of_runs, known_options
from omg.config import Command
from omg.utils.logging import say
from omg.utils.settings import UserError, convert

SUMMARY = """\
Shows a results folder (results by default) in the browser, live while runs go on: runs and their configurations,
learning curves, recorded episodes with what the focal agent infers (train, evaluate or adapt with --save_replay), pools
and benchmark tables. It only reads. Ctrl-C ends it.

options:
  --port=8765              0: any free one
  --no_browser             print the address only
  --host=127.0.0.1         another address lets other machines in; the printed address then holds a secret token"""
EXAMPLES = ["omg view", "omg view results/mine --port=9000 --no_browser"]


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known_options(command, ("port", "no_browser", "host"))
    root = folder_of_runs(command)
    port = convert(command.get("port", 8765), int, "port")
    if not 0 <= port < 65536:
        raise UserError(f"port is {port}; it must be between 0 and 65535.")
    host = str(command.get("host", "127.0.0.1"))
    local = host in ("127.0.0.1", "localhost", "::1")
    token = None if local else secrets.token_urlsafe(16)
    listener = listen(host, port)
    # Other machines reach this one by its name, not by "all addresses".
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
    serve(root, token, listener, address, browser=not command.get("no_browser"))
    return 0


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port.") from error
    return listener


def serve(root: Path, token: str | None, listener: socket.socket, address: str, browser: bool) -> None:
    import uvicorn

    from omg.view.server import make_app

    server = uvicorn.Server(uvicorn.Config(make_app(root, token), log_level="warning", access_log=False))
    print(address, flush=True)
    say(f"{root} in the browser. Ctrl-C ends it.")
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        say("ended.")
