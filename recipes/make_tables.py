#!/usr/bin/env python3
"""Writes the tables of recipes/breast-cancer.toml and recipes/diabetes.toml into FOLDER.

They come with scikit-learn, so nothing is downloaded. Needs scikit-learn and pyarrow: the interpreter that
`python3 scripts/python_env.py tests` prints has both.
"""
import argparse
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.datasets


def split_of(rows):
    """Every fifth row is held out."""
    return ["validation" if row % 5 == 0 else "train" for row in range(rows)]


def breast_cancer():
    """569 samples of cells: thirty measurements, and the diagnosis."""
    data = sklearn.datasets.load_breast_cancer()
    columns = {name.replace(" ", "_"): data.data[:, i] for i, name in enumerate(data.feature_names)}
    return {**columns, "diagnosis": [str(data.target_names[each]) for each in data.target]}


def diabetes():
    """442 patients: ten measurements, and how far the disease has gone a year later, from 25 to 346."""
    data = sklearn.datasets.load_diabetes(scaled=False)
    columns = {name: data.data[:, i] for i, name in enumerate(data.feature_names)}
    return {**columns, "progression": data.target}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in {"breast-cancer": breast_cancer(), "diabetes": diabetes()}.items():
        path = folder / f"{name}.parquet"
        table = pa.table(columns)
        pq.write_table(table.append_column("split", pa.array(split_of(table.num_rows))), path)
        print(f"{path}: {table.num_rows} rows")


if __name__ == "__main__":
    main()
