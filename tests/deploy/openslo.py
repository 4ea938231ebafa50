"""Validates OpenSLO documents with the schemas of OpenSLO: openslo.py SCHEMAS DOCUMENTS.

A schema that accepts everything would pass too, so each document is also damaged, and has to be refused then.
"""

import copy
import json
import pathlib
import sys

import jsonschema
import referencing
import yaml

# Path of a field, and a value that no OpenSLO document may have there.
FAULTS = {
    "Service": [("kind", "Servant"), ("metadata.name", "Two words")],
    "SLO": [
        ("metadata.name", "Two words"),
        ("spec.budgetingMethod", "Guesses"),
        ("spec.objectives.0.target", 1.5),
        ("spec.timeWindow.0.duration", "a month"),
        ("spec.indicator.spec.ratioMetric.total", None),
    ],
}


def damaged(document, path, value):
    """A copy of the document with another value at the path; None removes the field."""
    document = copy.deepcopy(document)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = document
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def main(schemas, documents):
    schemas = [json.loads(path.read_text(encoding="utf-8")) for path in pathlib.Path(schemas).glob("*.json")]
    registry = referencing.Registry().with_resources(
        (schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas
    )
    validator = jsonschema.Draft7Validator(
        {"$ref": "https://openslo.com/schemas/v1/openslo.schema.json"}, registry=registry
    )
    with open(documents, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    for document in documents:
        validator.validate(document)
        for path, value in FAULTS[document["kind"]]:
            assert not validator.is_valid(damaged(document, path, value)), f"{path}: {value} is accepted"
    assert {document["kind"] for document in documents} == set(FAULTS)


main(*sys.argv[1:])
