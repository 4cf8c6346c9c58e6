"""kind = "exported" from end to end: a run, what it leaves, and files that are refused.

Run with pytest, in an environment with PyTorch and transformers.
"""

import shutil
import unittest
import zipfile

import torch
from torch import nn

from exported_networks import NETWORKS, export, file_of
from exported_runs import RECIPE, ExportedRuns

USAGE = 2


class Exported(ExportedRuns):
    def test_bert_in_shards(self):
        """And that torch.export.load() reads what the run has trained."""
        module, program = self.judged("bert-classes", 2, "parallel.zero_stage=3")
        batch = NETWORKS["bert-classes"].inputs(4)
        expected = module.eval()(**batch).logits
        torch.testing.assert_close(program.module()(**batch)["logits"].shape, expected.shape)

    def refused(self, message, path="net.pt2", keys="targets = { y = { classes = 3 } }"):
        (self.folder / "recipe.toml").write_text(RECIPE.format(path=path, keys=keys))
        done = self.train(ranks=1)
        self.assertEqual(done.status, USAGE, str(done))
        self.assertIn(message, done.error_lines[0], str(done))
        return done

    def test_files_that_are_refused(self):
        good = file_of("bert-classes")
        loss = NETWORKS["bert-classes"].recipe
        self.refused("there is no file 'net.pt2'")
        (self.folder / "net.pt2").write_bytes(good.read_bytes()[:9000])
        self.refused("is cut short")
        (self.folder / "net.pt2").write_text("no archive")
        self.refused("'net.pt2' is no exported program: it is no archive")
        torch.jit.script(nn.Linear(2, 3)).save(self.folder / "net.pt2")
        self.refused("it is TorchScript")
        shutil.copyfile(good, self.folder / "net.pt2")
        self.refused("takes the target 'labels'", keys="targets = { labels = { classes = 3 } }\noutputs = { logits = {} }")
        self.refused("'net.pt2' has no input 'input_id'; did you mean 'input_ids'?", keys=loss + "\ninputs = { input_id = {} }")
        self.refused("input 'input_ids' is [12] for a sample, not [5]", keys=loss + "\ninputs = { input_ids = { shape = [5] } }")
        self.changed(good, "models/model.json", b'"torch.ops.aten.tanh.default"', b'"torch.ops.mine.tanh.default"')
        done = self.refused("calls 'torch.ops.mine.tanh.default', which is not among the operators that run here", keys=loss)
        self.assertIn("modeling_bert.py line ", done.error_lines[0])
        self.changed(good, "models/model.json", b'"torch.ops.aten.tanh.default"', b'"torch.ops.aten.from_file.default"')
        self.refused("calls 'torch.ops.aten.from_file.default', which is not among", keys=loss)

    def test_a_number_of_samples_that_is_fixed(self):
        torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.randn(3, 4),)), self.folder / "net.pt2")
        self.refused("input 'input' was exported for 3 samples alone")

    def changed(self, source, record, old, new):
        """A copy of an archive, with other text in a record."""
        with zipfile.ZipFile(source) as before, zipfile.ZipFile(self.folder / "net.pt2", "w") as after:
            for name in before.namelist():
                content = before.read(name)
                if name.endswith(record):
                    self.assertIn(old, content)
                    content = content.replace(old, new)
                after.writestr(name, content)


if __name__ == "__main__":
    unittest.main()
