"""How many floating-point operations a second square products of bf16 reach: products.py DEVICE SIZE. One line of JSON."""

import json
import sys
import time

import torch


def main():
    device, size = sys.argv[1], int(sys.argv[2])
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        (left @ right)[0, 0].item()  # waits for it
        best = min(best, time.perf_counter() - started)
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    print(json.dumps({"device": name, "operations_per_second": 2 * size**3 / best, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
