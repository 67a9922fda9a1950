"""Runs a server for as long as standard input stays open: `python guard.py FOLDER USER command…`.

Its owner holds the other end, so that the server ends with its owner, also when that one is killed. It says the process
id of the server first, and ends as the server ends. Then it removes FOLDER, where one is named ("" for none).
USER: whom the server runs as ("" for whoever runs this).
"""

import pwd
import shutil
import subprocess
import sys
import threading

folder, user, *command = sys.argv[1:]
other = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, **other)
print(server.pid, flush=True)
owner_gone = threading.Event()


def end_with_owner() -> None:
    """Kills the server as soon as the owner is gone: nobody asks for its data any more."""
    sys.stdin.read()
    owner_gone.set()
    server.kill()


threading.Thread(target=end_with_owner, daemon=True).start()
code = server.wait()
if folder and owner_gone.is_set():
    shutil.rmtree(folder, ignore_errors=True)
sys.exit(abs(code))
