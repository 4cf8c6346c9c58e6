#!/usr/bin/env python3
"""Reads TensorBoard event files with the `tensorboard` package and compares them with what a run wrote.

    tensorboard_readback.py FILE_OR_FOLDER EXPECTED.json

EXPECTED.json maps a tag to its points: {"train/loss": [[step, value], ...], ...}. Values are compared
as 32-bit floats, which is what event files hold. Tags that EXPECTED.json does not name may be there.

With --metrics, EXPECTED is a run's metrics.jsonl: each of its numbers but `step` must be there, under
train/<key>, or held_out/<key> for the keys held_out_<key>. An object of counts by whole numbers must be there as a
histogram whose buckets are these numbers.

Exit status: 0 equal, 1 different (every difference on stderr), 2 usage.
"""
import argparse
import json
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def counts_of(histogram):
    """{whole number: count}, of buckets that end half a unit above their number."""
    counts = {limit - 0.5: count for limit, count in zip(histogram.bucket_limit, histogram.bucket) if count}
    sums = [sum(value**power * count for value, count in counts.items()) for power in (0, 1, 2)]
    if sums != [histogram.num, histogram.sum, histogram.sum_squares] or [min(counts), max(counts)] != [histogram.min, histogram.max]:
        raise ValueError(f"{histogram} contradicts itself")
    return counts


def read_points(path):
    """{tag: [(step, value), ...]} of all event files at `path`; the value of a histogram is {number: count}."""
    accumulator = event_accumulator.EventAccumulator(
        path, size_guidance={event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0}  # 0: keep every point
    )
    accumulator.Reload()
    points = {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    for tag in accumulator.Tags()["histograms"]:
        points[tag] = [(point.step, counts_of(point.histogram_value)) for point in accumulator.Histograms(tag)]
    return points


def expected_of_metrics(path):
    expected = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            metrics = json.loads(line)
            step = metrics.pop("step")
            for key, value in metrics.items():
                prefix = "held_out_"
                tag = "held_out/" + key[len(prefix):] if key.startswith(prefix) else "train/" + key
                if isinstance(value, dict):
                    value = {float(number): count for number, count in value.items()} or None
                if value is not None:  # not finite, or nothing counted
                    expected.setdefault(tag, []).append((step, value))
    return expected


def expected_of_json(path):
    with open(path, encoding="utf-8") as file:
        return {tag: [tuple(point) for point in points] for tag, points in json.load(file).items()}


def differences(expected, found):
    for tag, points in expected.items():
        if tag not in found:
            yield f"{tag}: missing; there are {sorted(found)}"
            continue
        want = [(step, value if isinstance(value, dict) else as_float32(value)) for step, value in points]
        # NaN and infinity have no place in JSON, so they are nowhere expected.
        have = [(step, value) for step, value in found[tag] if isinstance(value, dict) or abs(value) < float("inf")]
        if want != have:
            yield f"{tag}: expected {want}, found {have}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("events", help="an event file, or a folder that holds some")
    parser.add_argument("expected", help="JSON, or metrics.jsonl with --metrics")
    parser.add_argument("--metrics", action="store_true")
    arguments = parser.parse_args()
    read_expected = expected_of_metrics if arguments.metrics else expected_of_json
    expected = read_expected(arguments.expected)
    if not expected:
        sys.exit(f"{arguments.expected} expects nothing")
    problems = list(differences(expected, read_points(arguments.events)))
    for problem in problems:
        print(problem, file=sys.stderr)
    points = sum(len(points) for points in expected.values())
    print(f"{points} points of {len(expected)} tags, {len(problems)} tags differ")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
