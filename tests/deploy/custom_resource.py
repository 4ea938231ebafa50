"""Validates custom resources with the schema of their definition: custom_resource.py DEFINITION RESOURCES."""

import sys

import jsonschema
import yaml


def closed(schema):
    """An API server drops unknown fields; here they are mistakes."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            closed(value)
    return schema


def main(definition, resources):
    with open(definition, encoding="utf-8") as file:
        [version] = yaml.safe_load(file)["spec"]["versions"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    # Kubernetes checks the metadata itself.
    schema["properties"]["metadata"] = {"type": "object"}
    with open(resources, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    for document in documents:
        assert document["apiVersion"].endswith("/" + version["name"]), document["apiVersion"]
        jsonschema.validate(document, schema)
    assert documents, "no document"


main(*sys.argv[1:])
