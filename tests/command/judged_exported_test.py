"""Networks that torch.export has written, in every shape that users have: PyTorch judges gradients, updates and running statistics.

Run with pytest, in an environment with PyTorch and transformers.
"""

import unittest

from exported_networks import NETWORKS
from exported_runs import ExportedRuns


class JudgedExported(ExportedRuns):
    def test_the_list(self):
        for name in NETWORKS:
            for ranks in (1, 2, 3):
                with self.subTest(network=name, ranks=ranks):
                    self.judged(name, ranks)


if __name__ == "__main__":
    unittest.main()
