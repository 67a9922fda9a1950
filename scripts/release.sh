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

cat >"$scratch/shop.sql" <<'SQL'
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, w int);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a LEFT JOIN b ON a.id = b.id;
INSERT INTO a VALUES (1, 2);
FLUSH;
INSERT INTO b VALUES (1, 3);
SQL
# Each supported interpreter that is there: on the PATH, or among those of pyenv and uv.
tried=
for version in 3.11 3.12 3.13; do
  for found in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python "$(uv python find "$version" 2>/dev/null || true)"; do
    "$found" -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$version'.split('.'))))" 2>/dev/null || continue
    environment=$scratch/$version
    "$found" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    (
      cd "$scratch"
      "$environment/bin/watersmeet" --version
      "$environment/bin/watersmeet" run shop.sql --path "db$version" --once --runtime inprocess
      "$environment/bin/watersmeet" run shop.sql --path "db$version" --once --runtime inprocess # given again
      "$environment/bin/watersmeet" backup "db$version" "copy$version"
      answer=$("$environment/bin/watersmeet" query "SELECT * FROM j" --path "copy$version" --json)
      [ "$answer" = '{"id": 1, "v": 2, "w": 3}' ] || { echo "the installed wheel gives $answer" >&2; exit 1; }
      "$environment/bin/watersmeet" serve --help >help
    )
    tried="$tried $version"
    break
  done
done
[ -n "$tried" ] || { echo "there is no Python 3.11 to 3.13" >&2; exit 1; }
set -- $tried
extras=$("$python" -c "
import tomllib
extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']
print(','.join(e for e in extras if e not in ('dev', 'demo')))")
"$scratch/$1/bin/pip" install --quiet --disable-pip-version-check "$wheel[$extras]"
"$scratch/$1/bin/pip" check
echo "release: dist/ is built and tried with Python$tried, with the extras $extras"
