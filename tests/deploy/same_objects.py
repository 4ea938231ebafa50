"""Whether two files of Kubernetes objects have the same objects: same_objects.py ONE OTHER."""

import sys

import yaml


def objects(path):
    with open(path, encoding="utf-8") as file:
        documents = [document for document in yaml.safe_load_all(file) if document]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(by_name) == len(documents), f"{path}: an object twice"
    return by_name


def main(one, other):
    left, right = objects(one), objects(other)
    assert left, f"{one}: no object"
    different = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    assert not different, f"{different} differ between {one} and {other}"


main(*sys.argv[1:])
