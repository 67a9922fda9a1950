#!/bin/sh
# Creates .venv with the pinned requirements, the package and its `watersmeet` command.
# Needs Python 3.11+ (with venv) and Java 17+, and says so where one is missing.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"

fail() { printf 'setup: %s\n' "$1" >&2; printf 'hint:  %s\n' "$2" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 ||
  fail "no $PYTHON on this machine" "install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$PYTHON" --version 2>&1) is too old: Watersmeet needs Python 3.11 or newer" "install it and run: make setup PYTHON=python3.12"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "this Python has no venv module" "install it (Debian, Ubuntu: apt install python3-venv)"

java="java"
[ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
command -v "$java" >/dev/null 2>&1 ||
  fail "no Java on this machine: Spark needs Java 17 or newer" "install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1)
[ "${version:-0}" -ge 17 ] ||
  fail "Java ${version:-of unknown version} is too old: Spark needs Java 17 or newer" "install a newer one or set JAVA_HOME to it"

[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
echo "setup: installing the pinned requirements into .venv (some 500 MB the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
# Every process that is started loads it; where Python may not keep what it has compiled, each would compile it again.
.venv/bin/python -m compileall -q -j 0 src
touch .venv/.ready
echo "setup: done, the command is .venv/bin/watersmeet"
