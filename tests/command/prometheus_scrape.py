#!/usr/bin/env python3
"""Lets a real Prometheus server scrape an endpoint, and asks it for a metric.

    prometheus_scrape.py PORT METRIC [--label NAME=VALUE ...] [--at-least NUMBER] [--timeout SECONDS]

Starts the `prometheus` program on a free port of 127.0.0.1, in a temporary folder, with
127.0.0.1:PORT/metrics as its only target; asks its API until METRIC has a sample with these labels, of
at least that value; prints the sample as JSON; and ends the server.

Exit status: 0 found, 1 not found in time, 2 usage, 3 there is no `prometheus` program.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from launchers import reserved_port

POLL_SECONDS = 0.2

CONFIGURATION = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: troika
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def start_server(program, folder, port, target):
    configuration = folder / "prometheus.yml"
    configuration.write_text(CONFIGURATION.format(port=target), encoding="utf-8")
    with open(folder / "log", "wb") as log:
        return subprocess.Popen(
            [
                program,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )


def query(port, metric):
    """Samples of `metric`, or none as long as the server does not answer."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": metric})
    # No proxy for 127.0.0.1, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return json.load(answer)["data"]["result"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return []


def wait_for_sample(server, port, arguments):
    labels = dict(label.split("=", 1) for label in arguments.label)
    deadline = time.monotonic() + arguments.timeout
    while time.monotonic() < deadline and server.poll() is None:
        for sample in query(port, arguments.metric):
            fits = all(sample["metric"].get(name) == value for name, value in labels.items())
            value = float(sample["value"][1])
            if fits and (arguments.at_least is None or value >= arguments.at_least):
                return sample
        time.sleep(POLL_SECONDS)  # between two questions; the deadline above ends the wait
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("metric")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--at-least", type=float)
    parser.add_argument("--timeout", type=float, default=30)
    arguments = parser.parse_args()
    program = shutil.which("prometheus")
    if program is None:
        print("no `prometheus` program; on Debian: apt-get install prometheus", file=sys.stderr)
        return 3

    with tempfile.TemporaryDirectory(prefix="troika-prometheus-") as name:
        folder = pathlib.Path(name)
        port = reserved_port()
        server = start_server(program, folder, port, arguments.port)
        try:
            sample = wait_for_sample(server, port, arguments)
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        if sample is None:
            print(f"{arguments.metric} was not scraped from port {arguments.port}", file=sys.stderr)
            print((folder / "log").read_text(errors="replace")[-4000:], file=sys.stderr)
            return 1
    print(json.dumps(sample))
    return 0


if __name__ == "__main__":
    sys.exit(main())
