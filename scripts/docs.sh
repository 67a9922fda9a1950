#!/bin/sh
# Builds the site of the documentation into build/site, in an environment of its own: build/docs-env.
set -eu
cd "$(dirname "$0")/.."
env=build/docs-env
if [ ! -e "$env/.ready" ] || [ requirements/docs.txt -nt "$env/.ready" ]; then
  echo "docs: installing the pinned requirements into $env"
  "${PYTHON:-python3}" -m venv "$env"
  "$env/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
  touch "$env/.ready"
fi
NO_MKDOCS_2_WARNING=1 "$env/bin/mkdocs" build --quiet --strict --config-file scripts/mkdocs.yml
echo "docs: open build/site/index.html"
