#!/bin/sh
# Pins requirements/*.txt: names, versions and hashes only, so that they hold for any registry.
set -eu
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install --quiet pip-tools
pin() {
  "$tools/bin/pip-compile" --quiet --strip-extras --allow-unsafe --generate-hashes --no-header --no-emit-index-url \
    --no-emit-trusted-host --no-emit-find-links --no-annotate "$@"
}
pin --extra demo --extra dev --output-file requirements/lock.txt pyproject.toml
# dbt asks for older versions of packages that the tests use, so it is fetched into a folder of its own.
pin --output-file requirements/dbt.txt requirements/dbt.in
# Clients that only one slow test runs.
pin --output-file requirements/django.txt requirements/django.in
pin --output-file requirements/psycopg2-binary.txt requirements/psycopg2-binary.in
pin --output-file requirements/distro.txt requirements/distro.in
# The generator of the site shares nothing with the package.
pin --output-file requirements/docs.txt requirements/docs.in
# Only the test of the notebook runs a kernel of Jupyter.
pin --output-file requirements/notebook.txt requirements/notebook.in
