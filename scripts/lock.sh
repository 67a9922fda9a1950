#!/bin/sh
# Pins requirements/lock.txt: names, versions and hashes only, so that it holds for any registry.
set -eu
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install --quiet pip-tools
"$tools/bin/pip-compile" --quiet --strip-extras --allow-unsafe --generate-hashes --no-header --no-emit-index-url \
  --no-emit-trusted-host --no-emit-find-links --no-annotate --extra demo --extra dev --output-file requirements/lock.txt pyproject.toml
