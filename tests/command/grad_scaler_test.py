"""troika::GradScaler beside torch.amp.GradScaler: the same scale, count, skipped steps and parameters, step by step.

Run with pytest, in an environment with PyTorch; GRAD_SCALER_TOOL is the program of grad_scaler_tool.cc.
"""

import json
import os
import random
import subprocess
import unittest

import torch

DEFAULTS = (65536.0, 2.0, 0.5, 2000)


def ours(options, steps):
    words = [word if word == "save" else f"{word[0]!r},{word[1]!r}" for word in steps]
    done = subprocess.run([os.environ["GRAD_SCALER_TOOL"], *map(repr, options), *words], text=True, check=True,
                          stdout=subprocess.PIPE, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def made(options):
    initial, growth, backoff, interval = options
    return torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff,
                                growth_interval=interval)


def theirs(options, steps):
    scaler = made(options)
    clipped, free = (torch.zeros(3, requires_grad=True) for _ in range(2))
    sgd = torch.optim.SGD([clipped], lr=0.1, momentum=0.9, foreach=False)
    adam = torch.optim.Adam([free], lr=0.1, foreach=False)
    taken = []
    for optimizer in (sgd, adam):
        optimizer.register_step_post_hook(lambda which, *_: taken.append(which))
    for step in steps:
        if step == "save":
            state, scaler = scaler.state_dict(), made(options)
            scaler.load_state_dict(state)
            continue
        for optimizer in (sgd, adam):
            optimizer.zero_grad()
        taken.clear()
        for parameter, value in zip((clipped, free), step):
            scaler.scale((parameter * torch.tensor([1.0, 2.0, 3.0]) * value).sum()).backward()
        scaler.unscale_(sgd)
        torch.nn.utils.clip_grad_norm_([clipped], 2, foreach=False)
        scaler.step(sgd)
        scaler.step(adam)
        scaler.update()
        yield {"scale": scaler.get_scale(), "good_steps": scaler._get_growth_tracker(),
               "stepped": [int(sgd in taken), int(adam in taken)], "parameters": torch.cat([clipped, free]).tolist()}


class GradScaler(unittest.TestCase):
    def agree(self, options, steps):
        found, wanted = ours(options, steps), list(theirs(options, steps))
        self.assertEqual(len(found), len(wanted))
        for step, (mine, other) in enumerate(zip(found, wanted)):
            for key in ("scale", "good_steps", "stepped"):
                self.assertEqual(mine[key], other[key], (step, key))
            # The rules of SGD and Adam round in another order in C++.
            torch.testing.assert_close([*map(float, mine["parameters"])], other["parameters"], rtol=1e-5, atol=1e-7)
        return found

    def test_growth_and_backoff(self):
        inf, nan = float("inf"), float("nan")
        steps = [(1.0, 1.0), (1.0, inf), (nan, 1.0), (2.0, 3.0), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0), (-inf, nan),
                 (1.0, 1e38), (1e-30, 5.0)]
        found = self.agree((1024.0, 2.0, 0.5, 3), steps)
        self.assertEqual([step["stepped"] for step in found[:3]], [[1, 1], [1, 0], [0, 1]])

    def test_random_steps(self):
        draw = random.Random(7)
        for options in (DEFAULTS, (8.0, 3.0, 0.3, 2), (2.0 ** 127, 4.0, 0.9, 1), (1.0, 1.5, 0.1, 4)):
            steps = []
            for step in range(40):
                value = lambda: draw.choice([1.0, -0.5, 7.0, 1e-3, 3e4, float("inf"), 1e37])
                steps += ["save"] if step % 9 == 8 else []
                steps.append((value(), value()))
            with self.subTest(options):
                self.agree(options, steps)


if __name__ == "__main__":
    unittest.main()
