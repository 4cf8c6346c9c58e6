"""What the download scripts share: where the cache is, its lock, pins, and one-line messages on stderr."""
import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
LOCK_SECONDS = 1800
BINARY = ["--only-binary", ":all:", "--no-binary", "pyspark"]  # which has no wheel, and nothing to compile


def say(text):
    print(f"-- {text}", file=sys.stderr, flush=True)


def fail(text):
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def cache_root():
    root = os.environ.get("TROIKA_CACHE")
    if not root:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "troika"
    Path(root).mkdir(parents=True, exist_ok=True)
    return Path(root).resolve()


@contextlib.contextmanager
def locked(folder):
    """One process at a time makes this folder; says so when it has to wait, and gives up with a message."""
    with open(f"{folder}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another process that makes {folder}")
            signal.signal(signal.SIGALRM, lambda *_: fail(f"{file.name} was held for {LOCK_SECONDS} s; is that process stuck?"))
            signal.alarm(LOCK_SECONDS)
            fcntl.flock(file, fcntl.LOCK_EX)
            signal.alarm(0)
        yield


def pins(*names):
    """The pinned requirements of requirements/NAME.txt, without comments: {name==version: [options]}."""
    text = "\n".join((REQUIREMENTS / f"{name}.txt").read_text() for name in names)
    lines = text.replace("\\\n", " ").splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines if line and not line.startswith("#")}


def digest(*values):
    return hashlib.sha256(repr(values).encode()).hexdigest()


def pip(arguments, scratch, python=sys.executable):
    """Runs pip, its output on stderr; with a progress bar only on a terminal. True when it succeeded."""
    command = [python, "-m", "pip", *arguments, "--disable-pip-version-check", "--no-cache-dir", *BINARY,
               "--require-hashes", "--no-deps"]
    quiet = [] if sys.stderr.isatty() else ["-q"]
    environment = dict(os.environ, TMPDIR=str(scratch))  # /tmp may be too small
    return subprocess.run(command + quiet, stdout=sys.stderr, env=environment).returncode == 0


def has_module(name):
    return subprocess.run([sys.executable, "-c", f"import {name}"], stderr=subprocess.DEVNULL).returncode == 0
