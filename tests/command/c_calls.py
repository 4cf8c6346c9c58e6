"""Calls functions of libtroika's C interface on a model alone, for tests whose own process holds PyTorch, which cannot be loaded
beside the LibTorch of libtroika: c_calls.py LIBRARY < REQUEST

The request is a JSON object: `recipe`; `inputs`, each a flat list of numbers by name, whole ones for int64; `samples`; and
`differentiate`, a list of [output, component, inputs]. Answers with a list of {input: gradient} for each. `save` is a file for
the model, and may be left out.
"""

import ctypes
import json
import sys

DOUBLE, INT64 = 1, 3
library = None


class Array(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("count", ctypes.c_int64), ("type", ctypes.c_int)]


def call(name, *arguments):
    if getattr(library, "troika_" + name)(*arguments):
        sys.exit(f"{name}: {library.troika_last_error().decode()}")


def array_of(name, numbers):
    """The array, and the memory that it refers to."""
    whole = bool(numbers) and all(isinstance(each, int) for each in numbers)
    memory = ((ctypes.c_int64 if whole else ctypes.c_double) * len(numbers))(*numbers)
    return Array(name.encode(), ctypes.addressof(memory), len(numbers), INT64 if whole else DOUBLE), memory


def gradients(model, inputs, samples, output, component, names):
    given = [array_of(name, numbers) for name, numbers in inputs.items()]
    wanted = [array_of(name, [0.0] * len(inputs[name])) for name in names]
    call("model_input_gradients", model, (Array * len(given))(*(array for array, _ in given)), len(given), ctypes.c_int64(samples),
         output and output.encode(), ctypes.c_int64(component), (Array * len(wanted))(*(array for array, _ in wanted)), len(wanted))
    return {name: list(memory) for name, (_, memory) in zip(names, wanted)}


def main():
    global library
    library = ctypes.CDLL(sys.argv[1])
    library.troika_last_error.restype = ctypes.c_char_p
    request = json.load(sys.stdin)
    session, model = ctypes.c_void_p(), ctypes.c_void_p()
    call("open_alone", None, ctypes.byref(session))
    call("model_create", session, request["recipe"].encode(), ctypes.byref(model))
    if "save" in request:
        call("model_save", model, request["save"].encode())
    json.dump([gradients(model, request["inputs"], request["samples"], *each) for each in request["differentiate"]], sys.stdout)
    call("model_free", model)
    call("close", session)


if __name__ == "__main__":
    main()
