"""A bucket in a server of moto's, which answers as S3 does."""

import pathlib
import subprocess
import sys

import pyarrow.fs
from moto.server import ThreadedMotoServer

NAME = "bucket"
VARIABLES = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


class Bucket:
    """All servers of a process have the same buckets, so each test takes a place of its own in them."""

    def __init__(self, test):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        test.addCleanup(server.stop)
        self.port = server.get_host_and_port()[1]
        self.hook = None  # is called with the method and the path of each request; a status is its answer
        self._hook_into(server._server)
        self.place = f"{NAME}/{test.id().rsplit('.', 1)[-1]}"
        self.store = pyarrow.fs.S3FileSystem(access_key="somebody", secret_key="secret", scheme="http", region="us-east-1",
                                             endpoint_override=f"127.0.0.1:{self.port}", allow_bucket_creation=True)
        self.store.create_dir(NAME)

    def _hook_into(self, server):
        answer = server.app

        def application(environ, start_response):
            refused = self.hook and self.hook(environ["REQUEST_METHOD"], environ["PATH_INFO"])
            if not refused:
                return answer(environ, start_response)
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(refused, [("Content-Length", "0")])
            return [b""]

        server.app = application

    def outages(self, test):
        """What stands between the store and who uses outages.port, in a process of its own."""
        return Outages(test, self.port)

    def url(self, path, port=None):
        return f"s3://{path}?endpoint_override=127.0.0.1:{port or self.port}&scheme=http&region=us-east-1"


class Outages:
    def __init__(self, test, store_port):
        program = pathlib.Path(__file__).with_name("store_proxy.py")
        self.process = subprocess.Popen([sys.executable, program, str(store_port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        test.addCleanup(self.end)
        self.port = int(self.process.stdout.readline())

    def become(self, mode):
        """Returns once the mode is there: "pass", "refuse", "stall", "cut 20000"."""
        print(mode, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline().split() == mode.split()[:1]

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
