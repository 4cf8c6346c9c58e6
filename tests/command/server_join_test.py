"""Workers that join a job of [sync] kind = "server" and leave it, and who is let in with [security] tls."""

import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

import command
from command import ENDLESS, slow, train_arguments
from launchers import reserved_port
from server_runs import KINDS, SECONDS, SERVER, ServerTest

RENDEZVOUS, DATA, USAGE = 4, 3, 2


class JoinTest(ServerTest):
    def join(self, where, *sets, folder=None):
        return self.start(*train_arguments(sets), "--join", where, folder=folder)

    def elsewhere(self):
        """A folder with the recipe and other text."""
        folder = self.folder / "elsewhere"
        folder.mkdir()
        (folder / "recipe.toml").write_text(command.RECIPE)
        command.write_text(folder / "text", 12)
        with (folder / "text" / "document-7.txt").open("a") as file:
            file.write("more\n")
        return folder

    def copy_of_contents(self):
        """A folder whose last file has the same size and another last byte."""
        folder = self.folder / "copy"
        shutil.copytree(self.folder / "text", folder / "text")
        shutil.copy(self.folder / "recipe.toml", folder)
        with (folder / "text" / "zz-large.txt").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")
        return folder

    def wait_for_workers(self, process, name, workers, behind=0):
        """In a step behind that one."""
        self.wait_for(process, lambda: any(line["workers"] == workers for line in self.lines_of(name)[behind:]),
                      f"steps of {workers} workers")


class Joining(JoinTest):
    def test_a_worker_joins_and_leaves(self):
        elsewhere = self.elsewhere()
        for folder in (self.folder, elsewhere):
            (folder / "text" / "zz-large.txt").write_text("many words of one kind\n" * 1000)
        for name, kind in KINDS:
            with self.subTest(name):
                where = f"127.0.0.1:{reserved_port()}"
                own_data = name == "asynchronous"
                sets = (ENDLESS, "train.evaluate_every_steps=0", "train.global_batch_size=8", f"sync.listen={where}", *kind,
                        "checkpoint.every_steps=5", "checkpoint.keep=3", f"sync.own_data={'true' if own_data else 'false'}")
                process = self.begin(name, *sets, ranks=1)
                self.wait_for_steps(process, name, 3)
                if not own_data:
                    refused = self.join(where, f"name={name}", *sets, folder=elsewhere).wait(SECONDS)
                    self.assertEqual(refused.status, DATA, str(refused))
                    host = socket.gethostname()
                    who = f"a worker on host {host} has other data than the job's rank 0 on host {host}: "
                    self.assertIn(f"troika: {who}'text/document-7.txt' (file 10 of 13) is 5 B longer", refused.err)
                    self.assertIn("sync.own_data = true", refused.error_lines[-1])
                guest = self.join(where, f"name={name}", *sets, folder=elsewhere if own_data else None)
                self.wait_for_workers(process, name, 2)
                os.kill(guest.pid, signal.SIGTERM)
                said = self.succeeds(guest.wait(SECONDS)).err
                self.assertIn(f"joined the job of {where}", said)
                self.assertRegex(said, r"left the job behind step \d+; passes trained here: [1-9]")
                behind = len(self.lines_of(name))
                self.wait_for_workers(process, name, 1, behind)
                self.wait_for_steps(process, name, behind + 20)
                if not own_data:
                    behind = len(self.lines_of(name))
                    refused = self.join(where, f"name={name}", *sets, folder=self.copy_of_contents()).wait(SECONDS)
                    self.assertEqual(refused.status, DATA, str(refused))
                    what = f"{who}'text/zz-large.txt' (file 13 of 13) has other contents"
                    self.assertIn(f"troika: {what}", refused.err)
                    self.assertNotIn("left the job", refused.err)
                    self.wait_for_steps(process, name, len(self.lines_of(name)) + 20)
                done, lines = self.stop(process, name)
                if not own_data:
                    # The job has gone on, and marks what holds what that worker has trained.
                    self.assertIn(f"{what}; the job goes on without it, and marks its checkpoints from step ", done.err)
                    rows = [line.split() for line in self.succeeds(self.troika("checkpoint", "list", f"runs/{name}")).out.splitlines()]
                    first = int(re.search(r"its checkpoints from step (\d+) on", done.err).group(1))
                    self.assertGreater(first, behind)
                    marked = {int(row[0]): row[-2] for row in rows[1:]}
                    self.assertEqual(marked, {step: "yes" if step >= first else "no" for step in marked})
                    self.assertEqual(set(marked.values()), {"yes", "no"})
                self.assertNotIn("silent", done.err)  # it has said that it goes
                self.assertEqual({line["workers"] for line in lines} - {1, 2}, set())
                self.assertEqual({line["updates"] for line in lines}, {1})
                # But for those of the worker that was refused in the middle of a step.
                self.assertFalse(any("lost_samples" in line for line in (lines if own_data else lines[:behind])))

    @slow
    def test_a_worker_with_another_recipe_is_refused(self):
        where = f"127.0.0.1:{reserved_port()}"
        sets = (ENDLESS, f"sync.listen={where}", *SERVER)
        process = self.begin("job", *sets, ranks=1)
        self.wait_for_steps(process, "job", 3)
        refused = self.join(where, "name=job", *sets, "optimizer.lr=7").wait(SECONDS)
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("a worker has another recipe than the job", refused.err)
        steps = len(self.lines_of("job"))
        self.wait_for_steps(process, "job", steps + 5)


class Tls(JoinTest):
    def setUp(self):
        super().setUp()
        if not shutil.which("openssl"):
            raise unittest.SkipTest("the command openssl, which makes certificates, is not there")
        for authority in ("ours", "theirs"):
            self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={authority}", "-keyout",
                         f"{authority}.key", "-out", f"{authority}.pem")
        for name, authority in (("host", "ours"), ("guest", "ours"), ("foreign", "theirs")):
            self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out",
                         f"{name}.csr")
            (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1")
            self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                         "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")

    def openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       timeout=60)

    def files(self, name, authority="ours"):
        return ("security.tls=true", f"security.certificate={name}.pem", f"security.key={name}.key",
                f"security.authority={authority}.pem")

    def test_workers_train_under_mutual_tls(self):
        for name, kind in KINDS:
            with self.subTest(name):
                sets = ("train.steps=20", "sync.servers=2", *kind)
                self.succeeds(self.train(f"name={name}", *sets, *self.files("host"), ranks=2))
                self.is_whole(name, 20)

    @slow
    def test_none_without_a_certificate_of_the_authority_is_let_in(self):
        where = f"127.0.0.1:{reserved_port()}"
        # So long they try.
        sets = (ENDLESS, "train.evaluate_every_steps=0", f"sync.listen={where}", "comm.rendezvous_timeout_seconds=15", *SERVER)
        process = self.begin("job", *sets, *self.files("host"), ranks=1)
        self.wait_for_steps(process, "job", 3)
        guests = [self.join(where, "name=job", *sets, *own)
                  for own in (("security.tls=false",), self.files("foreign"), self.files("foreign", "theirs"))]
        for guest in guests:
            refused = guest.wait(SECONDS)
            self.assertEqual(refused.status, RENDEZVOUS, str(refused))
            self.assertIn(f"'join' of {where}", refused.err)
            self.assertRegex(refused.err, "TLS|certificate")
        self.assertEqual({line["workers"] for line in self.lines_of("job")}, {1})
        # Each host has a certificate of its own.
        self.join(where, "name=job", *sets, *self.files("guest"))
        self.wait_for_workers(process, "job", 2)

    def test_tls_without_files_is_refused(self):
        refused = self.train(*SERVER, "security.tls=true", ranks=1)
        self.assertEqual(refused.status, USAGE, str(refused))
        self.assertIn("tls = true needs the files of a certificate", refused.err)


if __name__ == "__main__":
    command.main()
