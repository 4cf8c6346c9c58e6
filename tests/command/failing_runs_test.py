"""Runs that fail, are stopped, or are started again: exit status, the one root cause, and what is left on disk."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import unittest

import command
from command import ENDLESS, CommandTest, alive, wait_until
from launchers import reserved_port

DONE, USAGE, DATA, RENDEZVOUS, RANK_DIED, NON_FINITE, STORAGE, CHECKPOINTED, INTERRUPTED = 0, 2, 3, 4, 5, 6, 7, 75, 130
# What a death may take to be noticed, on a busy machine.
SECONDS = 15


SHARED_MEMORY = pathlib.Path("/dev/shm")


def processes_with(variable):
    """The pids of all processes that have it in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # of another user, or it has ended
            pass
    return found


class Ranks(CommandTest):
    def rank(self, rank, port, *sets, folder=None, flags=()):
        """One of two ranks that another launcher has started."""
        return self.start(*command.train_arguments(sets), *flags, folder=folder, RANK=str(rank), WORLD_SIZE="2",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

    def test_ranks_that_disagree_on_the_recipe(self):
        port = reserved_port()
        first, second = self.rank(0, port), self.rank(1, port, "optimizer.lr=0.2")
        for done in (first.wait(), second.wait()):
            self.fails(done, RENDEZVOUS, "rank 1", "rank 0", "optimizer.lr", "0.1", "0.2")

    def test_ranks_that_read_different_data(self):
        elsewhere = self.elsewhere(12)
        with (elsewhere / "text" / "document-2.txt").open("a") as file:
            file.write("x" * 4096)
        port = reserved_port()
        first, second = self.rank(0, port), self.rank(1, port, folder=elsewhere)
        host = socket.gethostname()
        for done in (first.wait(), second.wait()):
            self.fails(done, DATA, f"rank 1 on host {host} has other data than rank 0 on host {host}: "
                       "'text/document-2.txt' (file 5 of 12) is 4.0 KiB longer", "data.paths")

    def test_ranks_whose_files_differ_in_the_last_byte(self):
        elsewhere = self.elsewhere(12)
        # So much takes a moment to be read.
        text = ("many words of one kind\n" * 50000).encode()
        for i in range(24):
            for folder in (self.folder, elsewhere):
                (folder / "text" / f"large-{i}.txt").write_bytes(text)
        with (elsewhere / "text" / "large-9.txt").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")
        sets = (ENDLESS, f"checkpoint.folder={self.folder}/checkpoints", "checkpoint.every_steps=1", "checkpoint.keep=3",
                f"checkpoint.mirror=file://{self.folder}/mirror", "train.best_metric=loss", "train.evaluate_every_steps=1")
        what = "other data than rank 0 on host " + socket.gethostname() + ": 'text/large-9.txt' (file 36 of 36) has other contents"

        def both(*flags):
            port = reserved_port()
            first, second = (self.rank(rank, port, *sets, folder=folder, flags=flags)
                             for rank, folder in ((0, self.folder), (1, elsewhere)))
            return first.wait(), second.wait()

        for done in both():
            self.assertEqual(done.status, DATA, str(done))
            self.assertIn(what, done.err)
        listed = self.succeeds(self.troika("checkpoint", "list", "runs/small"))
        rows = [line.split() for line in listed.out.splitlines()]
        self.assertIn("in doubt", listed.out)
        self.assertEqual({row[-2] for row in rows[1:]}, {"yes"}, listed.out)
        self.assertIn(what, listed.err)
        # Wherever else the run has kept something of it.
        copies = list((self.folder / "mirror/small").glob("step-*/manifest.json"))
        self.assertTrue(copies)
        for manifest in copies:
            self.assertIn(what, json.loads(manifest.read_text())["provenance"]["doubt"], str(manifest))
        self.assertIn(what, (self.run_folder / "best.safetensors.doubt").read_text())
        # The same command does not go on from what both have trained, unless it is told to.
        for done in both():
            self.assertEqual(done.status, DATA, str(done))
            self.assertIn("it is in doubt: rank 1", done.err)
            self.assertIn("--resume", done.error_lines[-1])
        (elsewhere / "text" / "large-9.txt").write_bytes(text)
        sets = (*sets[1:], f"train.steps={int(rows[1][0]) + 2}")
        for done in both("--resume"):
            self.succeeds(done)

        # What a run has begun from stays until the files are known to be the same, whatever `keep` says.
        newest = self.checkpoints_of("runs/small")[0]
        self.assertEqual(newest[-2], "no")
        for path in (elsewhere / "text").iterdir():
            path.touch()  # hashed again, in which time steps are taken
        (elsewhere / "text" / "large-9.txt").write_bytes(text[:-1] + b"?")
        sets = (ENDLESS, *sets[:-1], "checkpoint.keep=1")
        for done in both("--resume"):
            self.assertEqual(done.status, DATA, str(done))
        *doubtful, begun_from = self.checkpoints_of("runs/small")
        self.assertEqual((len(doubtful), begun_from[0]), (1, newest[0]))
        self.assertEqual([row[-2] for row in (*doubtful, begun_from)], ["yes"] * len(doubtful) + ["no"])

    def checkpoints_of(self, run):
        """The rows of `troika checkpoint list`, the newest first, in words."""
        listed = self.succeeds(self.troika("checkpoint", "list", run))
        return [line.split() for line in listed.out.splitlines()[1:]]

    def elsewhere(self, documents):
        """Another folder of that many of the same documents, with the same recipe."""
        folder = self.folder / "elsewhere"
        folder.mkdir()
        (folder / "recipe.toml").write_text(command.RECIPE)
        command.write_text(folder / "text", documents)
        return folder

    def test_a_rank_that_never_comes(self):
        done = self.rank(0, reserved_port(), "comm.rendezvous_timeout_seconds=2").wait()
        self.fails(done, RENDEZVOUS, "rank 1", "2 s")
        self.assertLess(done.seconds, SECONDS)

    def test_a_killed_rank_is_the_root_cause(self):
        process = self.start_training(ranks=3)
        ranks = process.ranks()
        self.assertEqual(sorted(ranks), [0, 1, 2])
        os.kill(ranks[1], signal.SIGKILL)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, RANK_DIED, str(done))
        self.assertEqual(done.out, "")
        cause, hint = done.error_lines[-2:]
        host = socket.gethostname()
        died = re.escape(f"troika: rank 1 (host {host}, pid {ranks[1]}) was killed by signal 9 (SIGKILL)")
        self.assertRegex(cause, died + "; it (is in|was in|last completed) [a-z_]+ '")
        self.assertTrue(hint.startswith("hint: "), hint)
        self.assertEqual(done.err.count("troika: "), 1, done.err)
        self.assertFalse([pid for pid in ranks.values() if alive(pid)])
        self.nothing_half_written()

    def test_a_stopped_rank_is_named(self):
        # Time enough for two inspections while it is stopped, on a machine with other things to do.
        process = self.start_training("comm.timeout_seconds=8", ranks=3)
        stopped = process.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: self.rank_in_inspection(1)["process"] == "stopped", "inspect shows that the rank is stopped")
        shown = self.succeeds(self.troika("inspect", "runs/small", "--last", "3")).out
        self.assertRegex(shown, f"1 +{socket.gethostname()} +{stopped} +stopped ")
        self.assertIn("rank 2", shown)
        done = process.wait(SECONDS + 10)
        self.assertEqual(done.status, RENDEZVOUS, str(done))
        name = f"rank 1 (host {socket.gethostname()}, pid {stopped})"
        self.assertRegex(done.err, f"troika: rank [02] .*{re.escape(name)} has .*entered all_reduce .*; "
                                   "ranks? .*ha(s|ve) waited 8.0 s")
        # Told by the rank that waited first, or by one that heard of it from that one.
        self.assertIn(f"kill -CONT {stopped}", done.error_lines[-1])
        self.assertEqual(self.rank_in_inspection(1)["process"], "ended")

    def rank_in_inspection(self, rank):
        """What `troika inspect` says of a rank."""
        return json.loads(self.succeeds(self.troika("inspect", "runs/small", "--json")).out)["ranks"][rank]

    def test_inspect_refuses_what_is_no_run(self):
        self.fails(self.troika("inspect", "nowhere"), DATA, "nowhere")
        self.fails(self.troika("inspect", "text"), DATA, "text", "no flight recorders")

    def test_ctrl_c_ends_everything_cleanly_and_once(self):
        process = self.start_training()
        ranks = process.ranks()
        os.kill(process.pid, signal.SIGINT)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, INTERRUPTED, str(done))
        self.assertEqual(done.out, "")
        last = [line for line in done.error_lines if "interrupted" in line.lower()]
        self.assertEqual(len(last), 1, str(done))
        self.assertEqual(last, done.error_lines[-2:-1])
        self.assertFalse([pid for pid in ranks.values() if alive(pid)])

    def saved_as_of_its_step(self, done, signal_words, sets=(), ranks=2):
        """The interrupted run's model is that of a run which ends with the step that it names."""
        found = re.search(rf"^troika: interrupted{signal_words} after step (\d+) of \d+$", done.err, re.M)
        self.assertTrue(found, str(done))
        self.assertEqual(done.error_lines[-1], "hint: the same command goes on from there")
        self.assertFalse((self.run_folder / "summary.json").exists())
        self.assertEqual(self.metrics()[-1]["step"], int(found[1]))
        self.succeeds(self.train(f"train.steps={found[1]}", "name=whole", *sets, ranks=ranks))
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(),
                         (self.folder / "runs" / "whole" / "model.safetensors").read_bytes())

    def test_sigterm_saves_the_model_of_the_last_step(self):
        for sets in ((), ("parallel.zero_stage=3",), ("parallel.pipeline=2", "model.layers=2")):
            with self.subTest(sets):
                sets = ("optimizer.schedule=constant", "train.evaluate_every_steps=0", *sets)
                process = self.start_training(*sets)
                os.kill(process.pid, signal.SIGTERM)
                done = process.wait(SECONDS)
                self.assertEqual(done.status, CHECKPOINTED, str(done))
                self.saved_as_of_its_step(done, " by SIGTERM", sets)
                shutil.rmtree(self.folder / "runs")

    def test_a_rank_of_another_launcher_saves_it_too(self):
        sets = ("optimizer.schedule=constant", ENDLESS)
        process = self.start(*command.train_arguments(sets), RANK="0", WORLD_SIZE="1")
        wait_until(lambda: process.popen.poll() is not None or (self.run_folder / "metrics.jsonl").exists()
                   and self.metrics(), "a step")
        os.kill(process.pid, signal.SIGINT)
        done = process.wait(SECONDS)
        self.assertEqual(done.status, INTERRUPTED, str(done))
        self.saved_as_of_its_step(done, "", sets[:1], ranks=1)

    def test_on_several_nodes_all_ranks_stop_at_the_same_step(self):
        endpoint = f"127.0.0.1:{reserved_port()}"
        nodes = [self.start(*command.train_arguments((ENDLESS, "optimizer.schedule=constant")), "--nodes", 2,
                            "--ranks-per-node", 1, "--node-rank", node, "--rendezvous", endpoint) for node in (0, 1)]
        wait_until(lambda: nodes[0].popen.poll() is not None or (self.run_folder / "metrics.jsonl").exists()
                   and self.metrics(), "a step")
        os.kill(nodes[1].pid, signal.SIGTERM)
        ends = [node.wait(SECONDS) for node in nodes]
        self.assertEqual([done.status for done in ends], [CHECKPOINTED, CHECKPOINTED], str(ends[0]) + str(ends[1]))
        self.saved_as_of_its_step(ends[0], " by SIGTERM", ("optimizer.schedule=constant",))

    def test_no_rank_outlives_its_launcher(self):
        process = self.start_training()
        ranks = process.ranks()
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in ranks.values()), "the ranks' end", SECONDS)

    def test_nothing_is_left_of_a_job_that_was_killed_as_a_whole(self):
        temporary = self.folder / "temporary"
        temporary.mkdir()
        before = set(SHARED_MEMORY.iterdir())
        process = self.start_training('comm.engine="shm"', TMPDIR=str(temporary))
        pids = [process.pid, *process.ranks().values()]
        self.assertLessEqual(set(pids), set(processes_with(f"TMPDIR={temporary}")))  # and the guardian beside them
        for pid in pids[1:]:
            self.assertIn("memfd:troika", pathlib.Path(f"/proc/{pid}/maps").read_text())  # shared with the others
        os.kill(process.pid, signal.SIGSTOP)  # so that it does not clean up either
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
        process.popen.wait(SECONDS)
        wait_until(lambda: not any(alive(pid) for pid in pids), "the end of all processes", SECONDS)
        wait_until(lambda: not processes_with(f"TMPDIR={temporary}"), "the end of the guardian", SECONDS)
        self.assertEqual(list(temporary.iterdir()), [])
        # What is there for a moment only is of programs that run beside this test.
        new = set(SHARED_MEMORY.iterdir()) - before
        wait_until(lambda: not any(path.exists() for path in new), f"there is no {new}", SECONDS)


class NonFinite(CommandTest):
    # After a step of 1e40 no weight is finite, and of 1e30 the squares of none.
    LOSS, GRADIENT = (
        (f"optimizer.lr={lr}", "train.steps=4", "train.evaluate_every_steps=0", "train.grad_clip=0")
        for lr in ("1e40", "1e30"))

    def stops(self, done, error):
        self.assertEqual((done.status, done.out), (NON_FINITE, ""), str(done))
        errors = [line for line in done.error_lines if line.startswith("troika: ")]
        self.assertEqual(errors, ["troika: " + error])
        self.assertEqual(done.error_lines[-2:-1], errors)
        self.assertIn("on_nonfinite", done.error_lines[-1])
        self.nothing_half_written()

    def test_a_loss_stops_with_ranks_and_step(self):
        self.stops(self.train(*self.LOSS, ranks=2), "the loss is not finite at step 2 on rank 0, 1")

    def test_a_gradient_stops_with_name_and_step(self):
        self.stops(self.train(*self.GRADIENT, ranks=2), "the gradient of 'model.embed_tokens.weight' is not finite "
                   "at step 2, though the loss is on every rank")

    def test_where_the_model_is_split(self):
        # The ranks that have the loss tell it: the first of a tensor axis, the last stage of a pipeline.
        for sets, rank in ((("parallel.tensor=2", "name=\"split\""), 0),
                           (("parallel.pipeline=2", "model.layers=2", "name=\"stages\""), 1)):
            self.stops(self.train(*self.LOSS, *sets, ranks=2), f"the loss is not finite at step 2 on rank {rank}")
            self.stops(self.train(*self.GRADIENT, *sets, ranks=2, flags=["--overwrite"]), "the gradient of "
                       "'model.embed_tokens.weight' is not finite at step 2, though the loss is on every rank")

    def test_skips_the_step_when_asked(self):
        done = self.succeeds(self.train(*self.GRADIENT, "train.on_nonfinite=skip", ranks=2))
        self.assertIn("step 2 was skipped: the gradient of 'model.embed_tokens.weight' is not finite", done.err)
        metrics = self.metrics()
        self.assertEqual([line["step"] for line in metrics], [1, 2, 3, 4])
        self.assertIsNotNone(metrics[0]["grad_norm"])
        self.assertEqual([line["grad_norm"] for line in metrics[1:]], [None] * 3)  # JSON has no NaN

    def test_skips_a_step_whose_loss_is_not_finite(self):
        done = self.succeeds(self.train(*self.LOSS, "train.on_nonfinite=skip", ranks=2))
        self.assertIn("step 2 was skipped: the loss is not finite on rank 0, 1", done.err)


class SameName(CommandTest):
    def test_again(self):
        self.succeeds(self.train())
        first = (self.run_folder / "metrics.jsonl").read_bytes()
        model = (self.run_folder / "model.safetensors").read_bytes()

        again = self.succeeds(self.train(ranks=2))
        self.assertIn("runs/small is finished already", again.err)
        self.assertEqual(again.out, "")
        self.assertEqual((self.run_folder / "metrics.jsonl").read_bytes(), first)

        other = self.train("optimizer.lr=0.2")
        self.assertEqual((other.status, other.out), (USAGE, ""), str(other))
        for needle in ("'runs/small' holds a run of another recipe", "--overwrite", "--resume", "--set name="):
            self.assertIn(needle, other.err)
        self.assertEqual((self.run_folder / "metrics.jsonl").read_bytes(), first)
        self.assertEqual((self.run_folder / "model.safetensors").read_bytes(), model)

        (self.run_folder / "notes.txt").write_text("mine")
        over = self.succeeds(self.train("optimizer.lr=0.2", flags=["--overwrite"]))
        self.assertIn("overwriting the run in runs/small", over.err)
        self.assertNotEqual((self.run_folder / "model.safetensors").read_bytes(), model)
        self.assertEqual((self.run_folder / "notes.txt").read_text(), "mine")

    def test_on_several_nodes(self):
        def on_both(*sets, flags=()):
            endpoint = f"127.0.0.1:{reserved_port()}"
            nodes = [self.start(*command.train_arguments(sets), *flags, "--nodes", 2, "--ranks-per-node", 1,
                                "--node-rank", node, "--rendezvous", endpoint) for node in (0, 1)]
            return [node.wait() for node in nodes]

        for done in on_both():
            self.succeeds(done)
        self.assertEqual(len(self.metrics()), 3)
        again = on_both()
        for done in again:
            self.succeeds(done)
            self.assertLess(done.seconds, SECONDS)
        self.assertIn("runs/small is finished already", again[0].err)
        for done in on_both("optimizer.lr=0.2"):
            self.assertEqual((done.status, done.out), (USAGE, ""), str(done))
            self.assertIn("'runs/small' holds a run of another recipe", done.err)
            self.assertLess(done.seconds, SECONDS)

    def test_while_it_is_running(self):
        process = self.start_training()
        second = self.train(ENDLESS, flags=["--overwrite"])
        self.assertEqual(second.status, USAGE, str(second))
        self.assertIn(f"'runs/small' is being written by process {process.ranks()[0]} on host "
                      f"{socket.gethostname()}", second.err)
        self.assertIsNone(process.popen.poll(), "goes on")
        os.kill(process.pid, signal.SIGINT)
        process.wait(SECONDS)

    def test_a_run_that_cannot_begin_overwrites_nothing(self):
        self.succeeds(self.train())
        before = {path.name: path.read_bytes() for path in self.run_folder.iterdir() if path.is_file()}
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for status, override in ((DATA, 'data.paths=["nothing/*"]'), (USAGE, f"observe.prometheus_port={port}")):
                done = self.train(override, "optimizer.lr=0.2", ranks=2, flags=["--overwrite"])
                self.assertEqual(done.status, status, str(done))
        after = {path.name: path.read_bytes() for path in self.run_folder.iterdir() if path.is_file()}
        before.pop(".lock"), after.pop(".lock")  # which names the last process to have it
        self.assertEqual(after, before)

    def test_an_unfinished_run_without_a_checkpoint_starts_again(self):
        process = self.start_training(ranks=1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(SECONDS)
        metrics = (self.run_folder / "metrics.jsonl").read_bytes()
        self.fails(self.train(ENDLESS, flags=["--resume"]), USAGE, "no checkpoint to resume from", "--resume out")
        self.fails(self.train("train.steps=7"), USAGE, "holds a run of another recipe", "--overwrite")
        self.assertEqual((self.run_folder / "metrics.jsonl").read_bytes(), metrics)
        process = self.start_training(ranks=1)
        self.assertEqual(self.metrics()[0]["step"], 1)
        os.kill(process.pid, signal.SIGKILL)
        self.assertIn("unfinished run without a checkpoint: it starts again", process.wait(SECONDS).err)
        self.succeeds(self.train(flags=["--overwrite"]))


@unittest.skipIf(os.geteuid() != 0, "only root can mount a small disk")
class FullDisk(CommandTest):
    def small_disk(self, size):
        runs = self.folder / "runs"
        runs.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "troika-test", runs]).returncode != 0:
            self.skipTest("this machine does not let root mount a tmpfs")
        self.addCleanup(lambda: subprocess.run(["umount", runs], check=True))
        return runs

    def refused(self, done):
        self.assertEqual((done.status, done.out), (STORAGE, ""), str(done))
        errors = [line for line in done.error_lines if line.startswith("troika: ")]
        self.assertEqual(len(errors), 1, str(done))
        self.assertIn("No space left on device", errors[0])
        self.assertIn("runs/small/", errors[0])
        self.assertIn("the disk is full", done.error_lines[-1])
        self.nothing_half_written()

    def test_no_room_to_begin_in(self):
        runs = self.small_disk("64k")
        (runs / "ballast").write_bytes(bytes(60 << 10))
        self.refused(self.train(ranks=2))

    def test_no_room_for_the_metrics(self):
        self.small_disk("64k")
        self.refused(self.train("train.steps=2000"))

    def test_no_room_for_the_model(self):
        self.small_disk("64k")  # the model has 66
        self.refused(self.train())


if __name__ == "__main__":
    command.main()
