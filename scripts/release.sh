#!/bin/sh
# Builds the sdist and the wheel into dist/, and tries the wheel, made of that sdist, in an environment of its own and away from
# the repository: a job without Java, the server's help, and that every extra can be installed with it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install --quiet --disable-pip-version-check build twine
rm -rf dist
"$scratch/build/bin/python" -m build --outdir dist . >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
"$scratch/build/bin/twine" check --strict dist/*
wheel=$(cd dist && echo "$PWD"/*.whl)

"$python" -m venv "$scratch/base"
"$scratch/base/bin/pip" install --quiet --disable-pip-version-check "$wheel"
cat >"$scratch/shop.sql" <<'SQL'
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, w int);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a LEFT JOIN b ON a.id = b.id;
INSERT INTO a VALUES (1, 2);
FLUSH;
INSERT INTO b VALUES (1, 3);
SQL
(
  cd "$scratch"
  base/bin/watersmeet --version
  base/bin/watersmeet run shop.sql --path db --once --runtime inprocess
  found=$(base/bin/watersmeet query "SELECT * FROM j" --path db --json)
  [ "$found" = '{"id": 1, "v": 2, "w": 3}' ] || { echo "the installed wheel gives $found" >&2; exit 1; }
  base/bin/watersmeet serve --help >help
)
extras=$("$python" -c "
import tomllib
extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']
print(','.join(e for e in extras if e not in ('dev', 'demo')))")
"$scratch/base/bin/pip" install --quiet --disable-pip-version-check "$wheel[$extras]"
"$scratch/base/bin/pip" check
echo "release: dist/ is built and tried, with the extras $extras"
